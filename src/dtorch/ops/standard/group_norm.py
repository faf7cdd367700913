"""Group normalisation, forward and backward.

    y = (x - m) r w + b
            m = mean of x, r = 1 / sqrt(mean of (x - m)^2 + eps), over the channels of a group and space
    backward, with h = (x - m) r and g = dy w
            dx = r (g - mean(g) - h mean(g h)),  dw = sum of dy h,  db = sum of dy, over n and space

Shapes      x [n (g c) s...], w [(g c)], b [(g c)] -> y [n (g c) s...], m [n g], r [n g]
FLOPs       bound by memory
Placements  on one mesh axis; C is the dim (g c), cut where the cuts are boundaries of groups

    x       w, b    y       m, r        dy, x   m, r    w       dx      dw, db
    R       R       R       R           R       R       R       R       R
    S(n)    R       S(n)    S(n)        S(n)    S(n)    R       S(n)    P
    S(C)    S(C)    S(C)    S(C)        S(C)    S(C)    S(C)    S(C)    S(C)
    S(s)    R       S(s)    R           S(s)    R       R       S(s)    R
    R       P       P       R           P, R    R       R       P       P       dy alone pending
                                        R       R       P       P       R       the weight pending

Price       where space is cut: two all-reduces of a number per group, backward also one of dw and of db
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import torch

from dtorch.op.call import OutputMeta
from dtorch.op.dims import Names
from dtorch.op.group import Group
from dtorch.op.operator import Local
from dtorch.op.signature import Row
from dtorch.ops.standard.composed import Composed, Nested
from dtorch.ops.standard.normalization import statistics_as_cpu
from dtorch.ops.standard.statistics import Statistics, wide


class GroupNormBase(Composed, Statistics, abstract=True):
    """What forward and backward share."""

    @property
    def space(self) -> Names:
        """Names of the spatial dims."""
        return tuple(f"s{i}" for i in range(len(self.shapes[self.slot("input")] or ()) - 2))  # type: ignore[index]

    def sizes(self) -> dict[str, int]:
        """Channels are groups of equal size."""
        shape = self.shapes[self.slot("input")] or ()  # type: ignore[index]
        groups = self.arguments["group"]
        return {
            "n": shape[0],
            "g": groups,
            "c": shape[1] // groups,
            **dict(zip(self.space, shape[2:], strict=True)),
        }

    def known(self) -> dict[str, Nested]:
        """What the dims of every argument are composed of."""
        x: Nested = (("n",), ("g", "c"), *((name,) for name in self.space))
        return {
            "grad_out": x,
            "input": x,
            "mean": (("n",), ("g",)),
            "rstd": (("n",), ("g",)),
            "weight": (("g", "c"),),
            "bias": (("g", "c"),),
        }

    def whole(self) -> frozenset[str]:
        """Channels within a group; a single group is all of the channels."""
        return frozenset({"c"} if self.arguments["group"] > 1 else {"c", "g"})

    def statistic(self) -> frozenset[str]:
        """Space is combined."""
        return frozenset(self.space)

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Sizes among the arguments are those of the shard."""
        sizes = self.local_sizes(coord)
        space = prod(sizes[name] for name in self.space)
        return self.localized(coord, N=sizes["n"], C=sizes["g"] * sizes["c"], HxW=space, group=sizes["g"])

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """torch's own where no device is empty and none has to look at others."""
        alone = not self.statistics_axes()
        if alone and all(mine[self.slot("input")].numel() for mine in inputs):  # type: ignore[index]
            super().compute_group(inputs, outputs, group)
        else:
            self.combine(inputs, outputs, group, self.statistics_axes())

    def value(self, mine: Sequence[Any], name: str, coord: tuple[int, ...]) -> torch.Tensor:
        """A local argument as [n g c s], halves as float32; an absent weight is 1, an absent bias 0."""
        sizes, slot = self.local_sizes(coord), self.slot(name)
        if slot is None:
            x = mine[self.slot("input")]  # type: ignore[index]
            return x.new_full((1, 1, 1, 1), float(name == "weight"), dtype=wide(x.dtype))
        n, g, c = sizes["n"], sizes["g"], sizes["c"]
        shape = {
            "weight": (1, g, c, 1),
            "bias": (1, g, c, 1),
            "mean": (n, g, 1, 1),
            "rstd": (n, g, 1, 1),
        }.get(name, (n, g, c, prod(sizes[s] for s in self.space)))
        return mine[slot].reshape(shape).to(wide(mine[slot].dtype))

    def mean(self, group: Group, values: list[torch.Tensor], axes: tuple[int, ...]) -> list[torch.Tensor]:
        """Mean over groups that several devices hold together."""
        sizes = self.sizes()
        number = sizes["c"] * prod(sizes[s] for s in self.space)
        return group.all_reduce([v.sum((2, 3), True) / number for v in values], axes)

    def finish(self, values: Sequence[torch.Tensor], coord: tuple[int, ...]) -> list[torch.Tensor | None]:
        """Values in the shapes and dtypes of the outputs, None where there is none."""
        return [
            None if out is None else value.reshape(out.layout.local_shape(coord)).to(out.spec.dtype)
            for value, out in zip(values, self.outputs, strict=True)
        ]

    def item(self) -> int:
        """Bytes per element of a statistic."""
        x = self.inputs[self.slot("input")]  # type: ignore[index]
        assert x is not None
        return wide(x.spec.dtype).itemsize


class GroupNorm(GroupNormBase):
    """Forward."""

    type = "Normalization"
    torch_ops = ("aten.native_group_norm",)
    kinds = "GroupNorm"

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """By the arguments."""
        known = self.known()
        return self.named_inputs(known), [known["input"], known["mean"], known["rstd"]]

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """torch's, less what its kernels for the CPU do otherwise."""
        return statistics_as_cpu(self, super().infer_output_meta_info())

    def pending_rows(self) -> Sequence[Row]:
        """y is linear in weight and bias together, statistics are without them."""
        return () if self.slot("weight") is None else [self.pending("weight", "bias", outputs="PRR")]

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Mean and squares of each group."""
        return [(("n", "g"), self.item())] * 2

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The mean of all, squares around it, then each shard for itself."""
        xs = [self.value(mine, "input", coord) for mine, coord in zip(inputs, group.coords, strict=True)]
        means = self.mean(group, xs, axes)
        xs = [x - mean for x, mean in zip(xs, means, strict=True)]
        squares = self.mean(group, [x.square() for x in xs], axes)
        scales = [(square + self.arguments["eps"]).rsqrt() for square in squares]
        for mine, out, coord, x, mean, scale in zip(
            inputs, outputs, group.coords, xs, means, scales, strict=True
        ):
            y = x * scale * self.value(mine, "weight", coord) + self.value(mine, "bias", coord)
            out[:] = self.finish([y, mean, scale], coord)


class GroupNormBackward(GroupNormBase):
    """Backward."""

    type = "NormalizationBackward"
    torch_ops = ("aten.native_group_norm_backward",)
    gradient_of: ClassVar[Mapping[int, str]] = {0: "input", 1: "weight"}
    kinds = "GroupNormBackward"

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """By the arguments."""
        known = self.known()
        return self.named_inputs(known), self.nested_gradients(known["input"], known["weight"], known["bias"])

    def linear(self) -> tuple[frozenset[int], ...]:
        """In the gradient that comes in."""
        return (frozenset({self.slot("grad_out")}),)  # type: ignore[arg-type]

    def pending_rows(self) -> Sequence[Row]:
        """dx is linear in the weight, the other gradients are without it."""
        return () if self.slot("weight") is None else [self.pending("weight", outputs="PRR")]

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Two means of each group, and the gradients of weight and bias."""
        wanted = sum(meta is not None for meta in self.output_metas[1:])
        return [*[(("n", "g"), self.item())] * 2, *[(("g", "c"), self.item())] * wanted]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Means of all, each shard for itself, sums of all."""
        grads, hats, scaled = [], [], []
        for mine, coord in zip(inputs, group.coords, strict=True):
            x, mean, scale, dy, weight = (
                self.value(mine, name, coord) for name in ("input", "mean", "rstd", "grad_out", "weight")
            )
            hats.append((x - mean) * scale)
            grads.append(dy)
            scaled.append(dy * weight)
        along = self.mean(group, [g * h for g, h in zip(scaled, hats, strict=True)], axes)
        level = self.mean(group, scaled, axes)
        weights = [(dy * h).sum((0, 3)) for dy, h in zip(grads, hats, strict=True)]
        biases = [dy.sum((0, 3)) for dy in grads]
        if self.output_metas[1] is not None:
            weights = group.all_reduce(weights, axes)
        if self.output_metas[2] is not None:
            biases = group.all_reduce(biases, axes)
        for i, (mine, out, coord) in enumerate(zip(inputs, outputs, group.coords, strict=True)):
            dx = self.value(mine, "rstd", coord) * (scaled[i] - level[i] - hats[i] * along[i])
            out[:] = self.finish([dx, weights[i], biases[i]], coord)
