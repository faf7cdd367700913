"""Waiting: everything issued before has run. It has no operands, no FLOPs and no bytes."""

from __future__ import annotations

from dtorch.op.param import OpParam
from dtorch.ops.system.control import ControlOperator


class SyncParam(OpParam, frozen=True):
    """Waiting has no parameters."""


class Sync(ControlOperator):
    """Waits for the devices."""
