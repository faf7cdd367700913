"""What operators share that make every place of few elements, known beforehand: rolls, padding,
interpolation.

    y[..., t, ...] = sum over k of weights[k, t] x[..., sources[k, t], ...]    along each dim that moves

Such a dim may be cut. Elements are then cut in chunks of their own number and places in chunks of theirs;
each device fetches the elements that its places are made of and that it lacks, those and no others. A
backward goes the other way: a device fetches the places that its elements went into, and adds up.

Price       the elements, or places, that each device fetches, exactly
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from dtorch.op.dims import UNCUT, Rule
from dtorch.op.group import Group
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.statistics import wide
from dtorch.ops.standard.windows import Fetch, Windowed, in_order
from dtorch.redistribute.fetching import Interval, Runs
from dtorch.redistribute.local_work import LocalWork


@dataclass(frozen=True, eq=False)
class Taps:
    """What the places of one dim are made of.

    Attributes:
        elements: how many there are.
        sources: int64 [k, places], numbers of elements; -1 for none.
        weights: [k, places], what each counts; None where a place is one element, as it is.
    """

    elements: int
    sources: torch.Tensor
    weights: torch.Tensor | None = None

    @classmethod
    def of(cls, elements: int, source: torch.Tensor) -> Taps:
        """Places that are one element each."""
        return cls(elements, source[None])

    def reads(self, places: Interval) -> Runs:
        """The elements that these places are made of."""
        found = self.sources[:, slice(*places)]
        return _runs(found[found >= 0].unique())

    def read_by(self, elements: Interval) -> Runs:
        """The places that are made of these elements."""
        return _runs(self._within(elements).any(0).nonzero().flatten())

    def of_places(self, places: Interval, runs: Runs) -> Taps:
        """Those of some places, elements numbered as they stand in a block of them."""
        chosen, there = slice(*places), numbers(runs)
        sources = self.sources[:, chosen]
        at = torch.where(sources < 0, -1, torch.searchsorted(there, sources.contiguous()))
        return Taps(len(there), at, None if self.weights is None else self.weights[:, chosen])

    def of_elements(self, elements: Interval, runs: Runs) -> Taps:
        """Those of some elements, of the places in a block of them."""
        chosen = numbers(runs)
        at = torch.where(self._within(elements), self.sources - elements[0], -1)[:, chosen]
        weights = None if self.weights is None else self.weights[:, chosen]
        return Taps(elements[1] - elements[0], at, weights)

    def _within(self, elements: Interval) -> torch.Tensor:
        return (self.sources >= elements[0]) & (self.sources < elements[1])

    def picks(self, device: torch.device) -> list[Pick]:
        """One for each k, on a device; what is there is found out here, not when a kernel runs."""
        found = []
        for k, source in enumerate(self.sources):
            weight = None if self.weights is None else self.weights[k]
            there = source >= 0
            if there.all():
                at = None
            else:
                at, source = there.nonzero().flatten(), source[there]
                weight = None if weight is None else weight[there]
            at, weight = (None if t is None else t.to(device) for t in (at, weight))
            found.append(Pick(at, source.to(device), weight))
        return found


class Pick(NamedTuple):
    """One element for some places of a dim.

    Attributes:
        places: which, None for all in order.
        source: the element of each.
        weight: what it counts; None for 1.
    """

    places: torch.Tensor | None
    source: torch.Tensor
    weight: torch.Tensor | None

    def weighted(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Times what each counts."""
        return x if self.weight is None else x * self.weight.view(-1, *[1] * (x.ndim - 1 - dim))


class Step(NamedTuple):
    """Places of a block along one dim from its elements, or the other way."""

    dim: int
    elements: int
    places: int
    picks: Sequence[Pick]

    def gathered(self, x: torch.Tensor, fill: float) -> torch.Tensor:
        """Places from all elements; `fill` where one is made of none."""
        found = [pick.weighted(x.index_select(self.dim, pick.source), self.dim) for pick in self.picks]
        kept = self.picks[0].places
        if kept is None:
            return sum(found[1:], found[0])
        shape = [*x.shape[: self.dim], self.places, *x.shape[self.dim + 1 :]]
        return x.new_full(shape, fill).index_copy_(self.dim, kept, found[0])

    def spread(self, y: torch.Tensor) -> torch.Tensor:
        """To each element the sum of what places it went into; the adjoint of `gathered`."""
        found = y.new_zeros([*y.shape[: self.dim], self.elements, *y.shape[self.dim + 1 :]])
        for pick in self.picks:
            mine = y if pick.places is None else y.index_select(self.dim, pick.places)
            found.index_add_(self.dim, pick.source, pick.weighted(mine, self.dim))
        return found


class Tapped(Windowed, Batched, abstract=True):
    """Base of operators with taps; the first input is what moves, forward x and backward dy."""

    @abstractmethod
    def taps(self, dim: int) -> Taps | None:
        """Those of a dim whose places are not its elements; None where it stays, or must be whole."""

    def moving(self) -> set[int]:
        """Dims whose places are not their elements."""
        raise NotImplementedError

    def may_be_cut(self, dim: int) -> bool:
        """Whether a moving dim may."""
        return True

    def elements(self, dim: int) -> int:
        """Of a dim."""
        shape = self.metas[0].shape if self.backward else self.shapes[0]  # type: ignore[union-attr]
        assert shape is not None
        return shape[dim]

    @property
    def backward(self) -> bool:
        """Whether places become elements."""
        return "backward" in self.name

    def rule(self) -> Rule:
        """Names by number, those that move at two scales."""
        moving, ndim = self.moving(), len(self.shapes[0] or ())
        x, y = [], []
        for d in range(ndim):
            name = f"d{d}" if d not in moving or self.may_be_cut(d) else UNCUT
            x.append(name)
            y.append(f"{name}'" if d in moving and name else name)
        if self.backward:
            return Rule((tuple(y), tuple(x))[: len(self.inputs)], (tuple(x),), (frozenset((0,)),))
        return Rule((tuple(x),), (tuple(y),), (frozenset((0,)),))

    @cached_property
    def windows(self) -> Sequence[Taps | None]:
        """One for each dim."""
        moving = self.moving()
        with LocalWork():  # kept and used again, whatever surrounds the call
            return [self.taps(d) if d in moving else None for d in range(len(self.shapes[0] or ()))]

    def asked(self) -> Iterable[Fetch]:
        """Of x what the device's places are made of, of dy what its elements went into."""
        return [self.fetch_of(0, self.outputs[0], Taps.read_by if self.backward else Taps.reads)]

    @cached_property
    def _steps(self) -> dict[tuple[tuple[int, ...], torch.device], list[Step]]:
        return {}

    def steps(self, coord: tuple[int, ...], device: torch.device) -> list[Step]:
        """What one device does with its block, made once: along each dim that moves, the last first."""
        if (coord, device) not in self._steps:
            block = self.fetches[0].blocks[self.mesh.coords.index(coord)]
            found = []
            for dim, taps in reversed(list(enumerate(self.windows))):
                if taps is None:
                    continue
                runs = block[dim]
                if runs is not None:
                    assert self.outputs[0] is not None
                    part = taps.of_elements if self.backward else taps.of_places
                    taps = part(self.held(self.outputs[0], dim, coord), runs)
                found.append(Step(dim, taps.elements, taps.sources.shape[1], taps.picks(device)))
            self._steps[coord, device] = found
        return self._steps[coord, device]

    @property
    def fill(self) -> float:
        """What a place is that is made of nothing."""
        return 0

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """Fetch, then each device for itself, dim by dim."""
        y = self.outputs[0]
        assert y is not None
        blocks = self.fetch(inputs, group, self.fetches[0])
        weighted = any(taps is not None and taps.weights is not None for taps in self.windows)
        for out, block, coord in zip(outputs, blocks, group.coords, strict=True):
            x = block.to(wide(block.dtype)) if weighted else block
            for step in self.steps(coord, x.device):
                x = step.spread(x) if self.backward else step.gathered(x, self.fill)
            out[:] = [in_order(x.to(y.spec.dtype), y.spec)]


def _runs(found: torch.Tensor) -> Runs:
    """Ascending numbers as intervals."""
    ends = (found.diff() != 1).nonzero().flatten()
    starts = torch.cat([found[:1], found[ends + 1]]).tolist()
    return tuple(zip(starts, (torch.cat([found[ends], found[-1:]]) + 1).tolist(), strict=True))


def numbers(runs: Runs) -> torch.Tensor:
    """The numbers in intervals."""
    return torch.cat([torch.arange(0), *(torch.arange(*run) for run in runs)])
