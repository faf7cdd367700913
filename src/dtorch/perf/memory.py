"""Memory of a priced program over time, on the device that holds most: what is alive, and what for.

A storage is counted from the call that makes it until the program drops the last reference to it, autograd's
among them; one that was there before counts from the start. Categories, by how long it lives:

    parameters      a parameter or buffer of a module, or a leaf that requires grad
    gradients       made in a backward that it outlives
    optimizer       made in an optimizer's step that it outlives; counts from the start, since in every step
                    but the first it is there before
    activations     inputs; made in the forward, and alive when it ends
    temporaries     all others
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dtorch.perf.recording import Recording, Storage

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")


class Holder(NamedTuple):
    """What holds memory at the peak: a parameter by name, or what an operator made; bytes of one device."""

    what: str
    category: str
    module: str
    nbytes: int


class Memory(NamedTuple):
    """Memory over time.

    Attributes:
        before: bytes by category before the first call.
        steps: bytes by category after each call.
        peak: the largest sum of them.
        holders: what is alive at the peak, the largest first.
    """

    before: dict[str, int]
    steps: list[dict[str, int]]
    peak: int
    holders: list[Holder]


def memory_of(recording: Recording) -> Memory:
    """The memory of a recording."""
    count = len(recording.nodes)
    categories = [_category(storage, recording) for storage in recording.storages]
    changes: list[list[tuple[str, int]]] = [[] for _ in range(count + 1)]
    now = dict.fromkeys(CATEGORIES, 0)
    for storage, category in zip(recording.storages, categories, strict=True):
        if _born(storage, category) < 0:
            now[category] += storage.nbytes
        else:
            changes[storage.born].append((category, storage.nbytes))
        if storage.died is not None:
            changes[storage.died].append((category, -storage.nbytes))
    before, steps, sums = dict(now), [], []
    for step in range(count):
        for category, nbytes in sorted(changes[step], key=lambda change: change[1]):
            now[category] += nbytes  # what is dropped goes before what is made
        steps.append(dict(now))
        sums.append(sum(now.values()))
    start = sum(before.values())
    peak = max([start, *sums])
    at = -1 if peak == start else sums.index(peak)
    return Memory(before, steps, peak, _holders(recording, categories, at))


def _born(storage: Storage, category: str) -> int:
    return -1 if category == "optimizer" else storage.born


def _category(storage: Storage, recording: Recording) -> str:
    if storage.name or storage.trained:
        return "parameters"
    if storage.born < 0:
        return "activations"
    if storage.died is not None and storage.died <= recording.phase_end(storage.born):
        return "temporaries"
    return {"backward": "gradients", "optimizer": "optimizer"}.get(storage.phase, "activations")


def _holders(recording: Recording, categories: Sequence[str], at: int) -> list[Holder]:
    sums: Counter[tuple[str, str, str]] = Counter()
    for storage, category in zip(recording.storages, categories, strict=True):
        if _born(storage, category) <= at and (storage.died is None or storage.died > at):
            sums[_what(storage, recording), category, storage.module] += storage.nbytes
    return [Holder(*key, nbytes) for key, nbytes in sums.most_common()]


def _what(storage: Storage, recording: Recording) -> str:
    if storage.name:
        return storage.name
    if storage.born < 0:
        return f"input {list(storage.spec.shape)}"
    return recording.nodes[storage.born].operator.describe()
