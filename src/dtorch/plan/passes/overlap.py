"""Communication starts as soon as it can, and what does not need it runs before it is waited for.

    y = f(x); z = g(u); s = send(y); w = h(s); v = k(u)
    y = f(x); s = send(y); z = g(u); v = k(u); w = h(s)

Where devices have a stream for communication (`runtime/streams.py`), what stands between `send` and `h` runs
meanwhile. On others the order is left as it is.
"""

from __future__ import annotations

from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.table import Pass, Row

REACH = 16
"""Nodes looked at behind a call that waits: what runs before its turn holds memory for longer."""


def _is_sent_aside(draft: Draft, node: int) -> bool:
    return bool(getattr(draft.recipes[node].program, "aside", False))


def _earliest(draft: Draft, node: int) -> int | None:
    """Where a communication may start: behind what makes its input, and behind the last write into that."""
    if not _is_sent_aside(draft, node):
        return None
    here = draft.place[node]
    place = 0
    for number in draft.inputs[node]:
        maker = draft.maker.get(number)
        place = max(place, 0 if maker is None else draft.place[maker] + 1)
        written = [w for other in draft.order[:here] for w in _writes(draft, other, number)]
        place = max([place, *(w + 1 for w in written)])
    # One behind the other, as they are recorded: devices must agree on the order of collectives.
    place = max([place, *(draft.place[n] + 1 for n in draft.order[place:here] if _is_sent_aside(draft, n))])
    return place if place < here else None


def _writes(draft: Draft, node: int, number: int) -> list[int]:
    """The place of a node if it writes into the storages of an operand."""
    recipe, inputs = draft.recipes[node], draft.inputs[node]
    root = draft.root(number)
    return [draft.place[node]] if any(draft.root(inputs[i]) == root for i in recipe.written) else []


def _start(draft: Draft, node: int, place: int) -> str:
    passed = draft.place[node] - place
    draft.move(node, place)
    return f"starts {passed} calls earlier"


def _independent(draft: Draft, node: int) -> int | None:
    """The place of the call that first waits for a communication, behind which `node` stands needlessly."""
    here = draft.place[node]
    if draft.recipes[node].written or not draft.outputs[node] or _is_sent_aside(draft, node):
        return None
    needs = set(draft.inputs[node])
    target = None
    for place in range(here - 1, max(-1, here - 1 - REACH), -1):
        other = draft.order[place]
        if draft.recipes[other].written or not needs.isdisjoint(draft.outputs[other]):
            break
        if _waits(draft, other):
            target = place
    if target is not None and not _waits(draft, node):
        return target
    return None


def _waits(draft: Draft, node: int) -> bool:
    """Whether a node is the first to read what a communication gives, or reads what such a node makes."""
    todo, seen = [node], set()
    while todo:
        for number in draft.inputs[todo.pop()]:
            maker = draft.maker.get(number)
            if maker is None or maker in seen or draft.place[node] - draft.place[maker] > REACH:
                continue
            if _is_sent_aside(draft, maker):
                return True
            seen.add(maker)
            todo.append(maker)
    return False


def _before(draft: Draft, node: int, place: int) -> str:
    passed = draft.place[node] - place
    draft.move(node, place)
    return f"runs before {passed} calls that wait"


def _sends_aside(draft: Draft) -> bool:
    return any(_is_sent_aside(draft, node) for node in draft.order)


OVERLAP = Pass(
    "overlap",
    "start communication early, wait for it late",
    (Row(_earliest, _start), Row(_independent, _before)),
    when=_sends_aside,
)
