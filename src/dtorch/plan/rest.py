"""What an interrupt left of a running sequence, as nodes that can be recorded again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtorch.op.operand import Operand, Scalar
from dtorch.plan.running import Running


def rest(running: Running, nodes: Sequence[int], values: dict[int, Any]) -> list[Any]:
    """Nodes that have not run, their inputs holding what had been made.

    Args:
        running: the run they belong to.
        nodes: their numbers.
        values: parts by operand number, of everything made that the nodes read.
    """
    structure = running.structure
    known: dict[int, Any] = dict(running.results)

    def operand(number: int) -> Any:
        if number not in known:
            known[number] = _operand(running, number, values)
        return known[number]

    return [
        (
            structure.recipes[node],
            [operand(number) for number in structure.inputs[node]],
            tuple(operand(number) for number in structure.outputs[node]),
            running.places[node],
        )
        for node in nodes
    ]


def _operand(running: Running, number: int, values: dict[int, Any]) -> Any:
    spec = running.structure.spec(number)
    if spec is None:
        return Scalar(values[number].value)
    outside = number >= running.structure.num_made
    return (running.source(number) if outside else None) or Operand(spec, values.get(number))
