"""Every device asks for a block of a tensor, whoever holds it: what is sent, and doing it.

A block is intervals of some dims, one behind the other, beside all that a device holds of the others. It may
overlap the blocks of other devices, be found on several, or be empty; what lies beyond the ends of a dim is
filled. Sliding windows are such blocks: rows of a picture that a device holds, and those of its neighbours
that it reads (the halo). So are rows that move: rolled ones come from two places.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod

from dtorch.layout import Layout, coordinates
from dtorch.redistribute.copying import Copy, Result, View
from dtorch.redistribute.counting import neighbours

Interval = tuple[int, int]
"""(start, stop)"""

Runs = tuple[Interval, ...]
"""Intervals one behind the other, ascending."""

Block = tuple[Runs | None, ...]
"""For every dim of a tensor the intervals asked for, or None for what is held."""

_Share = tuple[int, int, int]
"""Where something lies in a part, where in the block, and its length."""


def length(runs: Runs) -> int:
    """Of all intervals together."""
    return sum(stop - start for start, stop in runs)


def closed(runs: Runs, held: Interval) -> Runs:
    """The same intervals, and what lies between two of them where the device holds it anyway."""
    found: list[Interval] = []
    for run in runs:
        if found and held[0] <= found[-1][1] and run[0] <= held[1]:
            run = (found.pop()[0], run[1])
        found.append(run)
    return tuple(found)


def held(layout: Layout, dim: int, coord: Sequence[int]) -> Interval:
    """The smallest interval with all that the device at `coord` holds of a dim; (0, 0) if that is nothing."""
    runs = [run for run in layout.local_indices(dim, coord) if run[1] > run[0]]
    return (runs[0][0], runs[-1][1]) if runs else (0, 0)


@lru_cache(maxsize=16384)
def block_at(layout: Layout, block: Block, coord: tuple[int, ...]) -> Result:
    """How the block that the device at `coord` asks for is made; addends of a pending sum stay apart."""
    mine = layout.local_shape(coord)
    shape = tuple(n if asked is None else length(asked) for n, asked in zip(mine, block, strict=True))
    free = [axis for dim, asked in enumerate(block) if asked is not None for axis in layout.axes_of(dim)]
    positions = {other: i for i, other in enumerate(coordinates(layout.mesh_shape))}
    copies = []
    for owner in neighbours(layout.mesh_shape, coord, free):
        shares = [
            [(0, 0, mine[dim])] if asked is None else _shares(layout, dim, asked, owner)
            for dim, asked in enumerate(block)
        ]
        copies += [_copy(positions[owner], chosen) for chosen in product(*shares)]
    return Result(shape, tuple(copies), sum(copy.numel for copy in copies) == prod(shape))


def _shares(layout: Layout, dim: int, asked: Runs, owner: tuple[int, ...]) -> list[_Share]:
    """What a device holds of intervals."""
    found, before = [], 0
    for start, stop in layout.local_indices(dim, owner):
        behind = 0
        for first, last in asked:
            low, high = max(start, first), min(stop, last)
            if high > low:
                found.append((before + low - start, behind + low - first, high - low))
            behind += last - first
        before += stop - start
    return found


def _copy(position: int, chosen: Sequence[_Share]) -> Copy:
    sizes, dims = tuple(share[2] for share in chosen), tuple(range(len(chosen)))
    part, block = (View(sizes, dims, (1,) * len(dims), tuple(s[side] for s in chosen)) for side in (0, 1))
    return Copy((position,), part, block, ())


@lru_cache(maxsize=4096)
def received(layout: Layout, blocks: tuple[Block, ...]) -> tuple[int, ...]:
    """Elements that every device receives, in mesh order, when each asks for its block."""
    return tuple(
        sum(copy.numel for copy in block_at(layout, block, coord).copies if copy.sources != (position,))
        for position, (block, coord) in enumerate(zip(blocks, coordinates(layout.mesh_shape), strict=True))
    )
