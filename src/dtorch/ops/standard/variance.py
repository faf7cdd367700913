"""Variance and standard deviation: var, std, var_mean, std_mean.

    y[...] = sum over the dims of (x - mean)^2 / (number of elements - correction)

Shapes      x [...] -> y [...] without the dims, or with size 1 there (keepdim); *_mean also give the mean
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       y
    R       R
    S(d)    S(d)    d is kept
    S(d)    R       d is reduced

The mean of all is found first, squares are summed around it: shards of unequal size count as they should, and
a large offset does not cancel.
Price       two all-reduces, of the mean and of the squares
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dtorch.op.dims import Names, Rule
from dtorch.op.group import Group
from dtorch.op.operator import Local
from dtorch.ops.standard.reduction import Reduction
from dtorch.ops.standard.statistics import count, wide


class Variance(Reduction):
    """Second moments around the mean."""

    type = "Reduce"
    torch_ops = (
        "aten.var.correction", "aten.std.correction", "aten.var_mean.correction", "aten.std_mean.correction",
    )  # fmt: skip

    def rule(self) -> Rule | None:
        """As every reduction's; None for complex numbers, whose variance is real, and where torch refuses."""
        if not self.inputs[0].spec.dtype.is_floating_point:  # type: ignore[union-attr]
            return None
        return self.reduction_rule(2 if "mean" in self.name else 1)

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Mean and squares."""
        return [(self.output_names, wide(self.dtype).itemsize)] * 2

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, which would warn of a shard without rows."""
        if inputs[0].numel() or 0 in (self.shapes[0] or ()):
            super().compute(inputs, outputs, local)
            return
        shape = self.output_shape(inputs[0].shape)
        outputs[:] = [inputs[0].new_empty(shape, dtype=self.dtype) for _ in self.metas]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The mean, then squares around it."""
        dtype = self.dtype
        xs = [mine[0].to(wide(dtype)) for mine in inputs]
        number = count(self.shapes[0] or (), self.reduced)
        correction = self.arguments.get("correction")
        divisor = max(0, number - (1 if correction is None else correction))
        means = group.all_reduce([x.sum(self.reduced, True) / number for x in xs], axes)
        sums = [(x - mean).square().sum(self.reduced, True) for x, mean in zip(xs, means, strict=True)]
        for out, x, mean, total in zip(outputs, xs, means, group.all_reduce(sums, axes), strict=True):
            value = total / divisor
            found = [value.sqrt() if "std" in self.name else value, mean][: len(self.output_metas)]
            shape = self.output_shape(x.shape)
            out[:] = [f.reshape(shape).to(dtype) for f in found]
