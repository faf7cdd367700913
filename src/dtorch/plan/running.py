"""One run of a sequence: what it reads, whom it gives what it makes, and what it must be able to spoil."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from dtorch.op.operand import Buffer, Operand
from dtorch.plan.structure import Flags, Numbered, Selection, Structure


class Running:
    """A sequence that runs; it holds no value but those it is still to read, and wanted operands.

    Attributes:
        structure: of the sequence.
        selection: what of it runs.
        parts: of the operands from outside that are read, in order of `selection.bound`; emptied by a run.
        results: wanted operands by number.
        places: where the user's program made each node.
    """

    __slots__ = ("_buffers", "_sources", "parts", "places", "results", "selection", "structure")

    def __init__(self, structure: Structure, selection: Selection, numbered: Numbered, flags: Flags) -> None:
        self.structure = structure
        self.selection = selection
        made, outside, first = numbered.made, numbered.outside, structure.num_made
        self.places = numbered.places
        self.results = {number: made[number] for number in selection.wanted if flags[number]}
        bound = [outside[number - first] for number in selection.bound]
        self.parts = [operand.parts for operand in bound]
        self._sources = list(map(weakref.ref, bound))
        self._buffers = [None if operand.shared is None else weakref.ref(operand.shared) for operand in bound]

    def values(self) -> dict[int, Any]:
        """What there is before the first node runs, by number; taken from `parts`."""
        parts, self.parts = self.parts, []
        return dict(zip(self.selection.bound, parts, strict=True))

    def source(self, number: int) -> Operand | None:
        """An operand from outside, if it still exists."""
        return self._sources[self.selection.bound.index(number)]()

    def buffer(self, number: int) -> Buffer | None:
        """The buffer of an operand's storages, if it has one that still exists."""
        root = self._root(number)
        if root < self.structure.num_made:
            operand = self.results.get(root)  # wanted, if any view of it is
            return None if operand is None else operand.shared
        reference = self._reference(root)
        return None if reference is None else reference()

    def aliases(self, number: int) -> Iterator[int]:
        """The operands that share storages with one, itself first."""
        yield number
        root = self._root(number)
        reference = self._reference(root)
        made = (n for node in self.selection.nodes for n in self.structure.outputs[node])
        for other in (*made, *self.selection.bound):
            theirs = self._root(other)
            same = reference is not None and self._reference(theirs) == reference
            if other != number and (theirs == root or same):
                yield other

    def _root(self, number: int) -> int:
        return self.structure.roots.get(number, number)

    def _reference(self, root: int) -> weakref.ref[Buffer] | None:
        """A reference to the buffer of an operand from outside; others' buffers are told by their root."""
        if root < self.structure.num_made or root not in self.selection.bound:
            return None
        return self._buffers[self.selection.bound.index(root)]
