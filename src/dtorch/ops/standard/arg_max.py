"""Where the extreme is: argmax, argmin, and max, min with a dim, which give both value and index.

    y[...] = index of the first largest (smallest) element of x along the dim;
             without a dim, of x laid out flat

Shapes      x [...] -> y [...] without the dim, or with size 1 there (keepdim)
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       values  indices
    R       R       R
    S(d)    S(d)    S(d)        d is kept
    S(d)    R       R           d is reduced

Each device finds the first extreme of its shard. The values are all-reduced; then, among devices that hold
the winning value, the smallest global index: ties go to the first, as they do in torch. NaN wins over all.
Price       two all-reduces, one of values and one of indices
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dtorch.layout import Layout
from dtorch.op.dims import Names, Rule
from dtorch.op.group import Group
from dtorch.ops.standard.max_min import neutral
from dtorch.ops.standard.reduction import Reduction
from dtorch.ops.standard.statistics import count, global_positions

_NOWHERE = torch.iinfo(torch.int64).max


class ArgMax(Reduction):
    """Extremes with their places."""

    type = "MaxMin"
    torch_ops = ("aten.max.dim", "aten.min.dim", "aten.argmax", "aten.argmin")

    def rule(self) -> Rule | None:
        """As every reduction's."""
        if not count(self.shapes[0] or (), self.reduced):
            return None  # of no elements there is no first; torch says so
        return self.reduction_rule(1 if "arg" in self.name else 2)

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """The values, and the indices."""
        x = self.inputs[0]
        assert x is not None
        return [(self.output_names, x.spec.itemsize), (self.output_names, 8)]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The winning value, then the first place that holds it."""
        kind = "max" if "max" in self.name else "min"
        values, places = [], []
        for mine, coord in zip(inputs, group.coords, strict=True):
            value, place = self._first(mine[0], coord, kind)
            values.append(value)
            places.append(place)
        best = group.all_reduce(values, axes, kind)
        held = [torch.where(_same(v, b), p, _NOWHERE) for v, b, p in zip(values, best, places, strict=True)]
        for out, value, place in zip(outputs, best, group.all_reduce(held, axes, "min"), strict=True):
            out[:] = [place] if "arg" in self.name else [value, place]

    def _first(self, x: torch.Tensor, coord: tuple[int, ...], kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        if not all(x.shape[d] for d in self.reduced):
            shape = self.output_shape(x.shape)
            return x.new_full(shape, neutral(x.dtype, kind)), x.new_full(shape, _NOWHERE, dtype=torch.int64)
        layout = self.layouts[0]
        assert layout is not None
        extreme, find = (torch.amax, torch.argmax) if kind == "max" else (torch.amin, torch.argmin)
        dim = self.arguments.get("dim")
        # max(dim) takes bools, argmax does not.
        ranked = x.to(torch.uint8) if x.dtype is torch.bool and "arg" not in self.name else x
        value, index = extreme(x, self.reduced, self.keepdim), find(ranked, dim, self.keepdim)
        if dim is not None:
            return value, global_positions(layout, self.reduced[0], coord, x.device)[index]
        return value, _flat(index, x.shape, layout, coord)


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | ((a != a) & (b != b))


def _flat(index: torch.Tensor, shape: torch.Size, layout: Layout, coord: tuple[int, ...]) -> torch.Tensor:
    """A flat index into the shard as one into the whole."""
    found, step = torch.zeros_like(index), 1
    for dim in reversed(range(len(shape))):
        positions = global_positions(layout, dim, coord, index.device)
        found += positions[index % shape[dim]] * step
        index = index // shape[dim]
        step *= layout.shape[dim]
    return found
