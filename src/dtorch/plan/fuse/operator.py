"""Several calls as one operator, whose intermediate results never leave it.

    y, ... = the results of the calls that somebody else reads

Shapes      those of the calls
FLOPs       the sum of the calls; fusing uses no algebra
Bytes       those of the operands that cross its border
Placements  those of the calls: inputs are brought to them, outputs come with theirs

It has no gradient: passes make it where gradients have long been recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from dtorch.errors import ShapeError
from dtorch.layout import Layout
from dtorch.op import document, records
from dtorch.op.call import OutputMeta
from dtorch.op.choice import Choice
from dtorch.op.cost import OperatorCost
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam
from dtorch.op.priced import touched
from dtorch.op.serialize import Reader, check_body
from dtorch.op.signature import PlacementSignature, Row
from dtorch.spec import Spec


class FuseParam(OpParam, frozen=True):
    """The calls and their wiring, as `plan/serialize.py` writes a plan."""

    calls: str


class Fuse(Operator):
    """Makes the calls of a region, one after the other where it is not compiled."""

    param: FuseParam

    @cached_property
    def _file(self) -> records.Document:
        file = document.from_json(self.param.calls)
        check_body(file, records.PlanBody)
        return file

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._file)

    @property
    def body(self) -> records.PlanBody:
        """The calls by number, what they read from outside, what they give."""
        body = self._file.body
        assert isinstance(body, records.PlanBody)
        return body

    @cached_property
    def calls(self) -> tuple[Operator, ...]:
        """The operators, in order."""
        return tuple(self._reader.operators[node.operator] for node in self.body.nodes)

    @cached_property
    def given(self) -> tuple[Spec | None, ...]:
        """Specs of the inputs; None for numbers."""
        return tuple(self._reader.maybe(spec) for spec in self.body.outside)

    @cached_property
    def made(self) -> tuple[Spec, ...]:
        """Specs of the outputs."""
        specs: dict[int, Spec] = {}
        for node, operator in zip(self.body.nodes, self.calls, strict=True):
            for number, j in zip(node.outputs, node.kept, strict=True):
                output = operator.outputs[j]
                assert output is not None
                specs[number] = output.spec
        return tuple(specs[number] for number in self.body.results)

    @cached_property
    def dominant(self) -> Operator:
        """The call with the most FLOPs, else with the most bytes; the first of several."""
        prices = [(op.flops() or 0, op.traffic_bytes()) for op in self.calls]
        return self.calls[prices.index(max(prices))]

    def parameters(self) -> dict[str, Any]:
        """How many calls, and which one dominates."""
        return {"calls": len(self.calls), "dominant": self.dominant.kind_name()}

    def require_input_same_dtype(self) -> bool:
        """Each input has the dtype of the calls."""
        return False

    def check_input(self) -> None:
        """Shapes, dtypes and mesh are those of the calls."""
        super().check_input()
        specs = [None if x is None else x.spec for x in self.inputs]
        have = [None if s is None else (s.shape, s.dtype, s.mesh) for s in specs]
        want = [None if s is None else (s.shape, s.dtype, s.mesh) for s in self.given]
        if have != want:
            raise ShapeError(f"inputs {specs} for calls on {list(self.given)}")

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """As the calls give them."""
        return [OutputMeta(s.shape, s.stride, s.dtype) for s in self.made]

    def infer_output_size(self) -> int:
        """As many as somebody else reads."""
        return len(self.made)

    def get_placement_signature(self) -> PlacementSignature:
        """One row for each mesh axis, that of the calls."""
        rows = [
            Row(
                tuple(None if s is None else s.layout.role(axis) for s in self.given),
                tuple(s.layout.role(axis) for s in self.made),
            )
            for axis in range(self.mesh.ndim)
        ]
        return PlacementSignature(len(self.given), len(self.made), rows)

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """The layouts of the calls."""
        return Choice(
            tuple(None if s is None else s.layout for s in self.given), tuple(s.layout for s in self.made)
        )

    def skip_placement_inference(self) -> bool:
        """Layouts are those of the calls, on one device too."""
        return False

    def flops(self) -> int | None:
        """The sum of the calls; None where none has any."""
        found = [n for operator in self.calls if (n := operator.flops()) is not None]
        return sum(found) if found else None

    def get_operator_cost(self) -> OperatorCost:
        """FLOPs of the calls, bytes that cross the border."""
        border, flops = sum(map(touched, (*self.inputs, *self.outputs))), self.flops()
        return (
            OperatorCost.memory(border) if flops is None else OperatorCost.compute_and_memory(flops, border)
        )

    @cached_property
    def _local_prices(self) -> tuple[OperatorCost, ...]:
        """For each device its FLOPs in the calls, and its share of the border."""
        found = []
        for coord in self.priced_mesh.coords:
            here = self.at(coord)
            border = sum(map(touched, (*here.inputs, *here.outputs)))
            inner = [operator.local_price(coord) for operator in self.calls]
            flops = [cost.flops for cost in inner if cost.flops is not None]
            cost = (
                OperatorCost.compute_and_memory(sum(flops), border) if flops else OperatorCost.memory(border)
            )
            found.append(replace(cost, traffic_bytes=border))
        return tuple(found)
