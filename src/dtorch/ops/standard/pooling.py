"""Pooling over the last dims, forward and backward: max, average, adaptive, fractional, and unpooling.

    max  y[..., t] = largest x[..., s] of the window at t, and where it is
    avg  y[..., t] = mean of x[..., s] over the window at t

Shapes      x [... s...] -> y [... t...]; two or three s; indices as y, within a plane of x
FLOPs       bound by memory
Placements  on one mesh axis, for every leading dim d; s a dim of the planes, not for fractional ones and back

    x       y               dy      x       dx
    R       R               R       R       R
    S(d)    S(d)            S(d)    S(d)    S(d)
    S(s)    S(s)            S(s)    S(s)    S(s)
    P       P               P       R       P
                            R       P       R
                            P       P       P

A maximum has no row P; its backward also takes the indices, cut as dy. Where planes are cut, y has chunks of
its own size, and each device fetches the halo that its windows read.
Price       the halo: forward rows of x, backward rows of dy, and of the indices
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import torch

from dtorch.op.group import Group
from dtorch.op.operand import Operand
from dtorch.op.operator import Dims
from dtorch.op.priced import touched
from dtorch.op.signature import Row
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.statistics import wide
from dtorch.ops.standard.windows import Adaptive, Fetch, Window, Windowed, in_order, of, read_by, reads
from dtorch.redistribute.fetching import Interval

_2D, _3D = ("h", "w"), ("d", "h", "w")


def _dims(line: str, linear: str = "", space: Sequence[str] = _2D, whole: bool = False) -> Dims:
    """A line in which s stands for the dims of a plane, t for those of a pooled one."""
    planes, pooled = (
        " ".join(form.format(name) for name in space)
        for form in (("{}!", "o{}!") if whole else ("{}", "{}'"))
    )
    return Dims(line.replace(" s]", f" {planes}]").replace(" t]", f" {pooled}]"), tuple(linear.split()))


class Planes(Batched, abstract=True):
    """Base of all that looks at planes one by one."""

    def traffic_bytes(self) -> int:
        """A backward does not read x."""
        unread = self.slot("self") if "backward" in self.name else None
        return self.operand_bytes() - (0 if unread is None else touched(self.inputs[unread]))

    def pending_rows(self) -> Sequence[Row]:
        """A backward reads of x its shape alone."""
        if "backward" not in self.name:
            return ()
        return [self.pending("self", outputs="R"), self.pending("self", "grad_output", outputs="P")]


class Pooling(Planes):
    """Pools with windows drawn for every n and channel, by numbers that are given; and back from places."""

    left_out = (
        ("", "R, P -> R", "numbers between 0 and 1 that a window is drawn by are never pending"),
        ("", "-> P", "windows that share a maximum would count it twice"),
    )

    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.max_unpool2d": _dims("self[... t], indices[... t] -> y[... s]", "self", whole=True),
        "aten.max_unpool3d": _dims("self[... t], indices[... t] -> y[... s]", "self", _3D, True),
        "aten.fractional_max_pool2d": _dims(
            "self[n c s], random_samples[n c two!] -> y[n c t], i[n c t]", whole=True
        ),
        "aten.fractional_max_pool3d": _dims(
            "self[n c s], random_samples[n c three!] -> y[n c t], i[n c t]", "", _3D, True
        ),
        "aten.fractional_max_pool2d_backward": _dims(
            "grad_output[... t], self[... s], indices[... t] -> dx[... s]", "grad_output", whole=True
        ),
        "aten.fractional_max_pool3d_backward": _dims(
            "grad_output[... t], self[... s], indices[... t] -> dx[... s]", "grad_output", _3D, True
        ),
    }


class WindowPooling(Windowed, Planes, abstract=True):
    """Base of pools whose windows are known; planes may be cut."""

    @property
    def pooled(self) -> tuple[int, ...]:
        """Global sizes of a pooled plane."""
        slot = self.slot("grad_output")
        shape = self.metas[0].shape if slot is None else self.shapes[slot]  # type: ignore[union-attr]
        assert shape is not None
        return shape[-self.rank :]

    @property
    def plane(self) -> tuple[int, ...]:
        """Global sizes of a plane."""
        shape = self.shapes[self.slot("self")]  # type: ignore[index]
        assert shape is not None
        return shape[-self.rank :]

    @property
    def rank(self) -> int:
        """Dims of a plane."""
        return 3 if "3d" in self.name else 2

    @cached_property
    def windows(self) -> Sequence[Window | Adaptive]:
        """By the arguments."""
        if "adaptive" in self.name:
            return [Adaptive(*sizes) for sizes in zip(self.plane, self.pooled, strict=True)]
        given = self.arguments
        columns = (
            given["kernel_size"],
            given["stride"] or given["kernel_size"],
            given["padding"],
            given.get("dilation", [1]),
        )
        return [Window(*(of(values, d) for values in columns)) for d in range(self.rank)]

    def native(self, x: torch.Tensor, **changed: Any) -> list[torch.Tensor]:
        """Outputs of the torch operator on a block x, which has all padding of cut dims already."""
        given = self.arguments | {"self": x}
        if "padding" in given:
            uncut = [0 if d in self.cut_space else of(given["padding"], d) for d in range(self.rank)]
            given["padding"] = uncut
        given |= changed
        found = self.call.func(*(given[name] for name in self.schema.names))
        return list(found) if isinstance(found, tuple) else [found]

    def intervals(self, operand: Operand | None, coord: tuple[int, ...]) -> list[Interval]:
        """What a device holds of every dim of a plane."""
        assert operand is not None
        return [self.held(operand, d, coord) for d in range(self.rank)]

    def runs(self, places: Sequence[Interval]) -> Iterable[Sequence[Interval]]:
        """Places that torch's kernel can pool together: all where windows slide, adaptive ones alone."""
        if "adaptive" not in self.name:
            return [places]
        each = [
            [(t, t + 1) for t in range(*interval)] if d in self.cut_space else [interval]
            for d, interval in enumerate(places)
        ]
        return product(*each)

    def part(self, x: torch.Tensor, wanted: Sequence[Interval], begins: Sequence[int]) -> torch.Tensor:
        """A view of a block whose planes begin at `begins`, of the intervals wanted of cut dims."""
        for d in self.cut_space:
            start, stop = wanted[d]
            x = x.narrow(d - self.rank, start - begins[d], stop - start)
        return x


class PoolForward(WindowPooling, abstract=True):
    """Forward."""

    def asked(self) -> Iterable[Fetch]:
        """What the device's windows read."""
        return [self.fetch_of(self.slot("self"), self.outputs[0], reads)]

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """Fetch, then each device for itself."""
        blocks = self.fetch(inputs, group, self.fetches[0], self.lowest(inputs[0][0].dtype))
        for out, block, coord in zip(outputs, blocks, group.coords, strict=True):
            made = [
                block.new_empty(y.layout.local_shape(coord), dtype=y.spec.dtype) for y in self.outputs if y
            ]
            places = self.intervals(self.outputs[0], coord)
            begins = [w.reads(interval)[0] for w, interval in zip(self.windows, places, strict=True)]
            firsts = [start for start, _ in places]
            for run in self.runs(places) if block.numel() else ():
                read = [w.reads(interval) for w, interval in zip(self.windows, run, strict=True)]
                found = self.pool(self.part(block, read, begins), run)
                for whole, values in zip(made, found, strict=True):
                    self.part(whole, run, firsts).copy_(values)
            out[:] = [in_order(x, y.spec) for x, y in zip(made, filter(None, self.outputs), strict=True)]

    def lowest(self, dtype: torch.dtype) -> float:
        """What stands for elements beyond the ends."""
        return 0

    @abstractmethod
    def pool(self, block: torch.Tensor, places: Sequence[Interval]) -> list[torch.Tensor]:
        """Outputs at places, from the block that these read."""


class MaxPool(PoolForward):
    """Maxima, and where they are in the whole plane."""

    left_out = (("", "P -> P, R", "windows of one element"),)

    type = "Pooling"
    rules: ClassVar[Mapping[str, Dims]] = {
        f"aten.{kind}": _dims("self[... s] -> y[... t], i[... t]", "", space)
        for kind, space in (
            ("max_pool2d_with_indices", _2D),
            ("max_pool3d_with_indices", _3D),
            ("adaptive_max_pool2d", _2D),
            ("adaptive_max_pool3d", _3D),
        )
    }

    def lowest(self, dtype: torch.dtype) -> float:
        """Less than all."""
        return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min

    def pool(self, block: torch.Tensor, places: Sequence[Interval]) -> list[torch.Tensor]:
        """As torch; where all of a window is lowest the first element is it, and no padding."""
        sizes = {"output_size": [stop - start for start, stop in places]}
        values, index = self.native(block, **(sizes if "output_size" in self.arguments else {}))
        spots = unravel(index, block.shape[-self.rank :])
        for d in self.cut_space:
            window = self.windows[d]
            spots[d] = spots[d] + window.reads(places[d])[0]
            if isinstance(window, Window):
                firsts = [window.first(t) for t in range(*places[d])]
                spots[d] = spots[d].maximum(along(torch.tensor(firsts, device=index.device), d - self.rank))
        return [values, ravel(spots, self.plane)]


class AvgPool(PoolForward):
    """Means."""

    type = "Pooling"
    rules: ClassVar[Mapping[str, Dims]] = {
        f"aten.{kind}": _dims("self[... s] -> y[... t]", "self", space)
        for kind, space in (
            ("avg_pool2d", _2D),
            ("avg_pool3d", _3D),
            ("_adaptive_avg_pool2d", _2D),
            ("_adaptive_avg_pool3d", _3D),
        )
    }

    def pool(self, block: torch.Tensor, places: Sequence[Interval]) -> list[torch.Tensor]:
        """Adaptive ones as torch; of others the sums, over the number of elements that count."""
        if "output_size" in self.arguments:
            return self.native(block, output_size=[stop - start for start, stop in places])
        total = self.native(block.to(wide(block.dtype)), divisor_override=1)[0]
        return [over(total, divisors(self, places, total))]


class PoolBackward(WindowPooling, abstract=True):
    """Backward."""

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """Fetch, then each device for itself."""
        fetched = [self.fetch(inputs, group, asked) for asked in self.fetches]
        dx = self.outputs[0]
        assert dx is not None
        for out, coord, *blocks in zip(outputs, group.coords, *fetched, strict=True):
            made = blocks[0].new_zeros(dx.layout.local_shape(coord))
            if made.numel():
                self.spread(blocks, made, self.intervals(dx, coord))
            out[:] = [in_order(made, dx.spec)]

    @abstractmethod
    def spread(
        self, blocks: Sequence[torch.Tensor], made: torch.Tensor, elements: Sequence[Interval]
    ) -> None:
        """Add to the device's part of dx, whose planes are `elements`, what the blocks bring."""


class MaxPoolBackward(PoolBackward):
    """Every dy goes where the maximum was."""

    left_out = (("", "-> P", "a sum over x would be owed where x can be cut as dy is"),)

    type = "Pooling"
    rules: ClassVar[Mapping[str, Dims]] = {
        f"{forward}_backward": _dims(
            "grad_output[... t], self[... s], indices[... t] -> dx[... s]",
            "grad_output",
            _3D if "3d" in forward else _2D,
        )
        for forward in MaxPool.rules
    }

    def asked(self) -> Iterable[Fetch]:
        """Of windows that read the device's elements dy, and which they took."""
        return [
            self.fetch_of(self.slot(name), self.outputs[0], read_by) for name in ("grad_output", "indices")
        ]

    def spread(
        self, blocks: Sequence[torch.Tensor], made: torch.Tensor, elements: Sequence[Interval]
    ) -> None:
        """Where they took one of the device's."""
        dy, index = blocks
        spots = unravel(index, self.plane)
        inside = torch.ones_like(index, dtype=torch.bool)
        for d, (start, stop) in enumerate(elements):
            inside &= (spots[d] >= start) & (spots[d] < stop)
            spots[d] = spots[d] - start
        at = ravel(spots, made.shape[-self.rank :]).where(inside, 0)
        lead = made.shape[: -self.rank]
        made.view(*lead, -1).scatter_add_(-1, at.reshape(*lead, -1), dy.where(inside, 0).reshape(*lead, -1))


class AvgPoolBackward(PoolBackward):
    """Every dy goes in equal parts to what the mean was taken of."""

    type = "Pooling"
    rules: ClassVar[Mapping[str, Dims]] = {
        f"{forward}_backward": _dims(
            "grad_output[... t], self[... s] -> dx[... s]", "grad_output", _3D if "3d" in forward else _2D
        )
        for forward in AvgPool.rules
    }

    def asked(self) -> Iterable[Fetch]:
        """Of windows that read the device's elements."""
        return [self.fetch_of(self.slot("grad_output"), self.outputs[0], read_by)]

    def spread(
        self, blocks: Sequence[torch.Tensor], made: torch.Tensor, elements: Sequence[Interval]
    ) -> None:
        """torch's own over all elements that the windows read, of which the device's are taken."""
        places = [w.read_by(interval) for w, interval in zip(self.windows, elements, strict=True)]
        for d in set(range(self.rank)) - set(self.cut_space):
            places[d] = (0, self.pooled[d])
        for run in self.runs(places):
            dy = self.part(blocks[0], run, [start for start, _ in places])
            read = [
                w.reads(run[d]) if d in self.cut_space else elements[d] for d, w in enumerate(self.windows)
            ]
            mine = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(read, elements, strict=True)]
            if any(start >= stop for start, stop in mine):
                continue  # all lie in a gap that the stride leaves
            x = dy.new_empty(*dy.shape[: -self.rank], *[stop - start for start, stop in read])
            if "kernel_size" in self.arguments:
                dy = over(dy, divisors(self, run, dy))
                found = self.native(x, grad_output=dy, divisor_override=1)[0]
            else:
                found = self.native(x, grad_output=dy)[0]
            share = self.part(found, mine, [start for start, _ in read])
            self.part(made, mine, [start for start, _ in elements]).add_(share)


def unravel(index: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    """Places along every dim of a plane, from flat ones."""
    spots = []
    for size in reversed(sizes):
        spots.append(index % size)
        index = index // size
    return spots[::-1]


def ravel(spots: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """Flat places in a plane."""
    index = spots[0]
    for spot, size in zip(spots[1:], sizes[1:], strict=True):
        index = index * size + spot
    return index


def along(values: torch.Tensor, dim: int) -> torch.Tensor:
    """One value for each place of a dim, counted from the last, to be broadcast."""
    return values.view(-1, *[1] * (-1 - dim))


def divisors(operator: WindowPooling, places: Sequence[Interval], like: torch.Tensor) -> torch.Tensor:
    """What a sum at each place is divided by for its mean: the elements of its window, padding or not."""
    given = operator.arguments
    if given["divisor_override"] is not None:
        return like.new_full((), given["divisor_override"])
    total = like.new_ones(())
    for d, (window, (start, stop), size) in enumerate(
        zip(operator.windows, places, operator.plane, strict=True)
    ):
        assert isinstance(window, Window)
        counts = [window.size_of(t, size, given["count_include_pad"]) for t in range(start, stop)]
        total = total * along(like.new_tensor(counts), d - operator.rank)
    return total


def over(x: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """x / divisor, whole numbers towards 0."""
    return x / divisor if x.is_floating_point() else x.div(divisor, rounding_mode="trunc")
