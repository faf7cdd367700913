"""What two recorded sequences must share to run by one plan: operators, their wiring, what is wanted."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from dtorch.op.operand import Operand
from dtorch.spec import Spec


class Structure:
    """A sequence with its operands numbered: outside ones first met first, then outputs in order.

    Attributes:
        key: hashable; equal keys mean that one plan serves.
        recipes: one per node.
        inputs: operand numbers of each node's inputs; -1 for an absent one.
        outputs: operand numbers of each node's outputs.
        outside: specs of the operands from outside, None for a number; operand -1 is the first of them.
        parts: their parts, until a run takes them.
        sources: weak references to them.
        results: wanted operands and their numbers.
        places: where the user's program made each node.
    """

    __slots__ = ("inputs", "key", "outputs", "outside", "parts", "places", "recipes", "results", "sources")

    def __init__(self, nodes: Sequence[Any], wanted: Sequence[Sequence[bool]]) -> None:
        numbers: dict[int, int] = {}
        made: dict[int, int] = {}
        self.outside: list[Spec | None] = []
        self.parts: list[Any] = []
        self.sources: list[weakref.ref[Operand]] = []
        self.results: list[tuple[int, Operand]] = []
        self.recipes = [node[0] for node in nodes]
        self.places = [node[3] for node in nodes]
        self.inputs: list[tuple[int, ...]] = []
        self.outputs: list[tuple[int, ...]] = []
        key: list[Any] = []
        next_made = 0
        for (recipe, inputs, outputs, _), flags in zip(nodes, wanted, strict=True):
            wired = []
            for operand in inputs:
                name = id(operand)
                number = made.get(name)
                if number is None:
                    number = numbers.get(name)
                    if number is None:
                        number = numbers[name] = -1 - len(self.outside)
                        self.outside.append(operand.spec)
                        self.parts.append(operand.parts)
                        self.sources.append(weakref.ref(operand))
                wired.append(number)
            numbered = []
            for operand, flag in zip(outputs, flags, strict=True):
                made[id(operand)] = next_made
                numbered.append(next_made)
                if flag:
                    self.results.append((next_made, operand))
                next_made += 1
            self.inputs.append(tuple(wired))
            self.outputs.append(tuple(numbered))
            key.append((recipe, self.inputs[-1], tuple(flags)))
        self.key = tuple(key)
