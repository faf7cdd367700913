"""Several calls as one operator, whose intermediate results never leave it.

    y, ... = the results of the calls that somebody else reads

Shapes      those of the calls
FLOPs       the sum of the calls; fusing uses no algebra
Bytes       those of the operands that cross its border
Placements  those of the calls: inputs are brought to them, outputs come with theirs

It has no gradient: passes make it where gradients have long been recorded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from dtorch.op import document, records
from dtorch.op.cost import OperatorCost
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam
from dtorch.op.priced import touched
from dtorch.op.recorded import Recorded
from dtorch.op.serialize import Reader, check_body
from dtorch.spec import Spec


class FuseParam(OpParam, frozen=True):
    """The calls and their wiring, as `plan/serialize.py` writes a plan."""

    calls: str


class Fuse(Recorded):
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
