"""A recorded sequence with its operands numbered, and what two of them must share to run by one plan.

Numbers 0, 1, ... are the outputs of the nodes in order; those behind them the operands from outside, first
read first. Numbering happens at each run, so it is left to C: a `map` instead of a loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from operator import gt
from sys import getrefcount
from typing import Any, NamedTuple

from dtorch.op.operand import Operand
from dtorch.spec import Spec

Flags = tuple[bool, ...]
"""For each output of a sequence, whether it is wanted."""


class Numbered:
    """Nodes about to run, their operands numbered.

    Attributes:
        key: hashable: recipes and wiring. A recipe tells how many inputs and outputs its node has.
        made: the outputs, by number.
        outside: the operands from outside, in the order of their numbers.
        numbers: of all operands.
        places: where the user's program made each node.
    """

    __slots__ = ("key", "made", "numbers", "outside", "places")

    def __init__(self, nodes: Iterable[Any]) -> None:
        recipes, inputs, outputs, self.places = zip(*nodes, strict=True)
        self.made: list[Operand] = list(chain.from_iterable(outputs))
        operands = [*self.made, *chain.from_iterable(inputs)]
        self.numbers: dict[Operand, int] = dict(zip(dict.fromkeys(operands), count(), strict=False))
        self.outside: list[Operand] = list(self.numbers)[len(self.made) :]
        self.key = recipes, tuple(map(self.numbers.__getitem__, operands[len(self.made) :]))

    def release(self) -> None:
        """Let go of the operands."""
        self.made.clear()
        self.outside.clear()
        self.numbers.clear()


class Selection(NamedTuple):
    """What of a sequence must run.

    Attributes:
        nodes: those that something wanted depends on, and those that write.
        wanted: numbers of the outputs that are.
        bound: numbers of the operands from outside that the nodes read.
    """

    nodes: tuple[int, ...]
    wanted: tuple[int, ...]
    bound: tuple[int, ...]


class Structure:
    """All that a key tells; equal keys have equal structures.

    Attributes:
        recipes: one per node.
        inputs, outputs: operand numbers of each node.
        num_made: number of outputs.
        outside: specs of the operands from outside, None for a number.
        reads: how often the nodes read each operand.
        idle: the reference count of each output that nothing but the nodes holds.
        roots: for each output that views another operand, the number of what owns the storages.
    """

    __slots__ = ("idle", "inputs", "num_made", "outputs", "outside", "reads", "recipes", "roots")

    def __init__(
        self,
        recipes: Sequence[Any],
        inputs: Sequence[tuple[int, ...]],
        outputs: Sequence[tuple[int, ...]],
        outside: list[Spec | None],
    ) -> None:
        self.recipes = recipes
        self.inputs = inputs
        self.outputs = outputs
        self.outside = outside
        self.num_made = sum(map(len, outputs))
        self.roots: dict[int, int] = {}
        for recipe, read, made in zip(recipes, inputs, outputs, strict=True):
            self._note_views(recipe, read, made)
        self.reads = Counter(chain.from_iterable(inputs))
        self.idle = [_IDLE + self.reads[number] for number in range(self.num_made)]

    @classmethod
    def of(cls, nodes: Sequence[Any], numbered: Numbered) -> Structure:
        """The structure of recorded nodes."""
        recipes, wiring = numbered.key
        read, made = iter(wiring), count()
        inputs = [tuple([next(read) for _ in node[1]]) for node in nodes]
        outputs = [tuple([next(made) for _ in node[2]]) for node in nodes]
        return cls(recipes, inputs, outputs, [operand.spec for operand in numbered.outside])

    def _note_views(self, recipe: Any, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        for j, number in zip(recipe.kept, outputs, strict=True):
            if recipe.outputs is not None and recipe.outputs[j].source == "view":
                base = inputs[recipe.outputs[j].input]
                self.roots[number] = self.roots.get(base, base)

    def drop_conversions(self, numbered: Numbered, converted: list[Operand]) -> list[Operand]:
        """Take their conversions from operands that only nodes hold, or these would look wanted.

        The list is emptied, since what it holds would look wanted too; those that keep theirs are returned.
        """
        held = {id(operand): operand for operand in converted}
        converted.clear()
        kept = []
        while held:
            operand = held.popitem()[1]
            number = numbered.numbers.get(operand, -1)
            listed = 0 if number < 0 else 3 if number < self.num_made else 2  # by its node, and by `numbered`
            # Here the operand has two more references: its variable and getrefcount's argument.
            if getrefcount(operand) - 2 <= listed + self.reads[number]:
                operand.converted = None
            else:
                kept.append(operand)
        return kept

    def dropped(self, numbered: Numbered) -> Iterator[int]:
        """Numbers of the operands from outside that nothing but the nodes holds."""
        for number, found in enumerate(map(getrefcount, numbered.outside), self.num_made):
            if found == _IDLE - 1 + self.reads[number]:  # no node lists it as an output
                yield number

    def wanted(self, numbered: Numbered) -> Flags:
        """Which outputs somebody beside the nodes holds, or a view of which somebody does.

        Of those the operand that owns the storages is wanted too, for a buffer keeps them.
        """
        flags = tuple(map(gt, map(getrefcount, numbered.made), self.idle))
        roots = {root for number, root in self.roots.items() if flags[number] and root < self.num_made}
        if all(flags[root] for root in roots):
            return flags
        return tuple([flag or number in roots for number, flag in enumerate(flags)])

    def select(self, flags: Flags) -> Selection:
        """What must run where these outputs are wanted."""
        needed = {number for number, flag in enumerate(flags) if flag}
        nodes = []
        for node in range(len(self.recipes) - 1, -1, -1):
            if self.recipes[node].written or not needed.isdisjoint(self.outputs[node]):
                needed.update(self.inputs[node])
                nodes.append(node)
        wanted = tuple([number for number, flag in enumerate(flags) if flag])
        return Selection(tuple(nodes[::-1]), wanted, tuple(sorted(n for n in needed if n >= self.num_made)))

    def spec(self, number: int) -> Spec | None:
        """The spec of an operand; None for a number."""
        if number >= self.num_made:
            return self.outside[number - self.num_made]
        node = next(node for node, numbers in enumerate(self.outputs) if number in numbers)
        recipe = self.recipes[node]
        j = recipe.kept[self.outputs[node].index(number)]
        return (recipe.outputs or recipe.operator.outputs)[j].spec

    def nbytes(self, numbers: Iterable[int]) -> int:
        """What some outputs hold, in bytes of global values: with each view all that it views."""
        roots = {self.roots.get(number, number) for number in numbers}
        return sum(spec.nbytes for root in roots if (spec := self.spec(root)) is not None)


def _references_of_a_node() -> int:
    """What `Structure.wanted` counts of an output that nothing but its node holds and nobody reads."""
    nodes: list[Any] = [(None, [], (object(),), None)]
    numbered = Numbered(nodes)
    return next(map(getrefcount, numbered.made))


_IDLE = _references_of_a_node()
