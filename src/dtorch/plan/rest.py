"""What an interrupt left of a running sequence, as nodes that can be recorded again."""

from __future__ import annotations

from typing import Any

from dtorch.op.operand import Operand, Scalar
from dtorch.plan.structure import Structure


def rest(structure: Structure, start: int, values: dict[int, Any]) -> list[Any]:
    """The nodes from `start` on, their inputs holding what had been made.

    Args:
        structure: the sequence.
        start: the first node that has not run.
        values: parts by operand number, of everything made that the nodes read.
    """
    known: dict[int, Any] = dict(structure.results)
    specs = {
        number: (recipe.outputs or recipe.operator.outputs)[j].spec
        for recipe, numbers in zip(structure.recipes, structure.outputs, strict=True)
        for j, number in zip(recipe.kept, numbers, strict=True)
    }

    def operand(number: int) -> Any:
        found = known.get(number)
        if found is None and number < 0:
            found = structure.sources[-1 - number]()
        if found is None and number < 0 and structure.outside[-1 - number] is None:
            found = Scalar(values[number].value)
        if found is None:
            spec = specs[number] if number >= 0 else structure.outside[-1 - number]
            found = Operand(spec, values.get(number))  # type: ignore[arg-type]
        known[number] = found
        return found

    return [
        (
            structure.recipes[node],
            [operand(number) for number in structure.inputs[node]],
            tuple(operand(number) for number in structure.outputs[node]),
            structure.places[node],
        )
        for node in range(start, len(structure.recipes))
    ]
