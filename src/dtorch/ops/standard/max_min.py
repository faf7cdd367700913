"""Reductions that need statistics of a dim: max, min, amax, amin, aminmax, any, all, prod.

    y[...] = max over the dims of x     (or min, or, and, product)

Shapes      x [...] -> y [...] without the dims, or with size 1 there (keepdim); aminmax gives two
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       y
    R       R
    S(d)    S(d)    d is kept
    S(d)    R       d is reduced: each device reduces its shard, the results are all-reduced

Price       an all-reduce of each output. Nothing here is linear: a pending sum is summed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dtorch.op.call import flatten
from dtorch.op.dims import Names, Rule
from dtorch.op.group import Group
from dtorch.ops.standard.reduction import Reduction
from dtorch.ops.standard.statistics import count

_KINDS = {
    "aten.max": ("max",), "aten.amax": ("max",), "aten.any": ("max",),
    "aten.min": ("min",), "aten.amin": ("min",), "aten.all": ("min",),
    "aten.aminmax": ("min", "max"), "aten.prod": ("prod",),
}  # fmt: skip


class MaxMin(Reduction):
    """Extremes, logic and products."""

    left_out = (("", "P -> P", "extremes over one element"),)

    torch_ops = (
        "aten.max.default", "aten.min.default", "aten.amax", "aten.amin", "aten.aminmax", "aten.any",
        "aten.all", "aten.prod",
    )  # fmt: skip
    rowwise = frozenset({"aten.amax", "aten.amin"})

    def rule(self) -> Rule | None:
        """As every reduction's, where torch reduces at all."""
        if self.arguments.get("dim") == [] and self.name in ("aten.any", "aten.all"):
            return None  # no dims is no reduction for these two, all dims for the others
        if not count(self.shapes[0] or (), self.reduced):
            return None  # of no elements there is no largest; torch says so
        return self.reduction_rule(len(_KINDS[self.name]))

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Each output."""
        return [(self.output_names, self.dtype.itemsize)] * len(_KINDS[self.name])

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Reduce each shard, then the results."""
        found = [self._reduce(mine[0], local.call) for mine, local in zip(inputs, group.locals, strict=True)]
        for number, kind in enumerate(_KINDS[self.name]):
            for out, value in zip(
                outputs, group.all_reduce([f[number] for f in found], axes, kind), strict=True
            ):
                out.append(value)

    def _reduce(self, x: torch.Tensor, call: Any) -> list[torch.Tensor]:
        if all(x.shape[d] for d in self.reduced) or self.name in ("aten.any", "aten.all", "aten.prod"):
            return flatten(call([x]))
        shape = self.output_shape(x.shape)
        return [x.new_full(shape, neutral(x.dtype, kind)) for kind in _KINDS[self.name]]


def neutral(dtype: torch.dtype, kind: str) -> float | int | bool:
    """What a maximum ("max") or minimum ("min") of `dtype` is not changed by."""
    if dtype == torch.bool:
        return kind == "min"
    if dtype.is_floating_point:
        return float("-inf") if kind == "max" else float("inf")
    facts = torch.iinfo(dtype)
    return facts.min if kind == "max" else facts.max
