"""What became of a recorded sequence when its plan was written, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from dtorch.op.operator import Operator
from dtorch.plan.fuse.candidate import fuse_of

if TYPE_CHECKING:
    from dtorch.plan.codegen import Plan


class Total(NamedTuple):
    """What calls cost together.

    Attributes:
        calls: how many.
        collectives: how many of them send.
        sent: bytes received by all devices together.
        touched: bytes of global values that are read and written.
    """

    calls: int
    collectives: int
    sent: int
    touched: int

    @classmethod
    def of(cls, operators: Iterable[Operator]) -> Total:
        """The sum over operators."""
        prices = [operator.price() for operator in operators]
        sent = [price.sent_bytes or 0 for price in prices]
        touched = sum(price.traffic_bytes or 0 for price in prices)
        return cls(len(prices), sum(n > 0 for n in sent), sum(sent), touched)


def before(plan: Plan) -> Total:
    """All that was recorded."""
    return Total.of(recipe.operator for recipe in plan.asked[0].recipes)


def after(plan: Plan) -> Total:
    """What runs."""
    return Total.of(plan.operators)


def explain(plan: Plan) -> str:
    """The costs before and after, and pass by pass what was done: `-` a call as it was, `+` as it is now."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    (recorded, selection), was, now = plan.asked, before(plan), after(plan)
    yield f"plan of {was.calls} recorded calls: {now.calls} run"
    yield f"  sends    {was.collectives} x, {was.sent:,} bytes -> {now.collectives} x, {now.sent:,} bytes"
    yield f"  touches  {was.touched:,} -> {now.touched:,} bytes"
    unseen = sorted(set(range(len(recorded.recipes))).difference(selection.nodes))
    if unseen:
        yield f"dead: {len(unseen)} whose results nobody sees"
        yield from (f"  - {text_of(recorded.recipes[node].operator)}" for node in unseen)
    for name, changes in groupby(plan.rewritten.changes, lambda change: change.by):
        yield f"{name}:"
        for change in changes:
            yield f"  call {change.node}: {change.why}"
            if change.before != change.after:
                yield from (f"  - {text_of(operator)}" for operator in change.before)
                yield from (f"  + {text_of(operator)}" for operator in change.after)
    if plan.rewritten.candidates:
        yield "fusion:"
    for candidate in plan.rewritten.candidates:
        yield from _decision(plan, candidate)


def _decision(plan: Plan, candidate: Any) -> Iterator[str]:
    """A region: its price, what was decided, why."""
    nodes = candidate.nodes
    what = f"{candidate.kind} of {len(nodes)} calls, {nodes[0]} to {nodes[-1]}"
    price = f"{candidate.unfused_ns / 1000:,.1f} -> {candidate.fused_ns / 1000:,.1f} us"
    calls = [call for call in plan.rewritten.fused.values() if call.candidate.nodes == nodes]
    state = "is left as it is" if not candidate.fused else "waits to be compiled"
    if calls:
        state = "runs as one call"
    elif nodes in plan.refused:
        state = f"is left as it is: {plan.refused[nodes]}"
    yield f"  {what}: {state}"
    yield f"    {price}; {candidate.reason}"
    if calls:
        yield from (f"  - {text_of(plan.structure.recipes[node].operator)}" for node in nodes)
        yield f"  + {text_of(fuse_of(plan.structure, candidate))}"


def text_of(operator: Operator) -> str:
    """One line: the call, and how its inputs and outputs are placed."""
    sides = [
        " ".join(str(list(operand.spec.placements)) for operand in operands if operand is not None)
        for operands in (operator.inputs, operator.outputs)
    ]
    return f"{operator.describe()}  {' -> '.join(sides)}"
