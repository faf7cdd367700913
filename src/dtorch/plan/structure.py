"""What two recorded sequences must share to run by one plan: operators, their wiring, what is wanted."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from dtorch.op.operand import Buffer, Operand
from dtorch.spec import Spec


class Structure:
    """A sequence with its operands numbered: outside ones first met first, then outputs in order.

    Attributes:
        key: hashable; equal keys mean that one plan serves.
        recipes: one per node.
        inputs: operand numbers of each node's inputs.
        outputs: operand numbers of each node's outputs.
        outside: specs of the operands from outside, None for a number; operand -1 is the first of them.
        parts: their parts, until a run takes them.
        sources: weak references to them.
        results: wanted operands and their numbers.
        places: where the user's program made each node.
        buffers: for the numbers of operands that have one, a weak reference to their buffer.
    """

    __slots__ = (
        "buffers",
        "inputs",
        "key",
        "outputs",
        "outside",
        "parts",
        "places",
        "recipes",
        "results",
        "sources",
    )

    def __init__(self, nodes: Sequence[Any], wanted: Sequence[Sequence[bool]]) -> None:
        made: dict[int, int] = {}
        self.outside: list[Spec | None] = []
        self.parts: list[Any] = []
        self.sources: list[weakref.ref[Operand]] = []
        self.results: list[tuple[int, Operand]] = []
        self.recipes = [node[0] for node in nodes]
        self.places = [node[3] for node in nodes]
        self.inputs: list[tuple[int, ...]] = []
        self.outputs: list[tuple[int, ...]] = []
        self.buffers: dict[int, weakref.ref[Buffer]] = {}
        key: list[Any] = []
        next_made = 0
        for (recipe, inputs, outputs, _), flags in zip(nodes, wanted, strict=True):
            wired = []
            for operand in inputs:
                number = made.get(id(operand))  # the nodes hold all operands, so no id is used twice
                if number is None:
                    number = made[id(operand)] = -1 - len(self.outside)
                    self.outside.append(operand.spec)
                    self.parts.append(operand.parts)
                    self.sources.append(weakref.ref(operand))
                    if operand.shared is not None:
                        self.buffers[number] = weakref.ref(operand.shared)
                wired.append(number)
            numbered = []
            for operand, flag in zip(outputs, flags, strict=True):
                made[id(operand)] = next_made
                numbered.append(next_made)
                if operand.shared is not None:
                    self.buffers[next_made] = weakref.ref(operand.shared)
                if flag:
                    self.results.append((next_made, operand))
                next_made += 1
            self.inputs.append(tuple(wired))
            self.outputs.append(tuple(numbered))
            key.append((recipe, self.inputs[-1], tuple(flags)))
        self.key = tuple(key)

    def aliases(self, number: int) -> Iterator[int]:
        """The operands that share storages with one, itself first."""
        yield number
        buffer = self.buffers.get(number)
        for other, reference in self.buffers.items():
            if other != number and reference == buffer:
                yield other
