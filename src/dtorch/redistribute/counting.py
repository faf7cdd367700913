"""What devices hold and need, in elements, before and after a redistribution.

A device holds a box of indices: the product of what it holds of every dim. So all is counted dim by dim, and
a dim under two layouts is counted once and cached.

Where the destination is a pending sum and the source is none, each element needs to be on one device along
that axis: on the one that holds it where the axis cuts the source, else on the first. The others get zeros,
which send nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from operator import mul
from typing import NamedTuple

from dtorch.layout import Layout, coordinates
from dtorch.layout.factors import Factors, factors_axes
from dtorch.redistribute.blocks import Box, align, box_of, box_size, shared_size

Dims = tuple[Factors, ...]
Counts = tuple[int, ...]


class Geometry(NamedTuple):
    """Where the devices of two meshes coincide.

    Attributes:
        src_shape: shape of the source mesh.
        dst_shape: shape of the destination mesh.
        device: for every destination position the source position of the same device, or -1.
        held: the same, but -1 also where what that device holds is of no use.
        same: whether both are one mesh.
    """

    src_shape: tuple[int, ...]
    dst_shape: tuple[int, ...]
    device: tuple[int, ...]
    held: tuple[int, ...]
    same: bool


@lru_cache(maxsize=4096)
def one_mesh(shape: tuple[int, ...]) -> Geometry:
    """The geometry of a redistribution that stays on its mesh."""
    positions = tuple(range(prod(shape)))
    return Geometry(shape, shape, positions, positions, True)


class Change(NamedTuple):
    """What happens to pending sums.

    Attributes:
        reduced: axes of the source mesh whose pending sums are made whole.
        kept: axes whose pending sums stay; both meshes have the same shape then.
        shared: axes of the destination mesh whose devices hold the same part of a sum made whole.
        created_cut: new pending sums along an axis that cut the source.
        created_whole: the other new pending sums.
        addends: number of addends of a sum made whole.
    """

    reduced: tuple[int, ...]
    kept: tuple[int, ...]
    shared: tuple[int, ...]
    created_cut: tuple[int, ...]
    created_whole: tuple[int, ...]
    addends: int

    @property
    def created(self) -> tuple[int, ...]:
        """All new pending sums."""
        return tuple(sorted(self.created_cut + self.created_whole))


@lru_cache(maxsize=16384)
def change_of(src: Layout, dst: Layout, same: bool) -> Change:
    """What happens to pending sums between two layouts, on one mesh or not."""
    fits = src.mesh_shape == dst.mesh_shape
    kept = tuple(axis for axis in src.partial if fits and axis in dst.partial)
    reduced = tuple(axis for axis in src.partial if axis not in kept)
    created = tuple(axis for axis in dst.partial if axis not in kept)
    # The axes of another mesh are others: nothing that is held there says who should hold it here.
    asked = reduced if same else range(len(dst.mesh_shape)) if reduced else ()
    created_cut = tuple(axis for axis in created if same and axis in src.cut_axes)
    return Change(
        reduced,
        kept,
        tuple(axis for axis in asked if dst.role(axis) == "R" and dst.mesh_shape[axis] > 1),
        created_cut,
        tuple(axis for axis in created if axis not in created_cut),
        prod(src.mesh_shape[axis] for axis in reduced),
    )


def with_kept(geometry: Geometry, kept: Sequence[int]) -> Geometry:
    """The geometry seen by a pending sum that stays: what a device holds of another addend is of no use."""
    if geometry.same or not kept:
        return geometry
    before, after = coordinates(geometry.src_shape), coordinates(geometry.dst_shape)
    held = (
        p if p >= 0 and all(before[p][axis] == coord[axis] for axis in kept) else -1
        for p, coord in zip(geometry.held, after)
    )
    return geometry._replace(held=tuple(held))


class DimCounts(NamedTuple):
    """Sizes of what devices hold of one dim, by position: before (source), after, and both (destination)."""

    have: Counts
    want: Counts
    both: Counts


@lru_cache(maxsize=65536)
def dim_counts(src: Factors, dst: Factors, geometry: Geometry) -> DimCounts:
    """What devices hold of a dim of size > 0."""
    if src == dst and geometry.same:
        sizes = tuple(size for _, size in _boxes(src, geometry.src_shape))
        return DimCounts(sizes, sizes, sizes)
    num_src, num_dst = prod(geometry.src_shape), prod(geometry.dst_shape)
    have, want, both = [1] * num_src, [1] * num_dst, [int(p >= 0) for p in geometry.held]
    for block in align(src, dst):
        before = _boxes(block.src, geometry.src_shape)
        after = _boxes(block.dst, geometry.dst_shape)
        have = [count * size for count, (_, size) in zip(have, before)]
        want = [count * size for count, (_, size) in zip(want, after)]
        shared = (p >= 0 and shared_size(before[p][0], box) for p, (box, _) in zip(geometry.held, after))
        both = list(map(mul, both, shared))
    return DimCounts(tuple(have), tuple(want), tuple(both))


@lru_cache(maxsize=16384)
def dim_owned(src: Factors, dst: Factors, shape: tuple[int, ...], axes: tuple[int, ...]) -> Counts:
    """By position: how much of what the device holds of a dim after was held before by those at its
    coordinates on `axes`, all together.
    """
    out = [1] * prod(shape)
    for block in align(src, dst):
        after = _boxes(block.dst, shape)
        free = [axis for axis in factors_axes(block.src) if axis not in axes]
        for position, coord in enumerate(coordinates(shape)):
            owned = (box_of(block.src, shape, other) for other in neighbours(shape, coord, free))
            out[position] *= sum(shared_size(box, after[position][0]) for box in owned)
    return tuple(out)


@lru_cache(maxsize=16384)
def _boxes(factors: Factors, shape: tuple[int, ...]) -> tuple[tuple[Box, int], ...]:
    """The box of every position, and its size."""
    if not factors_axes(factors):
        box = box_of(factors, shape, ())
        return ((box, box_size(box)),) * prod(shape)
    boxes = (box_of(factors, shape, coord) for coord in coordinates(shape))
    return tuple((box, box_size(box)) for box in boxes)


def neighbours(shape: Sequence[int], coord: Sequence[int], axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Coordinates that differ from `coord` on `axes` only, in mesh order."""
    for values in product(*(range(shape[axis]) for axis in axes)):
        other = list(coord)
        for axis, value in zip(axes, values):
            other[axis] = value
        yield tuple(other)


@lru_cache(maxsize=4096)
def first_on(shape: tuple[int, ...], axes: tuple[int, ...]) -> Counts:
    """By position: 1 if the device is first on all `axes`, else 0."""
    return tuple(int(not any(coord[axis] for axis in axes)) for coord in coordinates(shape))


def needed(src: Dims, dst: Dims, change: Change, geometry: Geometry) -> tuple[list[int], list[int]]:
    """By destination position: elements needed for the result, and those of them that are held before."""
    need = both = list(first_on(geometry.dst_shape, change.created_whole))
    for before, after in zip(src, dst):
        counts = dim_counts(before, after, geometry)
        owned = change.created_cut and dim_owned(before, after, geometry.dst_shape, change.created_cut)
        need = list(map(mul, need, owned or counts.want))
        both = list(map(mul, both, counts.both))
    return need, both


def held_before(src: Dims, dst: Dims, geometry: Geometry) -> list[int]:
    """By source position: elements the device holds."""
    have = [1] * prod(geometry.src_shape)
    for before, after in zip(src, dst):
        have = list(map(mul, have, dim_counts(before, after, geometry).have))
    return have
