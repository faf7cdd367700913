"""Running totals along one dim: cumsum, cumprod, cummax, cummin, logcumsumexp.

    y[..., j] = x[..., 0] + ... + x[..., j]
            or their product, the largest or smallest with its place, the log of the sum of exp

Shapes      x [... d ...] -> y as x; cummax and cummin also give places
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d, that of the scan included

    x       y
    R       R
    S(d)    S(d)
    P       P       cumsum, unless dtype= rounds

Where the scan's dim is cut, every device scans what it holds; then the totals of those before it join in.
Price       an all-gather of a total for every device that cuts the dim, with its place for cummax, cummin
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dtorch.op.dims import Names, Rule
from dtorch.op.group import Group
from dtorch.ops.standard.statistics import Statistics, dim_names, wide

_JOIN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "aten.cumsum": torch.add,
    "aten.cumprod": torch.mul,
    "aten.logcumsumexp": torch.logaddexp,
}


class ScanBase(Statistics, abstract=True):
    """What all scans share."""

    @property
    def dim(self) -> int:
        """The dim along which totals run."""
        return self.arguments["dim"] % max(len(self.shapes[0] or ()), 1)

    def rule(self) -> Rule:
        """Every dim may be cut."""
        names = dim_names(len(self.shapes[0] or ()))
        linear = (frozenset({0}),) if self.is_linear() else ()
        count = len(self.metas)
        return Rule((names,), (names,) * count, linear, stats=frozenset(names[self.dim : self.dim + 1]))

    def is_linear(self) -> bool:
        """Whether sums of inputs give sums of outputs."""
        return False

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Joined, not reduced; see `statistics_bytes`."""
        return ()

    def statistics_bytes(self) -> int:
        """A total, and for extremes its place, of every run that is held together."""
        axes, layout = self.statistics_axes(), self.layouts[0]
        if not axes or layout is None:
            return 0
        ring = [c for c in self.mesh.coords if all(x == 0 for a, x in enumerate(c) if a not in axes)]
        runs = sum(len(layout.local_indices(self.dim, coord)) for coord in ring)
        item = wide(self.dtype).itemsize + (8 if len(self.metas) > 1 else 0)
        return self.gathered_bytes(self.dim, runs, item)

    def starts(self, coord: tuple[int, ...]) -> list[tuple[int, int]]:
        """Global start and length of every run of the dim that the device at `coord` holds."""
        layout = self.layouts[0]
        assert layout is not None
        return [
            (start, stop - start) for start, stop in layout.local_indices(self.dim, coord) if stop > start
        ]

    def runs(self, x: torch.Tensor, coord: tuple[int, ...]) -> list[torch.Tensor]:
        """The parts of a shard that are held together."""
        return (
            list(x.split([length for _, length in self.starts(coord)], self.dim)) if x.shape[self.dim] else []
        )

    def joined(
        self,
        group: Group,
        totals: Sequence[list[torch.Tensor]],
        likes: Sequence[torch.Tensor],
        axes: tuple[int, ...],
    ) -> list[tuple[list[int], torch.Tensor]]:
        """For every device the starts of all runs, ascending, and their totals in this order."""
        dim = self.dim
        own = [
            torch.cat(row, dim) if row else like.narrow(dim, 0, 0)
            for row, like in zip(totals, likes, strict=True)
        ]
        everyone = group.all_gather(own, axes, dim)
        found: list[Any] = [None] * len(own)
        for ring in group.rings(axes):
            starts = [start for i in ring for start, _ in self.starts(group.coords[i])]
            order = sorted(range(len(starts)), key=starts.__getitem__)
            for i in ring:
                index = torch.tensor(order, dtype=torch.int64, device=everyone[i].device)
                found[i] = (sorted(starts), everyone[i].index_select(dim, index))
        return found


class Scan(ScanBase):
    """Totals of which later ones are earlier ones joined with more."""

    torch_ops = ("aten.cumsum", "aten.cumprod", "aten.logcumsumexp")

    def is_linear(self) -> bool:
        """Sums are, where no part is rounded."""
        assert self.inputs[0] is not None
        source, target = self.inputs[0].spec.dtype, self.dtype
        return self.name == "aten.cumsum" and torch.promote_types(source, target) == target != torch.bool

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Scan each run, then join what comes before it."""
        dim, join = self.dim, _JOIN[self.name]
        scan = getattr(torch, self.name.removeprefix("aten."))
        xs = [mine[0].to(wide(self.dtype)) for mine in inputs]
        runs = [[scan(run, dim) for run in self.runs(x, c)] for x, c in zip(xs, group.coords, strict=True)]
        totals = [[run.narrow(dim, -1, 1) for run in row] for row in runs]
        everyone = self.joined(group, totals, xs, axes)
        for out, x, row, coord, (starts, total) in zip(
            outputs, xs, runs, group.coords, everyone, strict=True
        ):
            done = []
            for run, (start, _) in zip(row, self.starts(coord), strict=True):
                earlier = starts.index(start)
                if earlier:
                    run = join(run, scan(total.narrow(dim, 0, earlier), dim).narrow(dim, -1, 1))
                done.append(run)
            out[:] = [(torch.cat(done, dim) if done else x).to(self.dtype)]


class ScanExtreme(ScanBase):
    """Extremes so far, and where the last of them is."""

    type = "Scan"
    torch_ops = ("aten.cummax", "aten.cummin")

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Scan each run; an earlier extreme stays until one as good comes."""
        dim = self.dim
        scan = torch.cummax if "max" in self.name else torch.cummin
        xs = [mine[0] for mine in inputs]
        runs = [
            [
                (found.values, found.indices + start)
                for run, (start, _) in zip(self.runs(x, coord), self.starts(coord), strict=True)
                for found in [scan(run, dim)]
            ]
            for x, coord in zip(xs, group.coords, strict=True)
        ]
        values = [[v.narrow(dim, -1, 1) for v, _ in row] for row in runs]
        places = [[p.narrow(dim, -1, 1) for _, p in row] for row in runs]
        tops = self.joined(group, values, xs, axes)
        where = self.joined(group, places, [x.to(torch.int64) for x in xs], axes)
        for i, (out, row, coord) in enumerate(zip(outputs, runs, group.coords, strict=True)):
            done = []
            for (value, place), (start, _) in zip(row, self.starts(coord), strict=True):
                earlier = tops[i][0].index(start)
                if earlier:
                    best = scan(tops[i][1].narrow(dim, 0, earlier), dim)
                    top = best.values.narrow(dim, -1, 1)
                    at = where[i][1].gather(dim, best.indices.narrow(dim, -1, 1))
                    stays = _beats(top, value, "max" in self.name)
                    value, place = torch.where(stays, top, value), torch.where(stays, at, place)
                done.append((value, place))
            empty = (xs[i], xs[i].to(torch.int64))
            out[:] = [torch.cat([pair[k] for pair in done], dim) if done else empty[k] for k in (0, 1)]


def _beats(earlier: torch.Tensor, later: torch.Tensor, largest: bool) -> torch.Tensor:
    """Whether an earlier extreme is better than a later one; NaN is best of all."""
    better = earlier > later if largest else earlier < later
    return (better | (earlier != earlier)) & (later == later)
