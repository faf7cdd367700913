"""`LogicalGraph.run`: a recorded graph on other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.errors import MeshMismatchError, ShapeError
from dtorch.graph.conversion import convert
from dtorch.graph.graph import Graph
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.graph.replay import replay
from dtorch.op.operand import Operand
from dtorch.spec import Spec
from dtorch.tensor import Tensor, distribute, wrap


def run(self: LogicalGraph, inputs: Sequence[torch.Tensor], graph: Graph | None) -> list[Tensor]:
    """`LogicalGraph.run`."""
    graph = graph or Graph.default_graph()
    wiring = self.wiring
    wiring.interface(None, None)
    numbers = wiring.inputs or []
    if len(inputs) != len(numbers):
        taken = ", ".join(str(list(wiring.outside[number].shape)) for number in numbers)
        raise ShapeError(
            f"{len(inputs)} inputs for a graph of {len(numbers)}: it takes {taken}, in this order; "
            "`save(path, inputs=[...])` says which and in what order"
        )
    with torch.no_grad(), torch._C._DisableAutocast():
        operands = [
            _input(graph, i, tensor, wiring.outside[number])
            for i, (number, tensor) in enumerate(zip(numbers, inputs, strict=True))
        ]
        results = replay(graph, self, operands)
    return [wrap(result, graph) for result in results]


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
        return convert(graph.constructor, operand, spec.layout, keep=False, implicit=False)


LogicalGraph.replayer = staticmethod(run)
