"""One tensor dim under two layouts: what a piece of one has in common with a piece of the other.

Both layouts write the dim as a product of factors. `align` cuts the two products at the boundaries they
share, so that each block can be looked at alone: a piece of the dim is the product of its pieces of the
blocks, and so is what two pieces share. Nearly always a block has one factor on each side, its pieces are
ranges, and they share a range.

A box is a device's piece of one block: (n, start, stop) of every factor, outermost first, as mixed-radix
digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import gcd, lcm, prod
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dtorch.layout.factors import Factors, factor_range, index_runs

Box = tuple[tuple[int, int, int], ...]
Segment = tuple[int, int, tuple[int, ...]]
# (offset in the first piece, offset in the second, length), in elements of the block
Run = tuple[int, int, int]

# Above this many runs a loop over them costs more than index tensors do.
_MANY_RUNS = 1024


class Block(NamedTuple):
    """Factors of the same stretch of a dim in both layouts; the products of their n are equal."""

    src: Factors
    dst: Factors


@lru_cache(maxsize=16384)
def align(src: Factors, dst: Factors) -> tuple[Block, ...]:
    """The smallest blocks of a dim of size > 0 at whose borders both layouts may be split, outer first."""
    blocks = []
    holders = tuple(tuple(f for f in side if f[0] == 1 and f[1]) for side in (src, dst))
    if holders[0] or holders[1]:
        blocks.append(Block(holders[0] or ((1, ()),), holders[1] or ((1, ()),)))
    sides = _segments(src), _segments(dst)
    borders = _borders(*sides)
    for high, low in pairwise(borders):
        blocks.append(Block(_between(sides[0], low, high), _between(sides[1], low, high)))
    return tuple(blocks)


def _segments(factors: Factors) -> list[Segment]:
    """(stride, stride * n, axes) of every factor with n > 1, outermost first."""
    out: list[Segment] = []
    stride = 1
    for n, axes in reversed(factors):
        if n > 1:
            out.append((stride, stride * n, axes))
            stride *= n
    return out[::-1]


def _borders(src: list[Segment], dst: list[Segment]) -> list[int]:
    """Strides at which both sides may be split, largest first; each divides the one before it."""
    tried = {1, *(end for low, high, _ in src + dst for end in (low, high))}
    for low, high, axes in src:
        for other_low, other_high, other_axes in dst:
            if not axes and not other_axes:
                tried |= {lcm(low, other_low), gcd(high, other_high)}
    out = [1]
    for stride in sorted(tried):
        if stride > out[-1] and _splits(src, stride) and _splits(dst, stride):
            out.append(stride)
    return out[::-1]


def _splits(side: list[Segment], at: int) -> bool:
    """Whether a factor ends at this stride, or one that is not cut may be divided there."""
    for low, high, axes in side:
        if at in (low, high):
            return True
        if low < at < high:
            return not axes and at % low == 0 and high % at == 0
    return False


def _between(side: list[Segment], low: int, high: int) -> Factors:
    """The factors between two strides."""
    inside = ((max(start, low), min(stop, high), axes) for start, stop, axes in side)
    return tuple((stop // start, axes) for start, stop, axes in inside if stop > start)


def box_of(factors: Factors, mesh_shape: tuple[int, ...], coord: Sequence[int]) -> Box:
    """The box of the device at `coord`."""
    return tuple((factor[0], *factor_range(factor, mesh_shape, coord)) for factor in factors)


def box_size(box: Box) -> int:
    """Elements in a box."""
    return prod(stop - start for _, start, stop in box)


def shared_size(a: Box, b: Box) -> int:
    """Number of elements two boxes of one block share."""
    if len(a) == 1 and len(b) == 1:
        return max(0, min(a[0][2], b[0][2]) - max(a[0][1], b[0][1]))
    if not box_size(a) or not box_size(b):
        return 0
    if num_runs(a) > num_runs(b):
        a, b = b, a
    if num_runs(a) > _MANY_RUNS:
        return int(shared_index(a, b)[0].numel())
    return sum(_below(b, stop) - _below(b, start) for start, stop in _runs(a))


def num_runs(box: Box) -> int:
    """At most so many runs of consecutive elements make a box (exact but for touching ones)."""
    count, whole = 1, True
    for n, start, stop in reversed(box):
        if not whole:
            count *= stop - start
        whole = whole and (start, stop) == (0, n)
    return count


def _runs(box: Box) -> list[tuple[int, int]]:
    return index_runs([(start, stop) for _, start, stop in box], [n for n, _, _ in box])


def _below(box: Box, end: int) -> int:
    """How many elements of a box are smaller than `end`."""
    count, stride, size = 0, prod(n for n, _, _ in box), box_size(box)
    for n, start, stop in box:
        stride //= n
        size //= stop - start
        digit, end = divmod(end, stride)
        count += (min(max(digit, start), stop) - start) * size
        if not start <= digit < stop:
            return count
    return count


def shared_runs(a: Box, b: Box) -> list[Run]:
    """What two boxes of one block share, as runs that are consecutive in the block and in both boxes."""
    if len(a) == 1 and len(b) == 1:
        start, stop = max(a[0][1], b[0][1]), min(a[0][2], b[0][2])
        return [(start - a[0][1], start - b[0][1], stop - start)] if stop > start else []
    runs_a, runs_b, out = _offset_runs(a), _offset_runs(b), []
    i = j = 0
    while i < len(runs_a) and j < len(runs_b):
        (start_a, stop_a, offset_a), (start_b, stop_b, offset_b) = runs_a[i], runs_b[j]
        start, stop = max(start_a, start_b), min(stop_a, stop_b)
        if stop > start:
            out.append((offset_a + start - start_a, offset_b + start - start_b, stop - start))
        i, j = (i + 1, j) if stop_a <= stop_b else (i, j + 1)
    return out


def _offset_runs(box: Box) -> list[tuple[int, int, int]]:
    """(start, stop, elements of the box before it) of every run."""
    out, before = [], 0
    for start, stop in _runs(box):
        out.append((start, stop, before))
        before += stop - start
    return out


def shared_index(a: Box, b: Box) -> tuple[torch.Tensor, torch.Tensor]:
    """What two boxes share, as int64 positions in each of them, ascending; for shapes too ragged for runs."""
    # The positions are kept and used again: a mode that happens to be on must not make other tensors of them.
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return _shared_index(a, b)


def _shared_index(a: Box, b: Box) -> tuple[torch.Tensor, torch.Tensor]:
    swapped = box_size(a) > box_size(b)
    if swapped:
        a, b = b, a
    element = torch.zeros(1, dtype=torch.int64, device="cpu")
    for n, start, stop in a:
        element = (element[:, None] * n + torch.arange(start, stop, device="cpu")).flatten()
    inside = torch.ones_like(element, dtype=torch.bool)
    position, stride = torch.zeros_like(element), prod(n for n, _, _ in b)
    for n, start, stop in b:
        stride //= n
        digit = element // stride % n
        inside &= (digit >= start) & (digit < stop)
        position = position * (stop - start) + digit - start
    found = torch.arange(len(element), device="cpu")[inside], position[inside]
    return found[::-1] if swapped else found
