"""Batch normalisation, forward and backward; running statistics.

    y = (x - m) r w + b
            training: m = mean of x, r = 1 / sqrt(mean of (x - m)^2 + eps), over n and space;
            else the running ones
    running statistics, in training: old + momentum (m - old), and the same with the unbiased variance
    backward, with h = (x - m) r:  dw = sum of dy h,  db = sum of dy,
            dx = w r (dy - mean(dy) - h mean(dy h)) in training, else w r dy

Shapes      x [n c s...], w, b, running statistics [c] -> y [n c s...], m [c], r [c]
FLOPs       bound by memory
Placements  on one mesh axis; n stands for the spatial dims too; run: running mean and variance, written once

    x       w, b    run     y       m, r        dy, x   w, run  m, r    dx      dw, db
    R       R       R       R       R           R       R       R       R       R
    S(n)    R       R       S(n)    R           S(n)    R       R       S(n)    R
    S(c)    S(c)    S(c)    S(c)    S(c)        S(c)    S(c)    S(c)    S(c)    S(c)
    R       P       R       P       R           P, R    R       R       P       P       dy alone pending
                                                R       P, R    R       P       R       the weight pending

The statistics are those of the whole batch, however unevenly it is cut. Out of training the backward of a
batch that is cut gives P for dw and db.
Price       where n is cut in training: two all-reduces of a number per channel, forward as backward
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import torch

from dtorch.op.call import OutputMeta
from dtorch.op.dims import Names, Rule
from dtorch.op.group import Group
from dtorch.op.operator import Operator
from dtorch.op.signature import Row
from dtorch.ops.standard.normalization import statistics_as_cpu
from dtorch.ops.standard.statistics import Statistics, wide

_RUNNING = ("running_mean", "running_var")


class BatchNormBase(Statistics, abstract=True):
    """What forward and backward share."""

    @property
    def training(self) -> bool:
        """Whether the batch's own statistics count."""
        bound = self.arguments
        return bool(
            bound.get("training", bound.get("train", bound.get("update", "no_training" not in self.name)))
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape of x."""
        return self.shapes[self.slot("input")] or ()  # type: ignore[index]

    @property
    def x_names(self) -> Names:
        """Names of the dims of x."""
        return ("n", "c", *(f"s{d}" for d in range(len(self.shape) - 2)))

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims that statistics are taken over."""
        return (0, *range(2, len(self.shape)))

    @property
    def number(self) -> int:
        """Number of elements of a channel."""
        return prod(self.shape[d] for d in self.dims)

    def stats(self) -> frozenset[str]:
        """The same by name, where the batch's own statistics count."""
        return frozenset(self.x_names) - {"c"} if self.training else frozenset()

    def known_inputs(self) -> tuple[Names | None, ...]:
        """Names of the inputs' dims: activations, or one number per channel."""
        found: list[Names | None] = [None] * len(self.inputs)
        for i, shape in enumerate(self.shapes):
            if shape is not None:
                found[i] = self.x_names if len(shape) > 1 else ("c",) if shape != (0,) else ("",)
        return tuple(found)

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Two numbers for each channel."""
        x = self.inputs[self.slot("input")]  # type: ignore[index]
        assert x is not None
        return [(("c",), wide(x.spec.dtype).itemsize)] * 2

    def each(self, inputs: Sequence[Sequence[Any]], name: str) -> list[torch.Tensor]:
        """A local input of every device, halves as float32, numbers per channel broadcast to x."""
        slot = self.slot(name)
        found = [mine[slot] for mine in inputs]  # type: ignore[index]
        return [self.spread(x) if x.ndim == 1 else x.to(wide(x.dtype)) for x in found]

    def spread(self, channel: torch.Tensor) -> torch.Tensor:
        """A number per channel, to be broadcast to x."""
        return channel.to(wide(channel.dtype)).view(1, -1, *[1] * (len(self.shape) - 2))

    def sums(self, group: Group, values: list[torch.Tensor], axes: tuple[int, ...]) -> list[torch.Tensor]:
        """Sum of a channel over n and space, of all devices that hold a part of it."""
        return group.all_reduce([v.sum(self.dims, True) for v in values], axes)

    def cast(self, values: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Values in the dtypes of the outputs, None where there is none; numbers per channel in one dim."""
        return [
            None
            if meta is None or v is None
            else (v if len(meta.shape) > 1 else v.reshape(-1)).to(meta.dtype)
            for v, meta in zip(values, self.metas, strict=True)
        ]


class BatchNormForward(BatchNormBase, abstract=True):
    """What writes running statistics."""

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """As the base, but replicas of running statistics are one tensor, which is written once."""
        axes = self.statistics_axes()
        if axes:
            self.combine(inputs, outputs, group, axes)
            return
        seen: set[int] = set()
        for mine, out, local in zip(inputs, outputs, group.locals, strict=True):
            mine = list(mine)
            for name in _RUNNING if self.training else ():
                slot = self.slot(name)
                if slot is not None and mine[slot].data_ptr() in seen and mine[slot].numel():
                    mine[slot] = mine[slot].clone()
                elif slot is not None:
                    seen.add(mine[slot].data_ptr())
            if mine[0].numel() or 0 in self.shape:
                self.compute(mine, out, local)
            else:
                out[:] = [
                    mine[0].new_empty(y.layout.local_shape(local.coord), dtype=y.spec.dtype)
                    for y in self.outputs
                    if y
                ]

    def moments(
        self, inputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """x less its mean, mean and variance, on every device; running statistics follow."""
        xs = self.each(inputs, "input")
        means = [total / self.number for total in self.sums(group, xs, axes)]
        xs = [x - mean for x, mean in zip(xs, means, strict=True)]
        squares = self.sums(group, [x.square() for x in xs], axes)
        self._follow("running_mean", inputs, means)
        self._follow("running_var", inputs, [total / (self.number - 1) for total in squares])
        return xs, means, [total / self.number for total in squares]

    def _follow(self, name: str, inputs: list[list[Any]], found: list[torch.Tensor]) -> None:
        """Move running statistics towards the batch's; a tensor that devices share is written once."""
        slot, momentum = self.slot(name), self.arguments["momentum"]
        if slot is None:
            return
        seen: set[int] = set()
        for mine, value in zip(inputs, found, strict=True):
            running = mine[slot]
            if running.data_ptr() not in seen:
                seen.add(running.data_ptr())
                running.lerp_(value.reshape(-1).to(running.dtype), momentum)


class BatchNorm(BatchNormForward):
    """Forward."""

    left_out = (
        (
            "aten.native_batch_norm",
            "training=False",
            "linear in x, running mean and bias together; never pending",
        ),
        ("aten._native_batch_norm_legit", "momentum=0.0", "running statistics that do not move"),
        ("aten.native_batch_norm", "momentum=0.0", "running statistics that do not move"),
    )

    kinds = "BatchNorm"
    torch_ops = (
        "aten.native_batch_norm",
        "aten._native_batch_norm_legit",
        "aten._native_batch_norm_legit_no_training",
    )

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """torch's, less what its kernels for the CPU do otherwise: no statistics are kept out of training."""
        found = statistics_as_cpu(self, super().infer_output_meta_info())
        if self.training or self.mesh.device_type != "cpu":
            return found
        return [found[0], *(None if m is None else m._replace(shape=(0,), stride=(1,)) for m in found[1:])]

    def rule(self) -> Rule:
        """Channels are kept everywhere."""
        kept = [("c",) if m is not None and m.shape != (0,) else ("",) for m in self.metas[1:]]
        return Rule(self.known_inputs(), (self.x_names, *kept), stats=self.stats())

    def pending_rows(self) -> Sequence[Row]:
        """y is linear in weight and bias together, statistics are without them."""
        return () if self.slot("weight") is None else [self.pending("weight", "bias", outputs="PRR")]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The mean of all, squares around it, then each shard for itself."""
        xs, means, variances = self.moments(inputs, group, axes)
        scales = [(variance + self.arguments["eps"]).rsqrt() for variance in variances]
        ys = [x * scale for x, scale in zip(xs, scales, strict=True)]
        if self.slot("weight") is not None:
            ys = [y * w for y, w in zip(ys, self.each(inputs, "weight"), strict=True)]
        if self.slot("bias") is not None:
            ys = [y + b for y, b in zip(ys, self.each(inputs, "bias"), strict=True)]
        for out, *values in zip(outputs, ys, means, scales, strict=True):
            out[:] = self.cast(values)


class BatchNormUpdate(BatchNormForward):
    """Statistics alone: the batch's mean and variance."""

    type = "BatchNorm"
    torch_ops = ("aten.batch_norm_update_stats",)

    def rule(self) -> Rule:
        """Channels are kept."""
        return Rule(self.known_inputs(), (("c",),) * 2, stats=self.stats())

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Of all."""
        _, means, variances = self.moments(inputs, group, axes)
        for out, *values in zip(outputs, means, variances, strict=True):
            out[:] = self.cast(values)


class BatchNormBackward(BatchNormBase):
    """Backward."""

    left_out = (("", "", "statistics that are not read, or linear in x and their mean"),)

    kinds = "BatchNormBackward"
    torch_ops = ("aten.native_batch_norm_backward",)
    gradient_of: ClassVar[Mapping[int, str]] = {0: "input", 1: "weight"}

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """What is asked for; torch's meta kernel makes dx in any case."""
        wanted = self.arguments["output_mask"]
        made = super().infer_output_meta_info()
        return [meta if asked else None for meta, asked in zip(made, wanted, strict=True)]

    def rule(self) -> Rule:
        """Channels are kept everywhere; n and space are summed in the gradients of weight and bias."""
        outputs = tuple(
            () if m is None else names
            for m, names in zip(self.metas, (self.x_names, ("c",), ("c",)), strict=True)
        )
        return Rule(self.known_inputs(), outputs, (frozenset({0}),), stats=self.stats())

    def pending_rows(self) -> Sequence[Row]:
        """dx is linear in the weight, the other gradients are without it."""
        return () if self.slot("weight") is None else [self.pending("weight", outputs="PRR")]

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Any) -> None:
        """torch's own, but for a shard without anything."""
        if inputs[0].numel() or 0 in self.shape:
            Operator.compute(self, inputs, outputs, local)
            return
        outputs[:] = [
            None if y is None else inputs[0].new_zeros(y.layout.local_shape(local.coord), dtype=y.spec.dtype)
            for y in self.outputs
        ]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Two sums of all, then each shard for itself."""
        grads, scales = self.each(inputs, "grad_out"), self.each(inputs, "save_invstd")
        means = self.each(inputs, "save_mean")
        hats = [(x - m) * r for x, m, r in zip(self.each(inputs, "input"), means, scales, strict=True)]
        along = self.sums(group, [g * h for g, h in zip(grads, hats, strict=True)], axes)
        level = self.sums(group, grads, axes)
        weights = self.each(inputs, "weight") if self.slot("weight") is not None else [1.0] * len(grads)
        for out, g, h, r, w, a, b in zip(outputs, grads, hats, scales, weights, along, level, strict=True):
            dx = w * r * (g - b / self.number - h * a / self.number)
            out[:] = self.cast([dx, a, b])
