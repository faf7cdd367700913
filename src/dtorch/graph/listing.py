"""Graphs as text: a line for each node, pending or collected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dtorch.graph.confirm import line_of
from dtorch.graph.pending import Node
from dtorch.op.operator import Operator
from dtorch.ops.standard.convert import Convert
from dtorch.spec import Spec


def listing(nodes: Sequence[Node]) -> str:
    """What is pending: the `line` of each node."""
    return "\n".join(
        line(number, recipe.operator, [o.spec for o in inputs], [o.spec for o in outputs], place)
        for number, (recipe, inputs, outputs, place) in enumerate(nodes)
    )


def line(
    number: int, operator: Operator, inputs: Iterable[Spec | None], outputs: Iterable[Spec | None], place: Any
) -> str:
    """Number, operator, placements of inputs and outputs, price, and the user's line, of one node."""
    implicit = " (implicit)" if isinstance(operator, Convert) and operator.implicit else ""
    return (
        f"{number:4d}  {operator.describe()}{implicit}  {_placements(inputs)} -> {_placements(outputs)}  "
        f"{operator.price()}  {line_of(place)}"
    )


def _placements(specs: Iterable[Spec | None]) -> str:
    return ", ".join(str(list(spec.placements)) for spec in specs if spec is not None) or "-"
