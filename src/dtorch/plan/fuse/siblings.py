"""Regions beside each other become one: those that read the same, and those of equal structure.

    a = relu(x); b = x + 1                       x is read once
    p -= lr * dp; q -= lr * dq; ...              one call for the updates of many parameters

Neither feeds the other, so one of them has to move. Each has a window: behind the calls that it needs, before
those that need it. Where windows meet at a place where one of them runs, they may be one region there. What
has been moved counts with both places, the old and the new one: of the regions that are found, any may be
left out in the end, and the order of the others stays right.

A region that writes moves over no call that may fail for the values it is given: state is as it would be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from dtorch.op.param import TorchCall
from dtorch.plan.fuse import price
from dtorch.plan.fuse.candidate import Candidate
from dtorch.plan.passes.draft import Draft

MAX_INPUTS = 128
"""Operands of one region of siblings."""

REACH = 256
"""Regions looked at behind one that looks for siblings."""


@dataclass(frozen=True, eq=False)
class Part:
    """Calls that are a region, or may become part of one.

    Attributes:
        candidate: them alone, with the decision; of a single call, never to be fused.
        kind: equal for parts whose compiled code would be the same.
        operands: the numbers of tensors that they read from outside, or write.
    """

    candidate: Candidate
    kind: Any
    operands: frozenset[int]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The calls, in order."""
        return self.candidate.nodes

    @property
    def is_open(self) -> bool:
        """Whether it may be one with siblings."""
        return bool(self.candidate.unfused_ns) and not self.candidate.by_blocks


class Windows:
    """Between which places of a sequence calls may run.

    Args:
        draft: the sequence.
        parts: what may move.
    """

    def __init__(self, draft: Draft, parts: Sequence[Part]) -> None:
        self._draft = draft
        self._first = dict(draft.place)
        self._last = dict(draft.place)
        for part in parts:
            self._last.update(dict.fromkeys(part.nodes, draft.place[part.nodes[-1]]))
        self._barriers = [place for node, place in draft.place.items() if _may_fail(draft, node)]
        self._writers: dict[int, list[int]] = {}
        self._touch: dict[int, list[int]] = {}
        for node in draft.order:
            for memory in map(draft.memory, draft.written(node)):
                self._writers.setdefault(memory, []).append(node)
        for node in draft.order if self._writers else ():
            for memory in draft.read(node):
                if any(other in self._writers for other in draft.related(memory)):
                    self._touch.setdefault(memory, []).append(node)
        self._known: dict[tuple[int, ...], tuple[int, int]] = {}

    def of(self, nodes: tuple[int, ...]) -> tuple[int, int]:
        """The places between which calls may run as one, both excluded."""
        if nodes not in self._known:
            self._known[nodes] = self._of(nodes)
        return self._known[nodes]

    def move(self, nodes: tuple[int, ...], place: int) -> None:
        """Note that calls may run at another place, too."""
        for node in nodes:
            self._first[node] = min(self._first[node], place)
            self._last[node] = max(self._last[node], place)
        self._known.clear()

    def _of(self, nodes: tuple[int, ...]) -> tuple[int, int]:
        place, low, high, inside = self._draft.place, -1, len(self._draft.order), set(nodes)
        for node in nodes:
            for other in self._meeting(node):
                if other in inside:
                    continue
                if place[other] < place[node]:
                    low = max(low, self._last[other])
                else:
                    high = min(high, self._first[other])
        if any(self._draft.recipes[node].written for node in nodes):
            here = place[nodes[-1]]
            low = max([low, *(barrier for barrier in self._barriers if barrier < here)])
            high = min([high, *(barrier for barrier in self._barriers if barrier > here)])
        return low, high

    def _meeting(self, node: int) -> Iterator[int]:
        """The calls that must stay before or behind one."""
        draft = self._draft
        for number in draft.inputs[node]:
            maker = draft.maker.get(number)
            if maker is not None:
                yield maker
        for number in draft.outputs[node]:
            yield from draft.readers.get(number, ())
        if self._writers:
            for memory in draft.read(node):
                for other in draft.related(memory):
                    yield from self._writers.get(other, ())
            for memory in map(draft.memory, draft.written(node)):
                for other in draft.related(memory):
                    yield from self._touch.get(other, ())


def _may_fail(draft: Draft, node: int) -> bool:
    """Whether a call may fail for the values that it is given, as one does that looks up places."""
    operator = draft.operator(node)
    if not isinstance(operator.param, TorchCall):
        return operator.type != "Convert"
    return not (draft.recipes[node].views or torch.Tag.pointwise in operator.call.func.tags)


def part_of(draft: Draft, candidate: Candidate) -> Part:
    """A region as what siblings are looked for."""
    made = {number: i for i, number in enumerate(chain(*(draft.outputs[n] for n in candidate.nodes)))}
    kind = tuple(
        (
            draft.operator(node).name,
            tuple([made.get(number, draft.spec(number)) for number in draft.inputs[node]]),
        )
        for node in candidate.nodes
    )
    tensors = frozenset(n for n in candidate.inputs if draft.spec(n) is not None)
    return Part(candidate, kind, tensors)


def joined(
    draft: Draft,
    parts: Sequence[Part],
    decide: Callable[[tuple[int, ...]], Candidate],
    may_join: Callable[[int, int], bool],
    max_calls: int,
) -> list[Candidate]:
    """The regions, siblings as one where that pays; behind one that found none, the last that it was refused.

    Those of equal structure are priced together, since one more costs as much as another; those that read
    the same one by one.

    Args:
        draft: the sequence.
        parts: its regions, and calls that may be part of one, by the places of their last calls.
        decide: prices calls as one region.
        may_join: whether the same devices make two calls.
        max_calls: of one region.
    """
    windows, gone, refused = Windows(draft, parts), set[Part](), set[Any]()
    found: list[Candidate] = []
    for i, seed in enumerate(parts):
        if seed.candidate.by_blocks:
            found.append(seed.candidate)
        if seed in gone or not seed.is_open:
            continue
        behind = [part for part in parts[i + 1 : i + 1 + REACH] if may_join(seed.nodes[0], part.nodes[0])]
        behind = [part for part in behind if part not in gone and part.is_open]
        one = _Joining(draft, windows, decide, max_calls, seed)
        if seed.kind not in refused and not one.take_some([p for p in behind if p.kind == seed.kind]):
            refused.add(seed.kind)
        for part in behind:
            if part.kind != seed.kind and part.operands & one.operands:
                one.take([part])
        gone.update(one.taken)
        found += one.ended()
    return found


class _Joining:
    """A region while it takes siblings in."""

    def __init__(
        self,
        draft: Draft,
        windows: Windows,
        decide: Callable[[tuple[int, ...]], Candidate],
        max_calls: int,
        seed: Part,
    ) -> None:
        self._draft, self._windows, self._decide, self._max_calls = draft, windows, decide, max_calls
        self._candidate = seed.candidate
        self._place = draft.place[seed.nodes[-1]]
        self._refused: list[Candidate] = []
        self.operands = seed.operands
        self.taken = [seed]

    def take_some(self, others: Sequence[Part]) -> bool:
        """Take in as many of siblings of equal structure as pay: half of them, where all leave the caches."""
        while others:
            if self.take(others):
                return True
            others = others[: len(others) // 2]
        return not self._refused

    def take(self, others: Sequence[Part]) -> bool:
        """Take siblings in, as many of them as may be, if that pays; False if it does not."""
        taken, operands, place = list(self.taken), self.operands, self._place
        for other in others:
            fitting = self._fitting([*taken, other])
            if fitting is not None and len(operands | other.operands) <= MAX_INPUTS:
                taken, operands, place = [*taken, other], operands | other.operands, fitting
        new = taken[len(self.taken) :]
        if not new:
            return True
        nodes = sorted((node for part in taken for node in part.nodes), key=self._draft.place.__getitem__)
        together, alone = self._decide(tuple(nodes)), sum(part.candidate.best_ns for part in new)
        saved = self._candidate.best_ns + alone - together.fused_ns
        if not together.fused or saved * price.LEAST_SHARE < alone:
            why = (
                f"{len(taken)} siblings save {saved:,} ns as one call, of {alone:,} that they take beside it"
            )
            why += (
                f", less than one part in {price.LEAST_SHARE}" if together.fused else f"; {together.reason}"
            )
            self._refused = [replace(together, kind="siblings", fused=False, reason=why)]
            return False
        self.taken, self.operands, self._place, self._candidate = taken, operands, place, together
        return True

    def _fitting(self, parts: Sequence[Part]) -> int | None:
        """Where they may run as one, the last such place; None where they may not."""
        if sum(len(part.nodes) for part in parts) > self._max_calls:
            return None
        windows = [self._windows.of(part.nodes) for part in parts]
        low, high = max(window[0] for window in windows), min(window[1] for window in windows)
        places = [self._draft.place[part.nodes[-1]] for part in parts]
        return max((place for place in places if low < place < high), default=None)

    def ended(self) -> list[Candidate]:
        """What was decided."""
        if len(self.taken) == 1:
            own = [self._candidate] if len(self._candidate.nodes) > 1 else []
            return own + self._refused
        self._windows.move(self._candidate.nodes, self._place)
        saved = sum(part.candidate.best_ns for part in self.taken) - self._candidate.fused_ns
        reason = f"{len(self.taken)} siblings, as one call {saved:,} ns less; {self._candidate.reason}"
        at = self._draft.order[self._place]
        return [replace(self._candidate, kind="siblings", at=at, reason=reason)]
