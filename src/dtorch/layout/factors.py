"""Factors: how one tensor dim is cut, and the only chunk arithmetic of dtorch.

A factor `(n, axes)` is `range(n)`, chunked by the mesh axes in `axes`, the first one outermost, each by the
rule of `torch.chunk` (5 over 4 is 2, 2, 1, 0). A dim is a tuple of factors, outermost first: its size is
the product of the n, and the indices a device holds are the mixed-radix numbers whose digits lie in the
device's range of every factor.

    (8, (0,))                 8 rows cut by axis 0: plain Shard
    (3, ()), (8, (1,))        3 groups of 8, each cut by axis 1: the fused query, key, value rows of GPT-2
    (2, (0,)), (6, (1,))      12 rows of a flattened (2, 6) cut by both

Normal form (`normal_dim`): two dims cut into the same index sets by the same axes are the same tuple.

- A cut factor is as small as it can be: it ends where all its non-empty pieces are equal (later axes then
  cut inside a piece), and what is left is divided by the greatest common divisor of its cut points.
- Neighbours that are not cut are one factor; factors `(1, ())` are left out, but a dim is never an empty
  tuple.
- Axes that cut pieces of at most one element only say who holds it (coordinate 0): one `(1, axes)` in
  front, sorted.
- A dim of size 0 is `(0, axes)`, sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import gcd, prod

Factor = tuple[int, tuple[int, ...]]
Factors = tuple[Factor, ...]
Dims = tuple[Factors, ...]


def chunk_range(n: int, num_chunks: int, index: int) -> tuple[int, int]:
    """(start, stop) of chunk `index` of range(n) by the rule of `torch.chunk`; empty chunks come last."""
    size = -(-n // num_chunks)
    return min(index * size, n), min(index * size + size, n)


def factor_range(factor: Factor, mesh_shape: tuple[int, ...], coord: Sequence[int]) -> tuple[int, int]:
    """(start, stop) of the part of range(n) that the device at `coord` holds."""
    start, stop = 0, factor[0]
    for axis in factor[1]:
        low, high = chunk_range(stop - start, mesh_shape[axis], coord[axis])
        start, stop = start + low, start + high
    return start, stop


def factors_size(factors: Sequence[Factor]) -> int:
    """Size of the dim these factors make."""
    return prod(n for n, _ in factors)


def factors_axes(factors: Sequence[Factor]) -> tuple[int, ...]:
    """Axes that cut the dim, outermost first."""
    return tuple(axis for _, axes in factors for axis in axes)


@lru_cache(maxsize=16384)
def normal_dim(mesh_shape: tuple[int, ...], factors: Factors) -> Factors:
    """The normal form of one dim. Axes of mesh size 1 cut nothing and are dropped."""
    if any(n == 0 for n, _ in factors):
        return ((0, tuple(sorted(axis for axis in factors_axes(factors) if mesh_shape[axis] > 1))),)
    holders: list[int] = []
    out: list[Factor] = []
    for n, axes in factors:
        for piece in _smallest(mesh_shape, n, axes):
            if piece[0] == 1:
                holders += piece[1]
            elif out and not piece[1] and not out[-1][1]:
                out[-1] = (out[-1][0] * piece[0], ())
            else:
                out.append(piece)
    if holders:
        out.insert(0, (1, tuple(sorted(holders))))
    return tuple(out) or ((1, ()),)


def _smallest(mesh_shape: tuple[int, ...], n: int, axes: tuple[int, ...]) -> list[Factor]:
    """One factor of size n >= 1 as a row of factors, each cut one as small as it can be."""
    axes = tuple(axis for axis in axes if mesh_shape[axis] > 1)
    if not axes:
        return [(n, ())]
    out: list[Factor] = []
    cuts: list[int] = [0, n]
    taken: tuple[int, ...] = ()
    for axis in axes:
        num_chunks = mesh_shape[axis]
        finer = [0]
        for low, high in pairwise(cuts):
            size = -(-(high - low) // num_chunks)
            finer.extend(range(low + size, high, size))
            finer.append(high)
        cuts, taken = finer, (*taken, axis)
        size = cuts[1]
        if n == size * (len(cuts) - 1) and all(high - low == size for low, high in pairwise(cuts)):
            out.append((n // size, taken))
            n, cuts, taken = size, [0, size], ()
    if taken:
        divisor = gcd(*cuts)
        return [*out, (n // divisor, taken), (divisor, ())]
    return [*out, (n, ())]


def index_runs(ranges: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Mixed-radix numbers with digits in `ranges`, as ascending (start, stop) runs that do not touch.

    Args:
        ranges: (start, stop) of each digit, outermost first.
        sizes: number of values each digit may take.
    """
    runs, inner = [(0, 1)], 1
    for (start, stop), n in zip(reversed(ranges), reversed(sizes), strict=True):
        if runs == [(0, inner)]:
            runs = [(start * inner, stop * inner)] if stop > start else []
        else:
            # These miss one end of range(inner) at least: runs of neighbouring digits do not touch.
            offsets = range(start * inner, stop * inner, inner)
            runs = [(low + offset, high + offset) for offset in offsets for low, high in runs]
        inner *= n
    return runs


def add_axis(mesh_shape: tuple[int, ...], factors: Factors, axis: int) -> Factors | None:
    """Factors of a dim whose piece on every device is chunked by one more axis; None if none say that.

    Args:
        factors: in normal form.
    """
    size = factors_size(factors)
    if size == 0:
        return normal_dim(mesh_shape, (*factors, (0, (axis,))))
    start = 0
    while start < len(factors) and max(_lengths(mesh_shape, factors[start])) <= 1:
        start += 1
    if start == len(factors):
        return normal_dim(mesh_shape, (*factors, (1, (axis,))))
    outer, (n, axes), rest = factors[:start], factors[start], factors[start + 1 :]
    if not _chunks_whole(mesh_shape, (n, axes), rest, axis) and rest:
        # An uneven cut that was divided by what its pieces share: 10 = 6 + 4 is (5, axes), (2, ()).
        whole = (n * rest[0][0], axes)
        if normal_dim(mesh_shape, (whole,)) == ((n, axes), rest[0]):
            n, rest = whole[0], rest[1:]
    if not _chunks_whole(mesh_shape, (n, axes), rest, axis):
        return None
    return normal_dim(mesh_shape, (*outer, (n, (*axes, axis)), *rest))


def _chunks_whole(mesh_shape: tuple[int, ...], factor: Factor, rest: Factors, axis: int) -> bool:
    """Whether chunking `factor` and `rest` together by `axis` chunks `factor` alone, on every device."""
    num_chunks = mesh_shape[axis]
    inner = {1}
    for other in rest:
        inner = {a * b for a in inner for b in _lengths(mesh_shape, other) if b}
    return all(
        -(-size * block // num_chunks) == -(-size // num_chunks) * block
        for size in _lengths(mesh_shape, factor)
        for block in inner
    )


def _lengths(mesh_shape: tuple[int, ...], factor: Factor) -> set[int]:
    """All numbers of elements of the factor that some device holds."""
    lengths = {factor[0]}
    for axis in factor[1]:
        num_chunks = mesh_shape[axis]
        chunks = [chunk_range(n, num_chunks, index) for n in lengths for index in range(num_chunks)]
        lengths = {stop - start for start, stop in chunks}
    return lengths


@lru_cache(maxsize=1024)
def coordinates(mesh_shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Coordinates of all positions of a mesh, in mesh order (row-major)."""
    return tuple(product(*map(range, mesh_shape)))


@lru_cache(maxsize=1024)
def representative_positions(mesh_shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """For every position the smallest position with the same coordinates on `axes`."""
    first: dict[tuple[int, ...], int] = {}
    return tuple(
        first.setdefault(tuple(coord[axis] for axis in axes), position)
        for position, coord in enumerate(coordinates(mesh_shape))
    )
