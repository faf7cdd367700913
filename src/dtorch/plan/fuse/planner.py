"""Finds regions of a sequence, and decides by price which are to be fused.

Calls are looked at in their order. A call joins the regions that are open and whose results it reads; a call
that cannot be part of one closes those that it reads, since they must have run before it. What a region reads
from outside has been made before its last call, in whose place it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from dtorch.plan.fuse import price, rates
from dtorch.plan.fuse.candidate import Candidate
from dtorch.plan.fuse.legality import REDUCTIONS, local_stride, why_not
from dtorch.plan.passes import state
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.reuse import REUSE, dying

MAX_CALLS = 64
"""Calls of one region; compilers take long over more."""

PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.linear"})


class _Group:
    """Calls of a region that is still open."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.ends = ""


def candidates(draft: Draft) -> list[Candidate]:
    """The regions of two calls and more, each with the decision and its reason, in order."""
    return [_decided(draft, nodes, ends) for nodes, ends in _regions(draft)]


def _regions(draft: Draft) -> list[tuple[tuple[int, ...], str]]:
    """Nodes of each region, and what ends it."""
    group_of: dict[int, _Group] = {}
    is_open: dict[_Group, None] = {}

    def close(group: _Group, why: str) -> None:
        if is_open.pop(group, 0) is None:
            group.ends = why

    for node in draft.order:
        read = [group_of[m] for n in draft.inputs[node] if (m := draft.maker.get(n)) in group_of]
        read = [group for group in dict.fromkeys(read) if group in is_open]
        why = why_not(draft, node)
        if why:
            for group in list(is_open) if draft.recipes[node].written else read:
                close(group, f"ends before {draft.operator(node).kind_name()}: {why}")
            continue
        mine = _Group()
        for group in read:
            if not _alike(draft, group.nodes[0], node):
                close(group, f"ends before {draft.operator(node).kind_name()}: other devices make its calls")
            elif len(group.nodes) + len(mine.nodes) >= MAX_CALLS:
                close(group, f"ends after {MAX_CALLS} calls")
            else:
                mine.nodes += group.nodes
                del is_open[group]
        mine.nodes.append(node)
        is_open[mine] = None
        group_of.update(dict.fromkeys(mine.nodes, mine))
    found = {id(group): group for group in group_of.values() if len(group.nodes) > 1}
    return [(tuple(sorted(group.nodes, key=draft.place.__getitem__)), group.ends) for group in found.values()]


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
    kind = _kind_of(draft, nodes, inputs)
    refused = "" if outputs else "nobody reads what it gives"
    refused = refused or _unknown_strides(draft, nodes, inputs)
    if refused:
        return Candidate(kind, nodes, inputs, outputs, 0, 0, False, refused)
    operators = [draft.operator(node) for node in nodes]
    given, gives = [draft.spec(n) for n in inputs], [draft.spec(n) for n in outputs]
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
    if kind == "epilogue":
        reason += "; the product before it stays a call of its own, its result is written either way"
    if not worth:
        reason = f"saves less than one part in {price.LEAST_SHARE}; {reason}"
    return Candidate(kind, nodes, inputs, outputs, unfused, fused, worth, reason)


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
    if names & REDUCTIONS:
        return "norm"
    makers = [draft.maker.get(number) for number in inputs]
    if any(maker is not None and draft.operator(maker).name in PRODUCTS for maker in makers):
        return "epilogue"
    return "broadcast" if len(set(_shapes(draft, nodes))) > 1 else "chain"


def _shapes(draft: Draft, nodes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for node in nodes:
        yield from (shape for shape in draft.operator(node).shapes if shape)
