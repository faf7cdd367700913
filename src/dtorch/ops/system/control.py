"""What operators without operands have in common: no outputs, no stream, no price."""

from __future__ import annotations

from dtorch.op.call import OutputMeta
from dtorch.op.cost import OperatorCost
from dtorch.op.operator import Operator


class ControlOperator(Operator, abstract=True):
    """Base of operators that act on devices, not on tensors; the host carries them out."""

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """No outputs."""
        return []

    def infer_output_size(self) -> int:
        """No outputs."""
        return 0

    def infer_output(self) -> None:
        """Nothing to infer."""

    def infer_operator_assign_info(self) -> None:
        """No stream runs it; the host does."""

    def get_operator_cost(self) -> OperatorCost:
        """Free by nature."""
        return OperatorCost()
