"""What operators share that read across the cuts of space, as kernels do that slide: convolution, pooling.

    place t reads the elements t stride - padding + k dilation, k = 0 ... kernel - 1

Space may be cut. Elements are then cut in chunks of their own number and places in chunks of theirs, so a
device lacks some of what its places read: the halo. It fetches that from whoever holds it, its neighbours or
theirs, and computes its own places, no others. Elements that are not there (padding) are filled.

Price       the elements that each device fetches, exactly
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch

from dtorch.op.dims import unscaled
from dtorch.op.group import Group
from dtorch.op.operand import Operand
from dtorch.op.operator import Operator
from dtorch.op.priced import HALO
from dtorch.redistribute import dim_order, fetching, memory_order
from dtorch.redistribute.fetching import Block, Interval, Runs
from dtorch.spec import Spec


class Window(NamedTuple):
    """How a kernel slides along one dim; in elements."""

    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def extent(self) -> int:
        """From the first element that a place reads to the last, both counted."""
        return (self.kernel - 1) * self.dilation + 1

    def reads(self, places: Interval) -> Interval:
        """The elements that these places read; they may stick out at both ends."""
        start, stop = places
        if start == stop:
            return (0, 0)
        return start * self.stride - self.padding, (stop - 1) * self.stride - self.padding + self.extent

    def read_by(self, elements: Interval) -> Interval:
        """The places that read these elements; the first begins no later than the elements do.

        Such places may stick out at both ends, and some read nothing of them where the stride leaves gaps.
        """
        start, stop = (position + self.padding for position in elements)
        if start == stop:
            return (0, 0)
        first = min(-((self.extent - 1 - start) // self.stride), start // self.stride)
        return first, (stop - 1) // self.stride + 1

    def first(self, place: int) -> int:
        """The first element that a place reads and that is there."""
        start = place * self.stride - self.padding
        return start if start >= 0 else start % self.dilation

    def size_of(self, place: int, size: int, padded: bool) -> int:
        """Of how many elements a place takes the mean, of `size` that are there; at least 1.

        Padding counts if `padded`, but never beyond the padding at the end.
        """
        start = place * self.stride - self.padding
        stop = min(start + self.kernel, size + self.padding)
        return max(1, stop - start if padded else min(stop, size) - max(start, 0))


class Adaptive(NamedTuple):
    """Windows that divide the elements of a dim among its places, as evenly as they can."""

    elements: int
    places: int

    def reads(self, places: Interval) -> Interval:
        """The elements that these places read."""
        start, stop = places
        if start == stop:
            return (0, 0)
        return start * self.elements // self.places, -(-stop * self.elements // self.places)

    def read_by(self, elements: Interval) -> Interval:
        """The places that read these elements."""
        start, stop = elements
        if start == stop:
            return (0, 0)
        return start * self.places // self.elements, -(-stop * self.places // self.elements)


Reach = Callable[[Any, Interval], Runs]
"""From a window and what a device holds of one tensor to what it asks for of another."""


def reads(window: Window | Adaptive, places: Interval) -> Runs:
    """The elements that places read."""
    return (window.reads(places),)


def read_by(window: Window | Adaptive, elements: Interval) -> Runs:
    """The places that read elements."""
    return (window.read_by(elements),)


class Fetch(NamedTuple):
    """Blocks of an input: its slot, and what each device asks for of it, in mesh order."""

    slot: int
    blocks: tuple[Block, ...]


class Windowed(Operator, abstract=True):
    """Base of operators that read across cuts; space is the last dims of every tensor."""

    sends = HALO

    @property
    @abstractmethod
    def windows(self) -> Sequence[Any]:
        """One for each dim of space: what its places read."""

    @abstractmethod
    def asked(self) -> Iterable[Fetch]:
        """What devices fetch where space is cut, each a `fetch_of`; the same one may come twice."""

    @property
    def needs_siblings(self) -> bool:  # type: ignore[override]
        """Where space is cut."""
        return bool(self.cut_space)

    @cached_property
    def cut_space(self) -> tuple[int, ...]:
        """Dims of space, from 0, that are cut alike everywhere and that places read across."""
        rule, rank = self.cached_rule, len(self.windows)
        assert rule is not None
        found = []
        operands = list(zip((*self.inputs, *self.outputs), (*rule.inputs, *rule.outputs), strict=True))
        for d in range(-rank, 0):
            held = [(x, names[d]) for x, names in operands if x is not None and names and len(names) >= rank]
            scaled = {unscaled(name) for _, name in held if name != unscaled(name)}
            cuts = {frozenset(x.layout.axes_of(d)) for x, name in held if unscaled(name) in scaled}
            if len(cuts) == 1 and any(cuts):
                found.append(rank + d)
        return tuple(found)

    @cached_property
    def fetches(self) -> tuple[Fetch, ...]:
        """What devices fetch, each once."""
        return tuple(dict.fromkeys(self.asked())) if self.cut_space else ()

    def fetch_of(self, slot: int | None, mine: Operand | None, reach: Reach) -> Fetch:
        """For the part of `mine` that a device holds it asks for a block of the input in `slot`."""
        assert slot is not None
        assert mine is not None
        source, rank = self.layouts[slot], len(self.windows)
        assert source is not None
        blocks = []
        for coord in self.mesh.coords:
            block: list[Runs | None] = [None] * source.ndim
            for d in self.cut_space:
                asked = reach(self.windows[d], self.held(mine, d, coord))
                block[d - rank] = fetching.closed(asked, fetching.held(source, source.ndim + d - rank, coord))
            blocks.append(tuple(block))
        return Fetch(slot, tuple(blocks))

    def held(self, operand: Operand, d: int, coord: tuple[int, ...]) -> Interval:
        """What a device holds of a dim of space, in global numbers."""
        layout = operand.layout
        return fetching.held(layout, layout.ndim - len(self.windows) + d, coord)

    def fetch(
        self, inputs: Sequence[Sequence[Any]], group: Group, asked: Fetch, fill: float = 0
    ) -> list[torch.Tensor]:
        """The blocks, filled beyond the ends."""
        layout = self.layouts[asked.slot]
        assert layout is not None
        at = dict(zip(self.mesh.coords, asked.blocks, strict=True))
        parts = [mine[asked.slot] for mine in inputs]
        return group.fetch(parts, layout, [at[coord] for coord in group.coords], fill)

    def received_bytes(self) -> tuple[int, ...]:
        """What each device fetches and does not hold."""
        total = [0] * self.mesh.size
        for slot, blocks in self.fetches:
            x = self.inputs[slot]
            assert x is not None
            for position, count in enumerate(fetching.received(x.layout, blocks)):
                total[position] += count * x.spec.itemsize
        return tuple(total) if any(total) else ()

    def sending_axes(self) -> tuple[int, ...]:
        """Those that cut space."""
        if not self.fetches:
            return ()
        layout, rank = self.layouts[self.fetches[0].slot], len(self.windows)
        assert layout is not None
        return tuple(sorted(axis for d in self.cut_space for axis in layout.axes_of(d - rank)))


def of(values: Sequence[int], dim: int) -> int:
    """A parameter that is given once for all dims, or for each."""
    return values[dim] if len(values) > 1 else values[0]


def in_order(x: torch.Tensor, spec: Spec) -> torch.Tensor:
    """A part with the order of strides that the whole tensor has."""
    order = memory_order(spec.shape, spec.stride)
    if order == dim_order(x):
        return x
    return torch.empty_permuted(x.shape, order, dtype=x.dtype, device=x.device).copy_(x)


def cropped(x: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    """The elements from `start` on of a dim, compact, in the same order of strides."""
    if (start, length) == (0, x.shape[dim]):
        return x
    return x.narrow(dim, start, length).clone()
