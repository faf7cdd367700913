"""Sums over dims: sum, mean, nansum, count_nonzero.

    y[...] = sum over the dims of x,  mean = sum / their number of elements

Shapes      x [...] -> y [...] without the dims, or with size 1 there (keepdim)
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x           y
    R           R
    S(d)        S(d)    d is kept
    S(d)        P       d is summed
    P           P       sum and mean, unless dtype= rounds

A P is reduced at once, a node of its own, except inside a backward. A mean over a cut dim divides by the
number of elements of the whole, so shards of unequal size, and empty ones, count as they should.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.op.dims import Rule
from dtorch.op.operator import Local, Operator
from dtorch.ops.standard.statistics import count, dim_names, kept_names, named_dims, wide


class Reduce(Operator):
    """Reductions that are sums."""

    left_out = (
        ("aten.nansum", "P -> P", "linear only where nothing is nan"),
        ("aten.count_nonzero", "P -> R", "counts what is not zero, and no part is"),
    )

    torch_ops = ("aten.sum", "aten.mean", "aten.nansum", "aten.count_nonzero")
    reduces = True
    rowwise = frozenset({"aten.sum", "aten.mean"})

    @property
    def summed(self) -> tuple[int, ...]:
        """The dims that are summed."""
        return named_dims(self, len(self.shapes[0] or ()))

    def rule(self) -> Rule:
        """Names of the dims; those that are summed are missing on the right."""
        names = dim_names(len(self.shapes[0] or ()))
        kept = kept_names(names, self.summed, bool(self.arguments.get("keepdim")))
        return Rule((names,), (kept,), (frozenset({0}),) if self._is_linear() else ())

    def _is_linear(self) -> bool:
        assert self.inputs[0] is not None
        source = self.inputs[0].spec.dtype
        target = self.arguments.get("dtype") or source
        exact = source == target or (
            source.is_floating_point and torch.promote_types(source, target) == target
        )
        return exact and source != torch.bool and self.name in ("aten.sum", "aten.mean")

    def is_torch_call(self, local: Local) -> bool:
        """Unless it is a mean of which this device holds a share."""
        layout = self.layouts[0]
        assert layout is not None
        return self.name != "aten.mean" or not any(layout.axes_of(dim) for dim in self.summed)

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, except for a mean of which this device holds a share."""
        if self.is_torch_call(local):
            super().compute(inputs, outputs, local)
        else:
            outputs[:] = [self._share(inputs[0])]

    def _share(self, x: torch.Tensor) -> torch.Tensor:
        dtype = self.arguments.get("dtype") or x.dtype
        keepdim = bool(self.arguments.get("keepdim"))
        total = torch.sum(x, self.summed, keepdim, dtype=wide(dtype))
        return (total / count(self.shapes[0] or (), self.summed)).to(dtype)
