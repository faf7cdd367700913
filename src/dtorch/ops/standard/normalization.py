"""Layer normalisation and RMS normalisation, forward and backward.

    layer   y = (x - m) r w + b     m = mean of x, r = 1 / sqrt(mean of (x - m)^2 + eps), over the last dims
    rms     y = x r w               m = 0
    backward, with h = (x - m) r and g = dy w
            dx = r (g - mean(g) - h mean(g h)),  dw = sum of dy h,  db = sum of dy, over the leading dims

Shapes      x [b... n...], w [n...], b [n...] -> y [b... n...], m [b... 1...], r [b... 1...]
FLOPs       bound by memory
Placements  on one mesh axis

    x       w, b    y       m, r        dy, x   m, r    w       dx      dw, db
    R       R       R       R           R       R       R       R       R
    S(b)    R       S(b)    S(b)        S(b)    S(b)    R       S(b)    P
    S(n)    S(n)    S(n)    R           S(n)    R       S(n)    S(n)    S(n)
    R       P       P       R           P, R    R       R       P       P       dy alone pending
                                        R       R       P       P       R       the weight pending

Price       where n is cut: all-reduces of a number per row, two for layer (one for rms) forward as backward
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import torch

from dtorch.op.call import OutputMeta
from dtorch.op.dims import UNCUT, Names, Rule
from dtorch.op.group import Group
from dtorch.op.operator import Operator
from dtorch.op.signature import Row
from dtorch.ops.standard.statistics import Statistics, wide


class NormalizationBase(Statistics, abstract=True):
    """What forward and backward share."""

    @property
    def batch(self) -> Names:
        """Names of the leading dims."""
        x = self.shapes[self.slot("input")] or ()  # type: ignore[index]
        return tuple(f"b{i}" for i in range(len(x) - len(self.arguments["normalized_shape"])))

    @property
    def last(self) -> Names:
        """Names of the normalised dims."""
        return tuple(f"n{i}" for i in range(len(self.arguments["normalized_shape"])))

    @property
    def rows(self) -> Names:
        """Names of the dims of one number per row."""
        return (*self.batch, *(UNCUT for _ in self.last))

    @property
    def dims(self) -> tuple[int, ...]:
        """The normalised dims, counted from the end."""
        return tuple(range(-len(self.last), 0))

    @property
    def number(self) -> int:
        """Number of elements in a row."""
        return prod(self.arguments["normalized_shape"])

    @property
    def centred(self) -> bool:
        """Whether the mean is subtracted."""
        return "layer" in self.name

    def bytes_per_element(self) -> int:
        """Of a statistic."""
        x = self.inputs[self.slot("input")]  # type: ignore[index]
        assert x is not None
        return wide(x.spec.dtype).itemsize

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Mean and squares; of the squares' place the backward has the mean of g h."""
        return [(self.rows, self.bytes_per_element())] * (2 if self.centred else 1)

    def value(self, mine: Sequence[Any], name: str) -> torch.Tensor | None:
        """A local input by name, halves as float32; None where absent."""
        return None if self.slot(name) is None else self.given(mine, name)

    def given(self, mine: Sequence[Any], name: str) -> torch.Tensor:
        """The same, for an input that is never absent."""
        x = mine[self.slot(name)]  # type: ignore[index]
        return x.to(wide(x.dtype))

    def named_inputs(self, **known: Names) -> tuple[Names | None, ...]:
        """Names of the inputs' dims."""
        names: list[Names | None] = [None] * len(self.inputs)
        for name, dims in known.items():
            if (slot := self.slot(name)) is not None:
                names[slot] = dims
        return tuple(names)

    def mean(self, group: Group, values: list[torch.Tensor], axes: tuple[int, ...]) -> list[torch.Tensor]:
        """Mean over rows that several devices hold together."""
        return group.all_reduce([v.sum(self.dims, True) / self.number for v in values], axes)

    def cast(self, values: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Values in the dtypes of the outputs, None where there is none."""
        return [
            None if meta is None or value is None else value.to(meta.dtype)
            for value, meta in zip(values, self.output_metas, strict=True)
        ]


class Normalization(NormalizationBase):
    """Forward."""

    torch_ops = ("aten.native_layer_norm", "aten._fused_rms_norm")
    rowwise = frozenset({"aten.native_layer_norm"})
    kinds: ClassVar[Mapping[str, str]] = {
        "aten.native_layer_norm": "LayerNorm",
        "aten._fused_rms_norm": "RMSNorm",
    }

    def rule(self) -> Rule:
        """Leading dims are kept, the last ones need statistics."""
        x = (*self.batch, *self.last)
        inputs = self.named_inputs(input=x, weight=self.last, bias=self.last)
        return Rule(inputs, (x, *[self.rows] * (2 if self.centred else 1)), stats=frozenset(self.last))

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """torch's, less what its kernels for the CPU do otherwise."""
        return statistics_as_cpu(self, super().infer_output_meta_info())

    def pending_rows(self) -> Sequence[Row]:
        """y is linear in weight and bias together, statistics are without them."""
        if self.slot("weight") is None:
            return ()
        return [self.pending("weight", "bias", outputs="PRR" if self.centred else "PR")]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The mean of all, squares around it, then each shard for itself."""
        xs = [mine[self.slot("input")] for mine in inputs]  # type: ignore[index]
        eps = self.arguments["eps"]
        eps = torch.finfo(xs[0].dtype).eps if eps is None else eps
        xs = [x.to(wide(x.dtype)) for x in xs]
        means = self.mean(group, xs, axes) if self.centred else []
        if means:
            xs = [x - mean for x, mean in zip(xs, means, strict=True)]
        scales = [(square + eps).rsqrt() for square in self.mean(group, [x.square() for x in xs], axes)]
        for i, (mine, out, x, scale) in enumerate(zip(inputs, outputs, xs, scales, strict=True)):
            weight, bias = self.value(mine, "weight"), self.value(mine, "bias")
            y = x * scale if weight is None else x * scale * weight
            out[:] = self.cast([y if bias is None else y + bias, *means[i : i + 1], scale])


class NormalizationBackward(NormalizationBase):
    """Backward."""

    left_out = (("aten.native_layer_norm_backward", "P -> ", "the bias is not read"),)

    torch_ops = ("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")
    gradient_of: ClassVar[Mapping[int, str]] = {0: "input", 1: "weight", 2: "bias"}
    kinds: ClassVar[Mapping[str, str]] = {
        "aten.native_layer_norm_backward": "LayerNormBackward",
        "aten._fused_rms_norm_backward": "RMSNormBackward",
    }

    def rule(self) -> Rule:
        """The leading dims are summed in the gradients of weight and bias."""
        x = (*self.batch, *self.last)
        rows, last = self.rows, self.last
        inputs = self.named_inputs(grad_out=x, input=x, mean=rows, rstd=rows, weight=last, bias=last)
        wanted = [x, self.last, self.last][: 3 if self.centred else 2]
        outputs = tuple(n if m is not None else () for n, m in zip(wanted, self.metas, strict=True))
        return Rule(inputs, outputs, (frozenset({0}),), stats=frozenset(self.last))

    def pending_rows(self) -> Sequence[Row]:
        """dx is linear in the weight, the other gradients are without it."""
        if self.slot("weight") is None:
            return ()
        return [self.pending("weight", outputs="PRR" if self.centred else "PR")]

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """Two means of all, then each shard for itself."""
        hats, grads = [], []
        for mine in inputs:
            x, mean = self.given(mine, "input"), self.value(mine, "mean")
            hats.append((x if mean is None else x - mean) * self.given(mine, "rstd"))
            dy, weight = self.given(mine, "grad_out"), self.value(mine, "weight")
            grads.append(dy if weight is None else dy * weight)
        along = self.mean(group, [g * h for g, h in zip(grads, hats, strict=True)], axes)
        level = self.mean(group, grads, axes) if self.centred else [torch.zeros_like(a) for a in along]
        leading = tuple(range(len(self.batch)))
        for mine, out, h, g, a, m in zip(inputs, outputs, hats, grads, along, level, strict=True):
            dy, scale = self.given(mine, "grad_out"), self.given(mine, "rstd")
            found = [scale * (g - m - h * a), _sum(dy * h, leading), _sum(dy, leading)]
            out[:] = self.cast(found[: len(self.output_metas)])


def statistics_as_cpu(operator: Operator, metas: list[OutputMeta | None]) -> list[OutputMeta | None]:
    """On the CPU statistics of halves are halves too, unless the weights are float32."""
    if operator.mesh.device_type != "cpu":
        return metas
    dtypes = {x.spec.dtype for x in operator.inputs if x is not None}
    dtype = torch.float32 if len(dtypes) > 1 else dtypes.pop()
    return [metas[0], *(None if meta is None else meta._replace(dtype=dtype) for meta in metas[1:])]


def _sum(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return x.sum(dims) if dims else x
