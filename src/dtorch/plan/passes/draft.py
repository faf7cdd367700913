"""A recorded sequence while passes rewrite it.

Numbers of nodes and operands stay what they were recorded as: a rewrite leaves nodes out, lets them read
other operands, gives them other recipes, or moves them. So what is wanted keeps its number, and every node
the line of the user's program that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from dtorch.op.operator import Operator
from dtorch.plan.facts import NONE, Facts
from dtorch.plan.structure import Selection, Structure
from dtorch.spec import Spec

OUTSIDE = -1
"""Stands for the storages of all operands from outside, any two of which may be views of one tensor."""


class Change(NamedTuple):
    """One rewrite.

    Attributes:
        by: name of the pass.
        node: the node it was found at.
        before, after: the operators concerned; one that is gone is not among those after.
        why: what was found.
    """

    by: str
    node: int
    before: tuple[Operator, ...]
    after: tuple[Operator, ...]
    why: str


class Draft:
    """What is to run of a sequence, rewritten step by step.

    Attributes:
        prepare: makes an operator runnable, as a runner does; set by the runner.
        recipes, inputs: of each node, as rewritten.
        outputs: operand numbers of each node.
        order: the nodes that run.
        wanted: numbers of the outputs that are.
        maker: operand number -> the node in `order` that makes it.
        changes: what has been done.
        mode: "exact", "fast" or "off".
        ready: regions that are compiled, by the nodes of their candidate.
        candidates: the regions that were found.
        waiting: those that are to be compiled.
        fused: those that run compiled, by their last node.
        facts: what is known beside the structure.
    """

    prepare: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        structure: Structure,
        selection: Selection,
        mode: str = "exact",
        ready: Mapping[tuple[int, ...], Any] = {},
        facts: Facts = NONE,
    ) -> None:
        self.recorded = structure
        self.facts = facts
        self.mode = mode
        self.ready = ready
        self.candidates: list[Any] = []
        self.waiting: list[Any] = []
        self.fused: dict[int, Any] = {}
        self.recipes = list(structure.recipes)
        self.inputs = list(structure.inputs)
        self.outputs = structure.outputs
        self.order = list(selection.nodes)
        self.wanted = selection.wanted
        self.maker = {number: node for node in self.order for number in self.outputs[node]}
        self.changes: list[Change] = []
        self._stale = True

    # -- looking --------------------------------------------------------------------------------------------

    @property
    def place(self) -> dict[int, int]:
        """Where in `order` a node is."""
        self._look()
        return self._place

    @property
    def readers(self) -> dict[int, list[int]]:
        """The nodes that read an operand, in order."""
        self._look()
        return self._readers

    @property
    def _writers(self) -> dict[int, list[int]]:
        """The nodes that write into the storages of a root, in order."""
        self._look()
        return self._writing

    @property
    def _members(self) -> dict[int, list[int]]:
        """The operands made here that share the storages of a root."""
        self._look()
        return self._sharing

    def _look(self) -> None:
        """Work out who reads what, where, and what shares storages, if something has changed."""
        if not self._stale:
            return
        self._stale = False
        self._place = {node: i for i, node in enumerate(self.order)}
        self._readers: dict[int, list[int]] = {}
        self._roots: dict[int, int] = {}
        self._sharing: dict[int, list[int]] = {}
        self._writing: dict[int, list[int]] = {}
        for node in self.order:
            recipe, inputs = self.recipes[node], self.inputs[node]
            for number in dict.fromkeys(inputs):
                self._readers.setdefault(number, []).append(node)
            for j, number in zip(recipe.kept, self.outputs[node], strict=True):
                plan = None if recipe.outputs is None else recipe.outputs[j]
                base = None if plan is None or plan.source != "view" else self._root(inputs[plan.input])
                self._roots[number] = number if base is None else base
                self._sharing.setdefault(self._roots[number], []).append(number)
            for i in recipe.written:
                self._writing.setdefault(self._root(inputs[i]), []).append(node)
        self._kept = {self._root(number) for number in self.wanted}

    def root(self, number: int) -> int:
        """The operand that owns the storages of another; `OUTSIDE` if it is none that a node here makes."""
        self._look()
        return self._root(number)

    def _root(self, number: int) -> int:
        return self._roots.get(number, OUTSIDE)

    def memory(self, number: int) -> int:
        """Names the memory of an operand: its root, or one from outside that lies apart, or `OUTSIDE`."""
        root = self.root(number)
        if root == OUTSIDE:
            base = self.recorded.roots.get(number, number)
            return base if base in self.facts.apart else OUTSIDE
        return root

    def read(self, node: int) -> set[int]:
        """The memories that a call reads."""
        return {self.memory(number) for number in self.inputs[node] if self.spec(number) is not None}

    def written(self, node: int) -> list[int]:
        """The operands that a call writes."""
        return [self.inputs[node][i] for i in self.recipes[node].written]

    def related(self, memory: int) -> Iterator[int]:
        """The memories that one may have something in common with, itself among them."""
        yield memory
        if memory == OUTSIDE:
            yield from self.facts.apart
        elif memory in self.facts.apart:
            yield OUTSIDE

    def meets(self, ours: set[int], theirs: set[int]) -> bool:
        """Whether two sets of memories, as `memory` names them, may have some in common."""
        if not ours.isdisjoint(theirs):
            return True
        apart = self.facts.apart
        return (OUTSIDE in ours and not apart.isdisjoint(theirs)) or (
            OUTSIDE in theirs and not apart.isdisjoint(ours)
        )

    def is_written(self, number: int) -> bool:
        """Whether a node here writes into the storages of an operand."""
        return self.root(number) in self._writers

    def written_between(self, number: int, first: int, last: int) -> bool:
        """Whether a node behind `first` and before `last` writes into the storages of an operand."""
        low, high = self.place[first], self.place[last]
        return any(low < self.place[node] < high for node in self._writers.get(self.root(number), ()))

    def writes_before(self, number: int, node: int) -> int:
        """How many nodes before `node` write into the storages of an operand."""
        return sum(self.place[w] < self.place[node] for w in self._writers.get(self.root(number), ()))

    def is_temporary(self, number: int) -> bool:
        """Whether nobody but the nodes sees an operand that a node here makes, or a view of it."""
        root = self.root(number)
        return root != OUTSIDE and root not in self._kept

    def aliases(self, number: int) -> list[int]:
        """The operands made here that share storages with one made here, itself among them."""
        return self._members.get(self.root(number), [])

    def sole_reader(self, number: int) -> int | None:
        """The one node that reads an operand; None for no or several ones."""
        readers = self.readers.get(number, ())
        return readers[0] if len(readers) == 1 else None

    def spec(self, number: int) -> Spec | None:
        """The spec of an operand, as rewritten; None for a number."""
        node = self.maker.get(number)
        if node is None:
            return self.recorded.spec(number)
        recipe = self.recipes[node]
        j = recipe.kept[self.outputs[node].index(number)]
        return (recipe.outputs or recipe.operator.outputs)[j].spec

    def operator(self, node: int) -> Operator:
        """The operator of a node."""
        return self.recipes[node].operator

    # -- rewriting ------------------------------------------------------------------------------------------

    def drop(self, node: int) -> None:
        """Leave a node out."""
        self.order.remove(node)
        for number in self.outputs[node]:
            del self.maker[number]
        self._stale = True

    def read_instead(self, old: int, new: int) -> None:
        """Let everything that reads one operand read another."""
        for node in self.readers.get(old, ()):
            self.inputs[node] = tuple([new if number == old else number for number in self.inputs[node]])
        self._stale = True

    def rewrite(self, node: int, recipe: Any, inputs: Iterable[int]) -> None:
        """Give a node another recipe and other inputs."""
        self.recipes[node], self.inputs[node] = recipe, tuple(inputs)
        self._stale = True

    def move(self, node: int, place: int) -> None:
        """Let a node run at another place of `order`, counted without it."""
        self.order.remove(node)
        self.order.insert(place, node)
        self._stale = True

    def fuse(self, call: Any) -> None:
        """Let the calls of a region run as one, in the place that was found for them."""
        nodes, at = call.candidate.nodes, self.order.index(call.candidate.at)
        inside = set(nodes)
        before, behind = self.order[:at], self.order[at:]
        self.order = [n for n in before if n not in inside]
        self.order += [*nodes, *(n for n in behind if n not in inside)]
        self.fused[nodes[-1]] = call
        self._stale = True

    def is_fused(self, node: int) -> bool:
        """Whether a node runs as part of a region."""
        return any(node in call.candidate.nodes for call in self.fused.values())

    # -- what comes out -------------------------------------------------------------------------------------

    def result(self) -> tuple[Structure, Selection]:
        """The sequence as rewritten, and what of it runs."""
        if not self.changes and not self.fused:
            structure = self.recorded
        else:
            first = self.recorded.num_made
            outside = self.recorded.outside
            structure = Structure(self.recipes, self.inputs, self.outputs, outside)
            assert structure.num_made == first
        made = {number for node in self.order for number in self.outputs[node]}
        read = {number for node in self.order for number in self.inputs[node]}
        bound = (read | set(self.wanted)) - made
        return structure, Selection(tuple(self.order), self.wanted, tuple(sorted(bound)))
