"""Operands for what a replay made: results, gradients, and what both are views of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dtorch.op.operand import Operand, Parts

if TYPE_CHECKING:
    from dtorch.replay.program import Program


class Outputs:
    """New operands for what one replay made; views share the buffer of what they view."""

    def __init__(
        self, program: Program, arguments: Sequence[Any], made: dict[int, Parts], beside: list[Parts]
    ) -> None:
        self.program = program
        self.arguments = arguments
        self.made = made
        self.beside = beside
        self.found: dict[int, Operand] = {}
        self.found_beside: dict[int, Operand] = {}

    def operand(self, number: int) -> Operand:
        """The operand of an output."""
        if number not in self.found:
            program = self.program
            spec, root = program.specs[number], program.structure.roots.get(number)
            buffer = None if root is None else self._root(root).buffer
            offset = program.offsets.get(number, 0)
            operand = Operand(spec, None, buffer, offset)  # type: ignore[arg-type]
            self.found[number] = operand.give(self.made[number])
        return self.found[number]

    def _root(self, number: int) -> Operand:
        if number < self.program.structure.num_made:
            return self.operand(number)
        source = self.program.sources[number]
        return self.made_beside(source.which) if source.kind == "made" else source.operand(self.arguments)

    def made_beside(self, number: int) -> Operand:
        """The operand of what was made beside the graph."""
        if number not in self.found_beside:
            spec = self.program.tape.made[number].spec
            self.found_beside[number] = Operand(spec, self.beside[number])
        return self.found_beside[number]
