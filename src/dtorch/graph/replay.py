"""Running a recorded graph again, on other values: each of its calls is made anew, through a graph's door.

Conversions that operators imply are chosen anew, and are the same, since they depend on the calls alone. What
a backward had called is called inside a backward, where sums may stay pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from dtorch import redistribute
from dtorch.graph.conversion import convert
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.graph.wiring import Free
from dtorch.op.operand import Operand, Scalar
from dtorch.ops.standard.convert import Convert

if TYPE_CHECKING:
    from dtorch.graph.graph import Graph


def replay(graph: Graph, recorded: LogicalGraph, inputs: Sequence[Operand]) -> list[Operand]:
    """Make all calls of a recorded graph, whose interface is known.

    Args:
        graph: where.
        recorded: the graph.
        inputs: an operand for each of its inputs, with the spec of the recording.

    Returns:
        Its outputs.
    """
    wiring = recorded.wiring
    values = dict(zip(wiring.inputs or (), inputs, strict=True))
    for number, tensor in wiring.constants.items():
        spec = wiring.outside[number]
        values[number] = Operand(spec, redistribute.split(tensor, spec.layout, spec.mesh))
    for in_backward, group in groupby(sorted(wiring.uses), key=lambda i: recorded.nodes[i].in_backward):
        nodes = list(group)
        if in_backward:
            _inside_backward(partial(_call_all, graph, recorded, nodes, values))
        else:
            _call_all(graph, recorded, nodes, values)
    return [values[number] for number in wiring.outputs or ()]


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


def _convert(graph: Graph, operator: Convert, operand: Operand) -> Operand:
    mesh, implicit = operator.target_mesh, operator.implicit
    return convert(graph.constructor, operand, operator.target, mesh, keep=False, implicit=implicit)


def _inside_backward(function: Callable[[], None]) -> None:
    """Call a function while autograd runs a backward."""
    with torch.enable_grad():
        probe = torch.zeros((), requires_grad=True)
        probe.register_hook(lambda grad: function())
        torch.autograd.backward(probe * 1)
