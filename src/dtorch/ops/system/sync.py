"""Waiting: everything issued before has run. It has no operands, no FLOPs and no bytes."""

from __future__ import annotations

from dtorch.op.call import OutputMeta
from dtorch.op.cost import OperatorCost
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam


class SyncParam(OpParam, frozen=True):
    """Waiting has no parameters."""


class Sync(Operator):
    """Waits for the devices."""

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """No outputs."""
        return []

    def infer_operator_assign_info(self) -> None:
        """No stream runs it; the host waits."""

    def get_operator_cost(self) -> OperatorCost:
        """Free by nature."""
        return OperatorCost()
