"""A recorded graph as one operator.

    y, ... = the outputs of the graph

Shapes      those of the recording
FLOPs       the sum of its nodes, and so are bytes, sent bytes, and the prices of each device
Placements  those of the recording: inputs are brought to them, outputs come with theirs

It has no gradient, and the graph may neither write its inputs nor hold a backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dtorch.errors import UnsupportedError
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.op.cost import OperatorCost
from dtorch.op.param import OpParam
from dtorch.op.recorded import Recorded
from dtorch.spec import Spec


class SubGraphParam(OpParam, frozen=True):
    """The graph, as `LogicalGraph.to_json` writes it."""

    graph: str


def as_param(
    graph: LogicalGraph, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None
) -> SubGraphParam:
    """A recorded graph as the parameters of one operator.

    Args:
        graph: what was recorded.
        inputs, outputs: as for `LogicalGraph.save`.

    Raises:
        UnsupportedError: the graph writes an input, or holds a backward.
        SerializationError: as `LogicalGraph.save`.
    """
    wiring = graph.wiring
    wiring.interface(inputs, outputs)
    for number, use in wiring.uses.items():
        node = graph.nodes[number]
        if node.in_backward:
            raise UnsupportedError(f"a backward is no part of a sub-graph: {node.operator.describe()}")
        if any(made in wiring.outside for made in use.makes):
            raise UnsupportedError(f"a sub-graph does not write its inputs: {node.operator.describe()} does")
    return SubGraphParam(graph.to_json())


class SubGraph(Recorded):
    """Runs a recorded graph."""

    param: SubGraphParam

    @cached_property
    def inner(self) -> LogicalGraph:
        """The graph."""
        return LogicalGraph.from_json(self.param.graph)

    @cached_property
    def given(self) -> tuple[Spec, ...]:
        """Specs of the inputs."""
        return tuple(self.inner.wiring.outside[number] for number in self.inner.wiring.inputs or ())

    @cached_property
    def made(self) -> tuple[Spec, ...]:
        """Specs of the outputs."""
        return tuple(self.inner.wiring.results[number] for number in self.inner.wiring.outputs or ())

    def parameters(self) -> dict[str, Any]:
        """The number of nodes; the graph itself is too long for a line."""
        return {"nodes": len(self.inner)}

    def get_operator_cost(self) -> OperatorCost:
        """The sum of the nodes."""
        return self.inner.cost()

    def price(self) -> OperatorCost:
        """The sum of the nodes, with all that stands beside it."""
        return self.inner.cost()

    @cached_property
    def _local_prices(self) -> tuple[OperatorCost, ...]:
        """For each device the sum of what it does in the nodes."""
        mesh, operators = self.priced_mesh, self.inner.operators
        here = [operator for operator in operators if operator.priced_mesh == mesh]
        return tuple(
            sum((operator.local_price(coord) for operator in here), OperatorCost()) for coord in mesh.coords
        )
