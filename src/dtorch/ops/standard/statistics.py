"""What operators share that look over a cut dim: small statistics, combined between the devices that cut it.

A dims line marks such dims `d~`. Each device reduces its own shard, `Group.all_reduce` combines the results,
each device finishes its own part. A shard may be empty: its statistics are the neutral element of what is
combined. Where no `d~` dim is cut nothing is combined, and the torch operator itself runs on every device.

Price       a ring all-reduce of every statistic over the axes that cut `d~` dims
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.op.dims import UNCUT, Names
from dtorch.op.group import Group
from dtorch.op.operator import Operator
from dtorch.ops.standard.pending import PendingRows

_HALF = (torch.float16, torch.bfloat16)


class Statistics(PendingRows, abstract=True):
    """Base of operators with `d~` dims."""

    needs_siblings = True

    @abstractmethod
    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """As `compute_group`, where mesh axes `axes` cut a `d~` dim."""

    @abstractmethod
    def statistics(self) -> Iterable[tuple[Names, int]]:
        """What `combine` combines: names of each statistic's dims, and its bytes per element."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first output."""
        meta = self.metas[0]
        assert meta is not None
        return meta.dtype

    @property
    def output_names(self) -> Names:
        """Names of the first output's dims."""
        assert self.cached_rule is not None
        return self.cached_rule.outputs[0]

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """Combine where a `d~` dim is cut, else run each device alone."""
        axes = self.statistics_axes()
        if axes:
            self.combine(inputs, outputs, group, axes)
            for number, written in self.returned_inputs().items():
                for mine, out in zip(inputs, outputs, strict=True):
                    out[number] = mine[written].copy_(out[number])
            return
        for mine, out, local in zip(inputs, outputs, group.locals, strict=True):
            self.compute(mine, out, local)

    def statistics_bytes(self) -> int:
        """Bytes received by all devices together: every statistic is all-reduced once."""
        axes = self.statistics_axes()
        if not axes:
            return 0
        total = 0
        for names, itemsize in self.statistics():
            whole = self.layout_of(names)
            total += redistribute.cost(whole.with_partial(axes), whole, itemsize)
        return total

    def gathered_bytes(self, dim: int, count: int, itemsize: int) -> int:
        """Bytes received by all devices when `count` elements of `dim`, spread over them, are joined."""
        axes, layout = self.statistics_axes(), self.layouts[0]
        if not axes or layout is None:
            return 0
        joined = layout.with_dim(dim, ((count, ()),)).without_partial()
        return redistribute.cost(joined.with_dim(dim, ((count, axes),)), joined, itemsize)

    def seen_layouts(self) -> Sequence[Layout | None]:
        """The layouts of the inputs that `rule()` speaks of."""
        return self.layouts

    def statistics_axes(self) -> tuple[int, ...]:
        """Mesh axes that cut a `d~` dim."""
        rule = self.cached_rule
        if rule is None:
            return ()
        found: set[int] = set()
        for layout, names in zip(self.seen_layouts(), rule.inputs, strict=True):
            for dim, name in enumerate(names or ()):
                if layout is not None and name in rule.stats:
                    found.update(layout.axes_of(dim))
        return tuple(sorted(found))

    def layout_of(self, names: Names) -> Layout:
        """How a tensor with these dims lies on the mesh; `UNCUT` dims have size 1."""
        return Layout.of(self.mesh.shape, [self._factors(name) for name in names])

    def _factors(self, name: str) -> Sequence[tuple[int, tuple[int, ...]]]:
        rule = self.cached_rule
        assert rule is not None
        for layout, names in zip(self.seen_layouts(), rule.inputs, strict=True):
            if layout is not None and names and name != UNCUT and name in names:
                return layout.dims[names.index(name)]
        return ((1, ()),)


def dim_names(ndim: int) -> Names:
    """A name for every dim."""
    return tuple(f"d{dim}" for dim in range(ndim))


def named_dims(operator: Operator, ndim: int) -> tuple[int, ...]:
    """The argument `dim` as non-negative dims, ascending; all of them where it is absent or empty."""
    dim = operator.arguments.get("dim")
    if dim is None or dim == [] or dim == () or ndim == 0:
        return tuple(range(ndim))
    return tuple(sorted({d % ndim for d in ([dim] if isinstance(dim, int) else dim)}))


def kept_names(names: Names, dims: Iterable[int], keepdim: bool) -> Names:
    """Names of the dims of a reduction's output."""
    gone = set(dims)
    return tuple(UNCUT if d in gone else n for d, n in enumerate(names) if keepdim or d not in gone)


def reduced_shape(shape: Sequence[int], dims: Iterable[int], keepdim: bool) -> tuple[int, ...]:
    """The shape of a reduction's output."""
    gone = set(dims)
    return tuple(1 if d in gone else n for d, n in enumerate(shape) if keepdim or d not in gone)


def global_positions(layout: Layout, dim: int, coord: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Global indices of `dim` that the device at `coord` holds, ascending, int64."""
    runs = [torch.arange(start, stop, device=device) for start, stop in layout.local_indices(dim, coord)]
    return runs[0] if len(runs) == 1 else torch.cat([torch.arange(0, device=device), *runs])


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums of `dtype` are taken: halves in float32."""
    return torch.float32 if dtype in _HALF else dtype


def count(shape: Sequence[int], dims: Iterable[int]) -> int:
    """Number of elements that a reduction over `dims` combines into one."""
    return prod(shape[d] for d in dims)
