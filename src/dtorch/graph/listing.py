"""Graphs as text: a line for each node, pending or collected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dtorch.graph.confirm import line_of
from dtorch.graph.pending import Node
from dtorch.op.describe import describe
from dtorch.op.operand import Scalar
from dtorch.op.operator import Operator
from dtorch.ops.standard.convert import Convert
from dtorch.spec import Spec


def listing(nodes: Sequence[Node]) -> str:
    """What is pending: the `line` of each node."""
    lines = []
    for number, (recipe, inputs, outputs, place) in enumerate(nodes):
        values = {i: o.parts.value for i, o in enumerate(inputs) if type(o) is Scalar}
        specs = [o.spec for o in inputs], [o.spec for o in outputs]
        lines.append(line(number, recipe.operator, numbers_in(values), *specs, place))
    return "\n".join(lines)


def line(
    number: int,
    operator: Operator,
    numbers: Mapping[int, Any],
    inputs: Iterable[Spec | None] | None,
    outputs: Iterable[Spec | None],
    place: Any,
) -> str:
    """Number, operator, placements, price, and the user's line, of one node.

    Args:
        number: of the node.
        operator: what it calls.
        numbers: those that the call gave beside tensors, by input.
        inputs: None to leave their placements out.
        outputs: of the call.
        place: where the user's program made it.
    """
    implicit = " (implicit)" if isinstance(operator, Convert) and operator.implicit else ""
    arrow = "" if inputs is None else f"{_placements(inputs)} -> "
    return (
        f"{number:4d}  {describe(operator, numbers)}{implicit}  {arrow}{_placements(outputs)}  "
        f"{operator.price()}  {line_of(place)}"
    )


def numbers_in(values: Mapping[int, Any]) -> dict[int, Any]:
    """Those of a call's plain values that are numbers, not generators or absent inputs."""
    return {i: value for i, value in values.items() if isinstance(value, (int, float))}


def _placements(specs: Iterable[Spec | None]) -> str:
    return ", ".join(str(list(spec.placements)) for spec in specs if spec is not None) or "-"
