"""The operator layer's public names, for operators of your own: docs/how_to_add_operator.md."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from dtorch.dispatch_mixed import home, operands_at
from dtorch.op.call import OutputMeta
from dtorch.op.cost import OperatorCost
from dtorch.op.dims import Rule, concretize
from dtorch.op.factory import OperatorFactory
from dtorch.op.operand import Operand
from dtorch.op.operator import Dims, Local, Operator
from dtorch.op.param import OpParam, TorchCall
from dtorch.op.registry import types
from dtorch.op.signature import PlacementSignature
from dtorch.op.stream import StreamKey
from dtorch.runtime.kernel import Kernel, KernelContext, KernelFactory
from dtorch.tensor import Tensor, wrap

__all__ = [
    "CustomOperator",
    "Dims",
    "Kernel",
    "KernelContext",
    "KernelFactory",
    "Local",
    "OpParam",
    "Operand",
    "Operator",
    "OperatorCost",
    "OperatorFactory",
    "OutputMeta",
    "PlacementSignature",
    "Rule",
    "StreamKey",
    "TorchCall",
    "add_operator",
    "operand",
    "types",
]


# In the class below `type` is the name of an operator type.
ParamType = type[OpParam]


class CustomOperator(Operator, abstract=True):
    """Base of an operator with typed parameters, called by these or as a torch operator.

    `add_operator(MyClipParam(-1, 1), x)` and `torch.ops.mylib.my_clip(x, -1, 1)` are then one operator.

    Class attributes:
        param_type: type of the parameters; its fields bear the names of the torch operator's arguments.
        torch_ops: the torch operators that it serves, such as `mylib.my_clip`; may be empty.
        dims: its dims line; tensors bear the names of the torch operator's arguments, in the same order. None
            where `get_placement_signature` gives the rules.
    """

    param_type: ClassVar[ParamType]
    dims: ClassVar[Dims | None] = None

    @cached_property
    def values(self) -> Any:
        """The typed parameters, however the operator was called."""
        if not isinstance(self.param, TorchCall):
            return self.param
        fields = self.param_type.__struct_fields__
        return self.param_type(**{name: self.arguments[name] for name in fields})

    def rule(self) -> Rule | None:
        """The dims line, tied to the inputs: by name for a torch call, else by order."""
        if self.dims is None:
            return None
        if isinstance(self.param, TorchCall):
            return self.rule_from(self.dims)
        return concretize(self.dims.line, self.shapes, self.dims.linear, self.dims.flops)

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """Fill `outputs` from the local `inputs` of one device."""
        raise NotImplementedError(f"{self.type} has no compute")


def operand(tensor: Tensor) -> Operand:
    """The operand behind a distributed tensor, as `OperatorFactory.new_operator` takes it."""
    return tensor._operand


def add_operator(param: OpParam, *inputs: Any) -> Any:
    """Run an operator on tensors, through the graph they belong to; gradients are the caller's business.

    Args:
        param: the operator's parameters.
        inputs: tensors, distributed or plain, at least one distributed; None for an absent optional input.

    Returns:
        One tensor, or a tuple where the operator has several outputs.
    """
    places = [i for i, x in enumerate(inputs) if x is not None]
    tensors = [inputs[i] for i in places]
    mesh, graph = home(tensors)
    present, foreign = operands_at(tensors, mesh, graph)
    operands: list[Operand | None] = [None] * len(inputs)
    for i, operand in zip(places, present, strict=True):
        operands[i] = operand
    with graph.lock:
        results = graph.constructor.add_operator(param, operands, [places[i] for i in foreign])
    found: list[Tensor] = [wrap(result, graph) for result in results]
    return found[0] if len(found) == 1 else tuple(found)
