"""Running a recorded graph again, on other values: each of its calls is made anew, through the graph's door.

Conversions that operators imply are chosen anew, and are the same, since they depend on the calls alone. What
a backward had called is called inside a backward, where sums may stay pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch

from dtorch.dispatch import operand_of
from dtorch.errors import MeshMismatchError, ShapeError
from dtorch.graph.graph import Graph
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.graph.wiring import Free
from dtorch.op.operand import Operand, Scalar
from dtorch.ops.standard.convert import Convert
from dtorch.spec import Spec
from dtorch.tensor import Tensor, distribute, wrap


def run(self: LogicalGraph, inputs: Sequence[torch.Tensor], graph: Graph | None) -> list[Tensor]:
    """`LogicalGraph.run`."""
    graph = graph or Graph.default_graph()
    wiring = self.wiring
    wiring.interface(None, None)
    numbers, wanted = wiring.inputs or [], wiring.outputs or []
    if len(inputs) != len(numbers):
        raise ShapeError(f"{len(inputs)} inputs for a graph of {len(numbers)}")
    with torch.no_grad(), torch._C._DisableAutocast():
        values = {
            number: _input(graph, i, tensor, wiring.outside[number])
            for i, (number, tensor) in enumerate(zip(numbers, inputs, strict=True))
        }
        for number, tensor in wiring.constants.items():
            values[number] = operand_of(tensor.clone(), wiring.outside[number].mesh)
        for in_backward, nodes in groupby(sorted(wiring.uses), key=lambda i: self.nodes[i].in_backward):
            calls = list(nodes)
            if in_backward:
                _inside_backward(partial(_call_all, graph, self, calls, values))
            else:
                _call_all(graph, self, calls, values)
    return [wrap(values[number], graph) for number in wanted]


def _input(graph: Graph, number: int, tensor: torch.Tensor, spec: Spec) -> Operand:
    if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.dtype:
        raise ShapeError(
            f"input {number} is {list(tensor.shape)} {tensor.dtype}, "
            f"{list(spec.shape)} {spec.dtype} was recorded"
        )
    if not isinstance(tensor, Tensor):
        tensor = distribute(tensor, spec.mesh, spec.layout, graph)
    operand: Any = tensor._operand
    if operand.spec.mesh != spec.mesh:
        raise MeshMismatchError(f"input {number} is on {operand.spec.mesh}, {spec.mesh} was recorded")
    if tensor._graph is not graph:
        tensor._graph.parts(operand)
    if operand.layout is spec.layout:
        return operand
    with graph.lock:
        return graph.constructor.convert(operand, spec.layout, keep=False, implicit=False)


def _call_all(graph: Graph, recorded: LogicalGraph, nodes: Iterable[int], values: dict[int, Operand]) -> None:
    for i in nodes:
        operator, use = recorded.nodes[i].operator, recorded.wiring.uses[i]
        operands: list[Any] = [Scalar(r.value) if isinstance(r, Free) else values[r] for r in use.reads]
        with graph.lock:
            if isinstance(operator, Convert):
                results: Sequence[Any] = [_convert(graph, operator, operands[0])]
            else:
                results = graph.constructor.add_operator(operator.param, operands)
        for number, result in zip(use.makes, results, strict=True):
            if number is not None and isinstance(result, Operand):
                values[number] = result


def _convert(graph: Graph, operator: Convert, operand: Any) -> Operand:
    target, implicit = operator.target, operator.implicit
    return graph.constructor.convert(operand, target, operator.target_mesh, keep=False, implicit=implicit)


def _inside_backward(function: Callable[[], None]) -> None:
    """Call a function while autograd runs a backward."""
    with torch.enable_grad():
        probe = torch.zeros((), requires_grad=True)
        probe.register_hook(lambda grad: function())
        torch.autograd.backward(probe * 1)


LogicalGraph.replayer = staticmethod(run)
