"""A recorded graph as one operator.

    y, ... = the outputs of the graph

Shapes      those of the recording
FLOPs       the sum of its nodes, and so are bytes, sent bytes, and the prices of each device
Placements  those of the recording: inputs are brought to them, outputs come with theirs

It has no gradient, and the graph may neither write its inputs nor hold a backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from dtorch.errors import ShapeError, UnsupportedError
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.layout import Layout
from dtorch.op.call import OutputMeta
from dtorch.op.choice import Choice
from dtorch.op.cost import OperatorCost
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam
from dtorch.op.signature import PlacementSignature, Row
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


class SubGraph(Operator):
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

    def require_input_same_dtype(self) -> bool:
        """Each input has the dtype of the recording."""
        return False

    def check_input(self) -> None:
        """Shapes, dtypes and mesh are those of the recording."""
        super().check_input()
        specs = [None if x is None else x.spec for x in self.inputs]
        have = [None if s is None else (s.shape, s.dtype, s.mesh) for s in specs]
        want = [(s.shape, s.dtype, s.mesh) for s in self.given]
        if have != want:
            raise ShapeError(f"inputs {specs} for a graph that was recorded with {list(self.given)}")

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """As recorded."""
        return [OutputMeta(s.shape, s.stride, s.dtype) for s in self.made]

    def infer_output_size(self) -> int:
        """As recorded."""
        return len(self.made)

    def get_placement_signature(self) -> PlacementSignature:
        """One row for each mesh axis, that of the recording."""
        axes = range(self.mesh.ndim)
        rows = [
            Row(tuple(s.layout.role(a) for s in self.given), tuple(s.layout.role(a) for s in self.made))
            for a in axes
        ]
        return PlacementSignature(len(self.given), len(self.made), rows)

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """The layouts of the recording."""
        return Choice(tuple(s.layout for s in self.given), tuple(s.layout for s in self.made))

    def skip_placement_inference(self) -> bool:
        """Layouts are those of the recording, on one device too."""
        return False

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
