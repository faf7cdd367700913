"""The operator layer's public names, for operators of your own; docs/how_to_add_operator.md walks through one."""

from __future__ import annotations

from typing import Any

from dtorch.dispatch import home, operand_of
from dtorch.op.call import OutputMeta
from dtorch.op.cost import OperatorCost
from dtorch.op.dims import Rule
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
    "types",
]


def add_operator(param: OpParam, *inputs: Any) -> Any:
    """Run an operator on tensors, through the graph they belong to; gradients are the caller's business.

    Args:
        param: the operator's parameters.
        inputs: tensors, distributed or plain, at least one distributed; None for an absent optional input.

    Returns:
        One tensor, or a tuple where the operator has several outputs.
    """
    tensors = [x for x in inputs if x is not None]
    mesh, graph = home(tensors)
    operands = [None if x is None else operand_of(x, mesh) for x in inputs]
    with graph.lock:
        results = graph.constructor.add_operator(param, operands)
    found: list[Tensor] = [wrap(result, graph) for result in results]
    return found[0] if len(found) == 1 else tuple(found)
