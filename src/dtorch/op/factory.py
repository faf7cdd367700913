"""Making operators: find the class by the parameters, infer, link."""

from __future__ import annotations

from collections.abc import Sequence

from dtorch.op import registry
from dtorch.op.operand import Operand
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam, TorchCall


def class_for(param: OpParam) -> type[Operator]:
    """The operator class of some parameters: by the torch overload they call, else by their type's name.

    Raises:
        KeyError: no class has this type.
    """
    if isinstance(param, TorchCall):
        return registry.class_of(param.func)
    return registry.class_by_type(type(param).__name__.removesuffix("Param"))


class OperatorFactory:
    """The documents' factory."""

    @staticmethod
    def new_operator(param: OpParam, inputs: Sequence[Operand | None]) -> Operator:
        """Create an operator on operands that are legal for it, infer it, and link it to them.

        Args:
            param: its parameters; `MyClipParam` belongs to the operator type `MyClip`.
            inputs: operands, with or without values; None for an absent optional input.

        Raises:
            KeyError: no class has this type.
            PlacementError: the inputs fit no rule; recording would convert them, the factory does not.
        """
        operator = class_for(param)(param, inputs)
        operator.infer()
        operator.update_operand_topology()
        return operator
