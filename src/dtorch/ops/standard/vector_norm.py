"""Vector norms of any order, linalg_vector_norm.

    y[...] = (sum over the dims of |x|^p)^(1/p);  p = inf, -inf: largest, smallest |x|
                                              p = 0: how many are not 0

Shapes      x [...] -> y [...] without the dims, or with size 1 there (keepdim)
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       y
    R       R
    S(d)    S(d)    d is kept
    S(d)    R       d is reduced: the norm of the shards' norms

A pending sum is summed first: the norm of a sum is not the sum of norms.
Price       one all-reduce
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dtorch.op.dims import Names, Rule
from dtorch.op.group import Group
from dtorch.ops.standard.reduction import Reduction
from dtorch.ops.standard.statistics import wide


class VectorNorm(Reduction):
    """Norms of vectors."""

    left_out = (("aten.linalg_vector_norm", "ord=0", "counts what is not zero, and no part is"),)

    type = "Reduce"
    torch_ops = ("aten.linalg_vector_norm",)
    kinds = "VectorNorm"

    def rule(self) -> Rule:
        """As every reduction's."""
        return self.reduction_rule()

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """The shards' norms."""
        return [(self.output_names, wide(self.dtype).itemsize)]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The norm of norms."""
        order = float(self.arguments["ord"])
        norms = [self._norm(mine[0], order) for mine in inputs]
        if abs(order) == float("inf"):
            norms = group.all_reduce(norms, axes, "max" if order > 0 else "min")
        elif order == 0:
            norms = group.all_reduce(norms, axes)
        else:
            norms = [total.pow(1 / order) for total in group.all_reduce([n.pow(order) for n in norms], axes)]
        for out, norm in zip(outputs, norms, strict=True):
            out[:] = [norm.to(self.dtype)]

    def _norm(self, x: torch.Tensor, order: float) -> torch.Tensor:
        dtype = self.arguments.get("dtype") or x.dtype
        if all(x.shape[d] for d in self.reduced):
            return torch.linalg.vector_norm(x, order, self.reduced, self.keepdim, dtype=wide(dtype))
        filler = float("inf") if order < 0 else 0.0
        return torch.full(self.output_shape(x.shape), filler, dtype=wide(self.dtype), device=x.device)
