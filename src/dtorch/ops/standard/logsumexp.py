"""logsumexp: the logarithm of a sum of exponentials, without overflow.

    y[...] = m + log(sum over the dims of exp(x - m)),  m = max over the dims of x

Shapes      x [...] -> y [...] without the dims, or with size 1 there (keepdim)
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       y
    R       R
    S(d)    S(d)    d is kept
    S(d)    R       d is reduced

Price       two all-reduces, of m and of the sum
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dtorch.op.dims import Names, Rule
from dtorch.op.group import Group
from dtorch.ops.standard.reduction import Reduction
from dtorch.ops.standard.statistics import reduced_shape, wide


class LogSumExp(Reduction):
    """logsumexp."""

    left_out = (("aten.logsumexp", "P -> P", "over dims of size 1 it is x"),)

    type = "MaxMin"
    torch_ops = ("aten.logsumexp",)

    def rule(self) -> Rule | None:
        """As every reduction's; None for complex numbers, which have no maximum."""
        if self.inputs[0].spec.dtype.is_complex:  # type: ignore[union-attr]
            return None
        return self.reduction_rule()

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Maximum and sum."""
        return [(self.output_names, wide(self.dtype).itemsize)] * 2

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Shift by the maximum of all, then sum."""
        dtype = self.dtype
        xs = [mine[0].to(wide(dtype)) for mine in inputs]
        tops = group.all_reduce([local_max(x, self.reduced) for x in xs], axes, "max")
        tops = [torch.where(top.isinf(), 0, top) for top in tops]
        sums = [(x - top).exp().sum(self.reduced, True) for x, top in zip(xs, tops, strict=True)]
        for out, x, top, total in zip(outputs, xs, tops, group.all_reduce(sums, axes), strict=True):
            out[:] = [(total.log() + top).reshape(self.output_shape(x.shape)).to(dtype)]


def local_max(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Largest element over `dims`, which stay with size 1; -inf where there is none."""
    if all(x.shape[d] for d in dims):
        return x.amax(dims, True)
    return x.new_full(reduced_shape(x.shape, dims, True), float("-inf"))
