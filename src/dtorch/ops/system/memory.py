"""Memory of devices: what is held, and giving back what is not. No operands, no FLOPs and no bytes."""

from __future__ import annotations

from dtorch.op.param import OpParam
from dtorch.ops.system.control import ControlOperator


class MemoryParam(OpParam, frozen=True):
    """What is done: "empty_cache" or "stats"; with `reset_peak` peaks count from here on."""

    action: str
    reset_peak: bool = False


class Memory(ControlOperator):
    """Asks devices what they hold, or has them give back what no tensor uses."""
