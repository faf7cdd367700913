"""What is pending, as text: a line for each call that was recorded and has not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtorch.graph.confirm import line_of
from dtorch.graph.pending import Node
from dtorch.ops.standard.convert import Convert


def listing(nodes: Sequence[Node]) -> str:
    """Number, operator, placements of inputs and outputs, price, and the user's line, of each node."""
    lines = []
    for number, (recipe, inputs, outputs, place) in enumerate(nodes):
        operator = recipe.operator
        implicit = " (implicit)" if isinstance(operator, Convert) and operator.implicit else ""
        given, made = _placements(inputs), _placements(outputs)
        lines.append(
            f"{number:4d}  {operator.describe()}{implicit}  {given} -> {made}  "
            f"{operator.price()}  {line_of(place)}"
        )
    return "\n".join(lines)


def _placements(operands: Sequence[Any]) -> str:
    return ", ".join(str(list(o.spec.placements)) for o in operands if o.spec is not None) or "-"
