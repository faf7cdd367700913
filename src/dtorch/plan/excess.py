"""What waiting costs in memory: what nodes that have not run hold, and nobody else.

Run at once, a call needs its operands while it runs, and what the program drops is gone. Recorded, a call
keeps its inputs until it runs, dropped or not; what it makes is not there yet, and what lies between calls is
freed by the plan at its last use. What the program holds it would hold either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dtorch.op.operand import Operand
from dtorch.plan.structure import Flags, Numbered, Structure
from dtorch.spec import Spec

Sizes = dict[Any, int]
_uses = torch._C._storage_Use_Count


def excess_bytes(nodes: list[Any], converted: list[Operand]) -> int:
    """Bytes that nodes alone hold, now or when they run, beyond what the largest of them needs at once.

    Each storage counts once, replicas that share one too.

    Args:
        nodes: recorded and not run.
        converted: operands that hold a conversion recorded among the nodes; those that only nodes hold lose
            it, as when the nodes run.
    """
    numbered = Numbered(nodes)
    structure = Structure.of(nodes, numbered)
    converted.extend(structure.drop_conversions(numbered, converted))
    flags = structure.wanted(numbered)
    memories, sizes = _outside(structure, numbered, flags)
    now = sum(sizes.values())
    for number, operand in enumerate(numbered.made):
        if not flags[number] and number not in structure.roots:
            sizes[number] = _spread_bytes(operand.spec)
            memories[number] = (number,)
    for number, root in structure.roots.items():
        memories[number] = memories.get(root, ())
    return _peak(structure, structure.select(flags).nodes, memories, sizes, now)


def _peak(
    structure: Structure, order: tuple[int, ...], memories: dict[int, tuple[Any, ...]], sizes: Sizes, now: int
) -> int:
    """The most bytes held while nodes run in order, less those of the largest node."""
    held = [
        {
            m
            for number in (*structure.inputs[node], *structure.outputs[node])
            for m in memories.get(number, ())
        }
        for node in order
    ]
    last = {memory: at for at, mine in enumerate(held) for memory in mine}
    peak, largest = now, 0
    for at, (node, mine) in enumerate(zip(order, held, strict=True)):
        now += sum(sizes.get(number, 0) for number in structure.outputs[node])
        peak, largest = max(peak, now), max(largest, sum(map(sizes.__getitem__, mine)))
        now -= sum(sizes[memory] for memory in mine if last[memory] == at)
    return peak - largest


def _outside(
    structure: Structure, numbered: Numbered, flags: Flags
) -> tuple[dict[int, tuple[Any, ...]], Sizes]:
    """The storages behind operands from outside that only nodes hold: which of each, and their bytes."""
    first = structure.num_made
    viewed = {root for number, root in structure.roots.items() if flags[number]}
    found: dict[int, dict[int, Any]] = {}
    tensors: dict[int, set[int]] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    for number in structure.dropped(numbered):
        if number not in viewed:
            for part in _tensors(numbered.outside[number - first]):
                storage = part.untyped_storage()
                storages[storage._cdata] = storage
                tensors.setdefault(storage._cdata, set()).add(id(part))
                found.setdefault(number, {})[storage._cdata] = None
    sizes = {  # beside the tensors there is one more use, by `storages`
        ("storage", at): storage.nbytes()
        for at, storage in storages.items()
        if _uses(at) == len(tensors[at]) + 1
    }
    return {n: tuple([m for at in ats if (m := ("storage", at)) in sizes]) for n, ats in found.items()}, sizes


def _tensors(operand: Any) -> Iterator[torch.Tensor]:
    parts = operand.parts if type(operand) is Operand else None
    for part in parts if type(parts) is list else ():
        if isinstance(part, torch.Tensor):
            yield part


def _spread_bytes(spec: Spec) -> int:
    """Of a tensor on all devices: parts that they share count once."""
    coords = spec.mesh.coords
    return sum(spec.local_nbytes(coords[position]) for position in set(spec.owners))
