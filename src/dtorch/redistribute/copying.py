"""Moving the data of a redistribution in this process.

Every part is looked at as its factors (a strided view, whatever the part's own strides), and what a result
has in common with a part is a box of both: each element of a distinct result is written once, straight from
where it lies. Index tensors are made only where two cuts of one dim fit each other in no other way.

Pending sums are added up from the first coordinate to the last, in float32 where the type is narrower, so a
sum does not depend on how the result is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import torch

from dtorch.layout import Layout, coordinates
from dtorch.redistribute.blocks import (
    Box,
    align,
    box_of,
    box_size,
    num_runs,
    shared_index,
    shared_runs,
    shared_size,
)
from dtorch.redistribute.counting import Change, Geometry, change_of, first_on, neighbours

# A box is copied in at most so many pieces; beyond, index tensors are cheaper.
_MANY_COPIES = 64


class View(NamedTuple):
    """A box of a part.

    Attributes:
        sizes: of the box.
        dims: for each dim of the box the dim of the part it runs along.
        steps: for each dim of the box how many strides of the part's dim one step is.
        offsets: where the box begins, for each dim of the part, in its strides.
    """

    sizes: tuple[int, ...]
    dims: tuple[int, ...]
    steps: tuple[int, ...]
    offsets: tuple[int, ...]

    def of(self, part: torch.Tensor) -> torch.Tensor:
        """The view of a part."""
        stride, start = part.stride(), part.storage_offset()
        for offset, step in zip(self.offsets, stride):
            start += offset * step
        strides = [stride[dim] * step for dim, step in zip(self.dims, self.steps)]
        return part.as_strided(self.sizes, strides, start)


class Pick(NamedTuple):
    """A dim of a box of which only some positions are taken: which in the source, and which in the result."""

    dim: int
    src: torch.Tensor
    dst: torch.Tensor


class Copy(NamedTuple):
    """A box that a result takes from the sum of the parts at the positions `sources`, in that order."""

    sources: tuple[int, ...]
    src: View
    dst: View
    picks: tuple[Pick, ...]

    @property
    def numel(self) -> int:
        """Elements written."""
        sizes = list(self.dst.sizes)
        for pick in self.picks:
            sizes[pick.dim] = len(pick.dst)
        return prod(sizes)


class Result(NamedTuple):
    """One part of the destination: its shape, disjoint boxes, and whether these are all of it."""

    shape: tuple[int, ...]
    copies: tuple[Copy, ...]
    full: bool


@lru_cache(maxsize=16384)
def result_at(src: Layout, dst: Layout, geometry: Geometry, position: int) -> Result:
    """How the part of the device at `position` of the destination is made."""
    change = change_of(src, dst, geometry.same)
    coord = coordinates(geometry.dst_shape)[position]
    shape = dst.local_shape(coord)
    copies: list[Copy] = []
    if prod(shape) and first_on(geometry.dst_shape, change.created_whole)[position]:
        nearest = _nearest(geometry, change, position, coord)
        free = [axis for axis in src.cut_axes if axis not in change.created_cut]
        for owner in neighbours(geometry.src_shape, nearest, free):
            addends = neighbours(geometry.src_shape, owner, change.reduced)
            sources = tuple(_position(geometry.src_shape, addend) for addend in addends)
            copies += _copies(src, dst, owner, coord, sources)
    return Result(shape, tuple(copies), sum(copy.numel for copy in copies) == prod(shape))


def _nearest(geometry: Geometry, change: Change, position: int, coord: tuple[int, ...]) -> list[int]:
    """Which of the source devices that hold the same a device reads: itself, if it is in the source mesh."""
    device = geometry.device[position]
    if device >= 0:
        nearest = list(coordinates(geometry.src_shape)[device])
    elif geometry.src_shape == geometry.dst_shape:
        nearest = list(coord)
    else:
        nearest = [0] * len(geometry.src_shape)
    for axis in change.kept:
        nearest[axis] = coord[axis]
    return nearest


def _position(shape: tuple[int, ...], coord: Sequence[int]) -> int:
    position = 0
    for size, index in zip(shape, coord):
        position = position * size + index
    return position


class _Stretch(NamedTuple):
    """One block of one dim: its box on the source and the destination device, and how far apart steps are."""

    dim: int
    boxes: tuple[Box, Box]
    steps: tuple[int, int]


def _copies(
    src: Layout, dst: Layout, owner: tuple[int, ...], coord: tuple[int, ...], sources: tuple[int, ...]
) -> list[Copy]:
    """The boxes that the part of `owner` and the result at `coord` share; none if they share nothing."""
    stretches: list[_Stretch] = []
    for dim, (before, after) in enumerate(zip(src.dims, dst.dims)):
        steps = (1, 1)
        for block in reversed(align(before, after)):
            boxes = box_of(block.src, src.mesh_shape, owner), box_of(block.dst, dst.mesh_shape, coord)
            if not shared_size(*boxes):
                return []
            stretches.append(_Stretch(dim, boxes, steps))
            steps = steps[0] * box_size(boxes[0]), steps[1] * box_size(boxes[1])
    # Two run lists share at most as many runs as both have, less one.
    counts = [sum(map(num_runs, stretch.boxes)) - 1 for stretch in stretches]
    if prod(counts) > _MANY_COPIES:
        return [_picking_copy(stretches, counts, src.ndim, sources)]
    runs = [shared_runs(*stretch.boxes) for stretch in stretches]
    return [_copy(stretches, chosen, src.ndim, sources) for chosen in product(*runs)]


def _copy(
    stretches: list[_Stretch], runs: Sequence[tuple[int, int, int]], ndim: int, sources: tuple[int, ...]
) -> Copy:
    """The copy of one run of every stretch."""
    sizes = [run[2] for run in runs]
    src, dst = (_view(stretches, side, [run[side] for run in runs], sizes, ndim, keep=()) for side in (0, 1))
    return Copy(sources, src, dst, ())


def _picking_copy(stretches: list[_Stretch], counts: list[int], ndim: int, sources: tuple[int, ...]) -> Copy:
    """One copy that takes all of the stretches with several runs, and picks from them by index."""
    runs = [shared_runs(*s.boxes)[0] if count == 1 else None for s, count in zip(stretches, counts)]
    several = [at for at, run in enumerate(runs) if run is None]
    views = []
    for side in (0, 1):
        offsets = [run[side] if run else 0 for run in runs]
        sizes = [run[2] if run else box_size(s.boxes[side]) for run, s in zip(runs, stretches)]
        views.append(_view(stretches, side, offsets, sizes, ndim, keep=several))
    kept = [at for at, run in enumerate(runs) if run is None or run[2] > 1]
    picks = tuple(Pick(kept.index(at), *shared_index(*stretches[at].boxes)) for at in several)
    return Copy(sources, views[0], views[1], picks)


def _view(
    stretches: list[_Stretch], side: int, offsets: list[int], sizes: list[int], ndim: int, keep: Sequence[int]
) -> View:
    """The view on one side; dims of size 1 are left out but for those in `keep`."""
    begin = [0] * ndim
    for stretch, offset in zip(stretches, offsets):
        begin[stretch.dim] += offset * stretch.steps[side]
    kept = [at for at, size in enumerate(sizes) if size > 1 or at in keep]
    return View(
        tuple(sizes[at] for at in kept),
        tuple(stretches[at].dim for at in kept),
        tuple(stretches[at].steps[side] for at in kept),
        tuple(begin),
    )


# Running.


def make(
    result: Result,
    parts: Sequence[torch.Tensor] | Mapping[int, torch.Tensor],
    order: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    fill: float = 0,
) -> torch.Tensor:
    """A fresh compact tensor with the value of `result`.

    Args:
        result: what to make.
        parts: the source's parts, by position.
        order: dims of the result from the one with the largest stride to the one with the smallest.
        dtype: of the parts.
        device: where the result is to live.
        fill: what stands where no box is.
    """
    out = torch.empty_permuted(result.shape, order, dtype=dtype, device=device)
    if not result.full:
        out.fill_(fill)
    for copy in result.copies:
        target = copy.dst.of(out)
        addends = [copy.src.of(parts[source]) for source in copy.sources]
        if copy.picks:
            _put(target, copy.picks, addends)
        else:
            _sum_into(target, addends)
    return out


def _put(target: torch.Tensor, picks: tuple[Pick, ...], addends: list[torch.Tensor]) -> None:
    """Writes the sum of the picked positions of `addends` to the picked positions of `target`."""
    for pick in picks:
        addends = [addend.index_select(pick.dim, pick.src.to(addend.device)) for addend in addends]
    total = torch.empty(addends[0].shape, dtype=target.dtype, device=target.device)
    _sum_into(total, addends)
    chosen = {pick.dim: pick.dst.to(target.device) for pick in picks}
    index = []
    for dim, size in enumerate(target.shape):
        positions = chosen.get(dim)
        if positions is None:
            positions = torch.arange(size, device=target.device)
        index.append(positions.view([-1 if other == dim else 1 for other in range(target.ndim)]))
    target.index_put_(tuple(index), total)


def _sum_into(target: torch.Tensor, addends: list[torch.Tensor]) -> None:
    """Writes the sum of `addends`, first to last, to `target`; the "sum" of bools is any of them."""
    on_gpu = target.is_cuda  # to a cpu a copy must be waited for: its value may be read at once
    if len(addends) == 1:
        target.copy_(addends[0], non_blocking=on_gpu and addends[0].is_cuda)
        return
    near = [
        a if a.device == target.device else a.to(target.device, non_blocking=on_gpu and a.is_cuda)
        for a in addends
    ]
    wide = sum_dtype(target.dtype)
    if wide is not target.dtype:
        total = near[0].to(wide)
        for addend in near[1:]:
            total.add_(addend.to(wide))
        target.copy_(total)
        return
    plus = torch.logical_or if target.dtype is torch.bool else torch.add
    plus(near[0], near[1], out=target)
    for addend in near[2:]:
        plus(target, addend, out=target)


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Types that torch does not add; sums of the same bits as int64 are theirs, modulo their range."""


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of `dtype` are added up."""
    if dtype in _UNSIGNED:
        return torch.int64
    if dtype is torch.complex32:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def memory_order(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Dims from the largest stride to the smallest, as torch orders them in a copy.

    A dim with stride 0 says nothing about its place, and stays where it is.
    """
    order = list(range(len(shape)))[::-1]
    for end in range(1, len(shape)):
        at = end
        for before in range(end - 1, -1, -1):
            a, b = order[before], order[at]
            if not stride[a] or not stride[b]:
                continue
            if stride[a] < stride[b]:
                break
            if (stride[a], shape[a]) > (stride[b], shape[b]):
                order[before], order[at] = b, a
                at = before
    return tuple(order[::-1])


def dim_order(part: torch.Tensor) -> tuple[int, ...]:
    """The memory order of a tensor."""
    return tuple(range(part.ndim)) if part.is_contiguous() else memory_order(part.shape, part.stride())
