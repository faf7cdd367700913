"""softmax and log_softmax along one dim, and their backwards.

    softmax      y = exp(x - m) / s        m = max of x, s = sum of exp(x - m), along the dim
    log_softmax  y = x - m - log(s)
    backward     dx = y (dy - sum(dy y)),  dx = dy - exp(y) sum(dy)

Shapes      x [...] -> y [...]
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d, that of the softmax included

    x       y               dy      y       dx
    R       R               R       R       R
    S(d)    S(d)            S(d)    S(d)    S(d)
                            P       R       P

Price       where the softmax's dim is cut: two all-reduces forward (m and s), one backward; no gather
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch._prims_common import canonicalize_dim

from dtorch.op.dims import UNCUT, Names, Rule
from dtorch.op.group import Group
from dtorch.ops.standard.logsumexp import local_max
from dtorch.ops.standard.statistics import Statistics, dim_names, wide


class SoftmaxBase(Statistics, abstract=True):
    """What forward and backward share."""

    @property
    def dim(self) -> int:
        """The dim along which values sum to 1; IndexError out of range, which torch's meta kernel forgets."""
        return canonicalize_dim(len(self.shapes[0] or ()), self.arguments["dim"])

    def rule(self) -> Rule:
        """All dims may be cut; statistics along the softmax's. A backward is linear in its gradient."""
        names = dim_names(len(self.shapes[0] or ()))
        linear = (frozenset({0}),) if len(self.inputs) == 2 else ()
        return Rule(
            (names,) * len(self.inputs), (names,), linear, stats=frozenset(names[self.dim : self.dim + 1])
        )

    def row_names(self) -> Names:
        """Names of the dims of one number per row."""
        names = dim_names(len(self.shapes[0] or ()))
        return tuple(UNCUT if d == self.dim else n for d, n in enumerate(names))


class Softmax(SoftmaxBase):
    """The softmax family, forward."""

    torch_ops = ("aten._softmax", "aten._log_softmax", "aten._safe_softmax")
    rowwise = frozenset({"aten._softmax", "aten._log_softmax"})

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Maximum and sum of each row."""
        return [(self.row_names(), wide(self.dtype).itemsize)] * 2

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Maximum of all, sum of all, then each shard for itself."""
        dims = (self.dim,)
        xs = [mine[0].to(wide(self.dtype)) for mine in inputs]
        tops = group.all_reduce([local_max(x, dims) for x in xs], axes, "max")
        xs = [x - top for x, top in zip(xs, tops, strict=True)]
        sums = group.all_reduce([x.exp().sum(dims, True) for x in xs], axes)
        for out, x, top, total in zip(outputs, xs, tops, sums, strict=True):
            y = x - total.log() if self.name == "aten._log_softmax" else x.exp() / total
            if self.name == "aten._safe_softmax":
                y = torch.where(top == float("-inf"), 0, y)
            out[:] = [y.to(self.dtype)]


class SoftmaxBackward(SoftmaxBase):
    """The softmax family, backward."""

    torch_ops = ("aten._softmax_backward_data", "aten._log_softmax_backward_data")
    kinds: ClassVar[Mapping[str, str]] = {
        "aten._softmax_backward_data": "SoftmaxBackward",
        "aten._log_softmax_backward_data": "LogSoftmaxBackward",
    }

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """One sum for each row."""
        return [(self.row_names(), wide(self.dtype).itemsize)]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The sum of all, then each shard for itself."""
        logarithm = "log" in self.name
        pairs = [[t.to(wide(t.dtype)) for t in mine] for mine in inputs]
        sums = [(dy if logarithm else dy * y).sum((self.dim,), True) for dy, y in pairs]
        for out, (dy, y), total in zip(outputs, pairs, group.all_reduce(sums, axes), strict=True):
            dx = dy - y.exp() * total if logarithm else y * (dy - total)
            out[:] = [dx.to(self.dtype)]
