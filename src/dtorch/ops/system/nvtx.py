"""Marks in the timeline of NVIDIA's profilers. No operands, no FLOPs and no bytes."""

from __future__ import annotations

from dtorch.op.param import OpParam
from dtorch.ops.system.control import ControlOperator


class NvtxParam(OpParam, frozen=True):
    """What is done: "range_push", "range_pop" or "mark"; a range that is popped has no text."""

    action: str
    message: str = ""


class Nvtx(ControlOperator):
    """Begins or ends a range, or sets a mark."""
