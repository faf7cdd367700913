"""Finds regions of a sequence, and decides by price which are to be fused.

Calls are looked at in their order. A call joins the regions that are open and that make or write what it
reads; a call that cannot be part of one closes those, since they must have run before it. What a region reads
from outside has been made before its last call, in whose place it runs; so a call that writes what an open
region reads closes it, too. Regions that do not feed each other may be joined afterwards (`siblings.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dtorch.plan.fuse import epilogue, price, rates, siblings
from dtorch.plan.fuse.blocked import is_product
from dtorch.plan.fuse.candidate import Candidate
from dtorch.plan.fuse.legality import local_stride, why_not
from dtorch.plan.passes import state
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.reuse import REUSE, dying

MAX_CALLS = 64
"""Calls of one region; compilers take long over more."""

_WRITTEN = "it writes what the region reads"


class _Group:
    """Calls of a region that is still open."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.ends = ""
        self.reads: set[int] = set()
        self.writes: set[int] = set()

    def take(self, nodes: list[int], reads: set[int], writes: set[int]) -> None:
        """Add calls, the memory that they read, and what they make or write."""
        self.nodes += nodes
        self.reads |= reads
        self.writes |= writes


def candidates(draft: Draft) -> list[Candidate]:
    """The regions of two calls and more, each with the decision and its reason, in order."""
    parts = []
    for nodes, ends in sorted(_regions(draft), key=lambda found: draft.place[found[0][-1]]):
        one = _decided(draft, nodes, ends)
        one = one if len(nodes) > 1 else replace(one, fused=False)
        parts.append(siblings.part_of(draft, epilogue.with_product(draft, one, rates.present())))
    return siblings.joined(
        draft,
        parts,
        lambda nodes: _decided(draft, nodes, ""),
        lambda node, other: _alike(draft, node, other),
        MAX_CALLS,
    )


def _regions(draft: Draft) -> list[tuple[tuple[int, ...], str]]:
    """Nodes of each region, and of each call that might be part of one, and what ends it."""
    group_of: dict[int, _Group] = {}
    is_open: dict[_Group, None] = {}

    def close(group: _Group, why: str) -> None:
        if is_open.pop(group, 0) is None:
            group.ends = why

    for node in draft.order:
        reads, writes = _memories(draft, node)
        given = [group for group in is_open if draft.meets(reads, group.writes)]
        held = [g for g in is_open if g not in given and draft.meets(writes, g.reads | g.writes)]
        why = why_not(draft, node)
        for group in [*held, *given] if why else held:
            close(group, f"ends before {draft.operator(node).kind_name()}: {why or _WRITTEN}")
        if why:
            continue
        mine = _Group()
        for group in given:
            if not _alike(draft, group.nodes[0], node):
                close(group, f"ends before {draft.operator(node).kind_name()}: other devices make its calls")
            elif len(group.nodes) + len(mine.nodes) >= MAX_CALLS:
                close(group, f"ends after {MAX_CALLS} calls")
            else:
                mine.take(group.nodes, group.reads, group.writes)
                del is_open[group]
        mine.take([node], reads, writes)
        is_open[mine] = None
        group_of.update(dict.fromkeys(mine.nodes, mine))
    found = {id(group): group for group in group_of.values()}
    return [(tuple(sorted(group.nodes, key=draft.place.__getitem__)), group.ends) for group in found.values()]


def _memories(draft: Draft, node: int) -> tuple[set[int], set[int]]:
    """The memory that a call reads, and what it makes or writes."""
    made = (*draft.outputs[node], *draft.written(node))
    return draft.read(node), {draft.memory(number) for number in made}


def _alike(draft: Draft, node: int, other: int) -> bool:
    """Whether the same devices make both calls, each for itself."""
    a, b = draft.recipes[node].program, draft.recipes[other].program
    return a.positions == b.positions and draft.operator(node).mesh == draft.operator(other).mesh


def _decided(draft: Draft, nodes: tuple[int, ...], ends: str) -> Candidate:
    inside = set(nodes)
    made = [number for node in nodes for number in draft.outputs[node]]
    read = dict.fromkeys(number for node in nodes for number in draft.inputs[node])
    inputs = tuple(number for number in read if number not in set(made))
    outputs = tuple(
        number
        for number in made
        if number in draft.wanted or not inside.issuperset(draft.readers.get(number, ()))
    )
    written = [n for n in inputs if any(n in draft.written(node) for node in nodes)]
    kind = _kind_of(draft, nodes, inputs)
    refused = "" if outputs or written else "nobody reads what it gives"
    refused = refused or _unknown_strides(draft, nodes, inputs)
    if refused:
        return Candidate(kind, nodes, nodes[-1], inputs, outputs, 0, 0, False, refused, False)
    operators = [draft.operator(node) for node in nodes]
    varying = [number for number in inputs if number not in draft.facts.constants]
    given, gives = [draft.spec(n) for n in varying], [draft.spec(n) for n in (*outputs, *written)]
    now, mesh, over = rates.present(), operators[0].mesh, [_is_over(draft, node) for node in nodes]
    positions = draft.recipes[nodes[0]].program.positions
    prices = [
        (
            price.unfused_ns(operators, over, coord, now),
            price.fused_ns(operators, given, [s for s in gives if s is not None], coord, now),
        )
        for coord in (mesh.coords[position] for position in positions)
    ]
    unfused, fused = sum(p[0] for p in prices), sum(p[1] for p in prices)
    worth = price.pays(unfused, fused)
    reason = ends or "ends with the sequence"
    reason += epilogue.why_apart(draft, inputs)
    if not worth:
        reason = price.REFUSED + reason
    return Candidate(kind, nodes, nodes[-1], inputs, outputs, unfused, fused, worth, reason, False)


def _is_over(draft: Draft, node: int) -> bool:
    """Whether a call that is left alone writes its result over an operand."""
    return state.present().runs(REUSE.name, REUSE.modes) and dying(draft, node) is not None


def _unknown_strides(draft: Draft, nodes: tuple[int, ...], inputs: tuple[int, ...]) -> str:
    program = draft.recipes[nodes[0]].program
    for number in inputs:
        spec = draft.spec(number)
        coords = draft.operator(nodes[0]).mesh.coords
        if spec is not None and any(local_stride(spec, coords[p]) is None for p in program.positions):
            return "what it reads is cut out of memory in a way that its spec does not tell"
    return ""


def _kind_of(draft: Draft, nodes: tuple[int, ...], inputs: tuple[int, ...]) -> str:
    names = {draft.operator(node).name for node in nodes}
    if names & {"aten._softmax", "aten._log_softmax", "aten.amax"}:
        return "softmax"
    if any(draft.operator(node).name in draft.operator(node).rowwise for node in nodes):
        return "norm"
    if any(is_product(draft, number) for number in inputs):
        return "epilogue"
    if any(draft.recipes[node].written for node in nodes):
        return "update"
    return "broadcast" if len(set(_shapes(draft, nodes))) > 1 else "chain"


def _shapes(draft: Draft, nodes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for node in nodes:
        yield from (shape for shape in draft.operator(node).shapes if shape)
