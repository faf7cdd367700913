"""What a redistribution moves, in elements, known without moving them.

A device receives what it needs and does not hold. So without pending sums one exchange of exact blocks is the
least that can be sent, and no detour is shorter: the price obeys the triangle inequality.

A pending sum over n devices may be made whole in two ways, and the cheaper one is taken, by all that is
received, then by the device that receives most:

    into the destination    every device gets the addends of its part of the destination; devices that are
                            to hold the same take a piece each, and gather the pieces after
    in place                the n devices that hold addends of the same part take a piece of it each and add
                            them up, then the pieces are exchanged as if nothing had been pending

Either makes an all-reduce of L elements 2 (n - 1) L in total, however uneven the pieces, and a reduce-scatter
(n - 1) L. Pieces are chunks of one dim of what the device holds; every dim is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod
from operator import add, sub
from typing import NamedTuple

from dtorch.layout import Layout
from dtorch.layout.factors import Factors, add_axis, chunk_range, factors_axes, normal_dim
from dtorch.redistribute.counting import (
    Change,
    Counts,
    Dims,
    Geometry,
    change_of,
    held_before,
    needed,
    with_kept,
)


class Move(NamedTuple):
    """One step.

    Attributes:
        kind: as `Step.kind` in `__init__.py`.
        axes: mesh axes whose role changes.
        received: elements that each device receives, by position.
        on_src: whether positions are those of the source mesh.
    """

    kind: str
    axes: tuple[int, ...]
    received: Counts
    on_src: bool = False


class Way(NamedTuple):
    """Moves that make a redistribution, with the elements received by all devices, by the largest, by each.

    Devices come in the order of the destination mesh; those of another source mesh follow, in its order.
    """

    moves: tuple[Move, ...]
    total: int
    largest: int
    received: Counts


@lru_cache(maxsize=65536)
def cheapest(src: Layout, dst: Layout, geometry: Geometry) -> Way:
    """The cheapest way from one layout to another; without moves where nothing changes."""
    if src is dst and geometry.same:
        return Way((), 0, 0, (0,) * prod(geometry.dst_shape))
    change = change_of(src, dst, geometry.same)
    geometry = with_kept(geometry, change.kept)
    if 0 in src.shape:
        axes = {*_moved(src.dims, dst.dims), *change.reduced, *change.created}
        return Way((_local(axes, geometry),), 0, 0, (0,) * prod(geometry.dst_shape))
    # A 0-dim tensor is one of size 1 here, so that there is a dim to take pieces of.
    before, after = src.dims or (((1, ()),),), dst.dims or (((1, ()),),)
    if change.reduced:
        return _reduction(before, after, change, geometry)
    return _way(_exchange(before, after, change, geometry), change, geometry)


# Without a sum to be made whole.


def _exchange(src: Dims, dst: Dims, change: Change, geometry: Geometry) -> list[Move]:
    """One exchange of exact blocks; cuts of what devices hold are a step before it where that is as cheap."""
    need, both = needed(src, dst, change, geometry)
    received = tuple(map(sub, need, both))
    if not geometry.same:
        return [Move("transfer", (), received)]
    moved = _moved(src, dst, change.created)
    if not any(received):
        return [_local(moved, geometry)]
    if not moved:
        kind = "exchange" if change.created else "all_to_all"
        return [Move(kind, _reordered(src, dst, change.created), received)]
    before, after = _roles(src), _roles(dst)
    new = [axis for axis in moved if axis not in before]
    if 0 < len(new) < len(moved):
        cut = _cut_first(src, new, after, geometry.src_shape)
        if cut is not None:
            rest = _exchange(cut, dst, change, geometry)
            plain = len(rest) == 1 and rest[0].kind in ("all_gather", "all_to_all")
            if plain and rest[0].received == received:
                return [_local(new, geometry), *rest]
    gone = [axis for axis in moved if axis not in after]
    kind = "exchange"
    if not new and not gone:
        kind = "all_to_all"
    elif len(gone) == len(moved) and _keeps_all(src, dst, need, both, geometry):
        kind = "all_gather"
    return [Move(kind, tuple(moved), received)]


def _keeps_all(src: Dims, dst: Dims, need: list[int], both: list[int], geometry: Geometry) -> bool:
    """Whether every device that gets more also keeps all it has."""
    return all(h == b or not n for h, b, n in zip(held_before(src, dst, geometry), both, need))


def _cut_first(src: Dims, axes: list[int], roles: dict[int, int], shape: tuple[int, ...]) -> Dims | None:
    """The source with `axes` cutting the dims they cut in the end, if factors say that."""
    dims: list[Factors] = list(src)
    for axis in axes:
        cut = add_axis(shape, dims[roles[axis]], axis)
        if cut is None:
            return None
        dims[roles[axis]] = cut
    return tuple(dims)


def _roles(dims: Dims) -> dict[int, int]:
    return {axis: dim for dim, factors in enumerate(dims) for axis in factors_axes(factors)}


def _moved(src: Dims, dst: Dims, but: Iterable[int] = ()) -> list[int]:
    """Axes other than `but` that cut another dim than before; to cut none is another."""
    before, after = _roles(src), _roles(dst)
    return sorted({a for a in before.keys() | after.keys() if before.get(a) != after.get(a)}.difference(but))


def _reordered(src: Dims, dst: Dims, but: Iterable[int]) -> tuple[int, ...]:
    """Axes other than `but` of dims that are cut otherwise than before."""
    changed = (factors_axes(x) + factors_axes(y) for x, y in zip(src, dst) if x != y)
    return tuple(sorted({axis for axes in changed for axis in axes}.difference(but)))


# With one.


def _reduction(src: Dims, dst: Dims, change: Change, geometry: Geometry) -> Way:
    """The cheaper of the two ways; the second is not tried where it cannot be cheaper."""
    need, _ = needed(src, dst, change, geometry)
    # No device adds less than all addends but its own, nor is sent less than it lacks.
    least = (change.addends - 2) * sum(need) // _size(change.shared, geometry.dst_shape) + sum(need)
    best: Way | None = None
    for pieces in _pieces(dst, change.shared, geometry.dst_shape):
        way = _way(_into_destination(src, dst, pieces, change, geometry), change, geometry)
        if best is None or way[1:3] < best[1:3]:
            best = way
        if best.total == least and best.largest * len(need) == best.total:
            break
    assert best is not None
    held = sum(held_before(src, dst, geometry)) // change.addends
    if best.total > (change.addends - 1) * held + max(0, sum(need) - held):
        for pieces in _pieces(src, change.reduced, geometry.src_shape):
            way = _way(_in_place(src, dst, pieces, change, geometry), change, geometry)
            best = way if way[1:3] < best[1:3] else best
    return best


def _into_destination(src: Dims, dst: Dims, pieces: Dims, change: Change, geometry: Geometry) -> list[Move]:
    need, both = needed(src, pieces, change, geometry)
    added = tuple(change.addends * n - b for n, b in zip(need, both))
    all_need, all_both = needed(src, dst, change, geometry)
    gathered = tuple(map(sub, all_need, need))
    gather = [Move("all_gather", change.shared, gathered)] if change.shared else []
    if not geometry.same:
        return [Move("transfer", (), added), *gather]
    others = _moved(src, dst, (*change.reduced, *change.created))
    if all_need != all_both:
        return [Move("exchange", tuple(sorted({*change.reduced, *others})), added), *gather]
    cut = [_local(others, geometry)] if others else []
    if change.shared == change.reduced:
        return [*cut, Move("all_reduce", change.reduced, tuple(map(add, added, gathered)))]
    return [*cut, Move("reduce_scatter", change.reduced, added), *gather]


def _in_place(src: Dims, dst: Dims, pieces: Dims, change: Change, geometry: Geometry) -> list[Move]:
    added = tuple((change.addends - 1) * count for count in held_before(pieces, dst, geometry))
    scatter = Move("reduce_scatter", change.reduced, added, not geometry.same)
    return [scatter, *_exchange(pieces, dst, change, geometry)]


def _pieces(dims: Dims, axes: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[Dims]:
    """`dims` with what a device holds of one dim cut by `axes`, for every dim, the largest first."""
    if not axes:
        yield dims
        return
    sizes = [prod(_largest(factor[0], factor[1], shape) for factor in factors) for factors in dims]
    tried: set[Factors] = set()
    for dim in sorted(range(len(dims)), key=lambda dim: -sizes[dim]):
        # All dims of size 1 are alike.
        if dims[dim] != ((1, ()),) or dims[dim] not in tried:
            tried.add(dims[dim])
            yield (*dims[:dim], _innermost(dims[dim], axes, shape), *dims[dim + 1 :])


@lru_cache(maxsize=16384)
def _innermost(factors: Factors, axes: tuple[int, ...], shape: tuple[int, ...]) -> Factors:
    """A dim cut by `axes` within what each device holds of it; by the largest factor alone where need be."""
    cut: Factors | None = factors
    for axis in axes:
        cut = cut and add_axis(shape, cut, axis)
    if cut:
        return cut
    sizes = [_largest(n, own, shape) for n, own in factors]
    at = sizes.index(max(sizes))
    n, own = factors[at]
    return normal_dim(shape, (*factors[:at], (n, own + axes), *factors[at + 1 :]))


def _largest(n: int, axes: Iterable[int], shape: tuple[int, ...]) -> int:
    """The largest number of elements that a device holds of a factor."""
    for axis in axes:
        n = chunk_range(n, shape[axis], 0)[1]
    return n


def _size(axes: Iterable[int], shape: tuple[int, ...]) -> int:
    return prod(shape[axis] for axis in axes)


# Together.


def _local(axes: Iterable[int], geometry: Geometry) -> Move:
    return Move("local", tuple(sorted(axes)), (0,) * prod(geometry.dst_shape))


def _way(moves: list[Move], change: Change, geometry: Geometry) -> Way:
    """The moves that do something, with new pending sums last, and what they cost."""
    sending = [move for move in moves if any(move.received)]
    idle = [move for move in moves if move.kind == "local"]
    first = {axis for move in idle for axis in move.axes}
    out = [*([_local(first, geometry)] if first else []), *sending]
    if change.created:
        if len(out) == 1 and not sending:
            out = [_local(first.union(change.created), geometry)]
        else:
            out.append(_local(change.created, geometry))
    per_device = [0] * prod(geometry.dst_shape)
    elsewhere = [0] * prod(geometry.src_shape)
    for move in sending:
        if move.on_src:
            elsewhere = list(map(add, elsewhere, move.received))
        else:
            per_device = list(map(add, per_device, move.received))
    if any(elsewhere):
        for position, p in enumerate(geometry.device):
            if p >= 0:
                per_device[position] += elsewhere[p]
                elsewhere[p] = 0
    received = tuple(per_device if geometry.same else per_device + elsewhere)
    return Way(tuple(out) or (_local((), geometry),), sum(received), max(received), received)
