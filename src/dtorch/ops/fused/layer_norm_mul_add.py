"""Layer norm, scaled and shifted by numbers of each sequence: the modulation of diffusion transformers.

    y[b, s, n] = layer_norm(x)[b, s, n] (1 + scale[b, n]) + shift[b, n]

Shapes      x [b s n], scale and shift [b n], weight and bias [n] or absent -> y [b s n]
FLOPs       bound by memory
Placements  on one mesh axis

    x       scale   shift   weight  bias    y
    R       R       R       R       R       R
    S(b)    S(b)    S(b)    R       R       S(b)
    S(s)    R       R       R       R       S(s)
    S(n)    S(n)    S(n)    S(n)    S(n)    S(n)
    R       R       P       P       P       P

The last row needs a weight: without one, layer_norm(x) is no pending sum.

Price       where n is cut: two all-reduces of a number per row
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.functional import layer_norm

from dtorch.errors import ShapeError
from dtorch.op.dims import UNCUT, Names, Rule
from dtorch.op.group import Group
from dtorch.op.signature import Row
from dtorch.ops.fused.compiled import CompiledFunction
from dtorch.ops.standard.statistics import Statistics, wide


def reference(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    normalized_shape: Sequence[int],
    eps: float = 1e-5,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """layer_norm(x) (1 + scale[:, None]) + shift[:, None].

    Args:
        x: [B, S, D].
        scale, shift: [B, D].
        normalized_shape: [D].
        eps: added to the variance.
        weight, bias: [D] or None.

    Raises:
        ShapeError: x has other dims than three, or another dim than the last is normalised.
    """
    if x.ndim != 3 or tuple(normalized_shape) != tuple(x.shape[-1:]):
        raise ShapeError(
            f"layer_norm_mul_add: x is [batch, sequence, features] and normalized_shape [features], got "
            f"{tuple(x.shape)} and {tuple(normalized_shape)}"
        )
    return layer_norm(x, normalized_shape, weight, bias, eps) * (1 + scale[:, None]) + shift[:, None]


layer_norm_mul_add = CompiledFunction(
    "layer_norm_mul_add",
    "(Tensor x, Tensor scale, Tensor shift, int[] normalized_shape, float eps=1e-05, Tensor? weight=None, "
    "Tensor? bias=None) -> Tensor",
    reference,
)


def _setup(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    x, scale, _, ctx.normalized_shape, ctx.eps, weight, bias = inputs
    ctx.save_for_backward(x, scale, weight, bias)


def _backward(ctx: Any, wanted: list[bool], grad: torch.Tensor) -> tuple:
    x, scale, weight, bias = ctx.saved_tensors
    found: list[torch.Tensor | None] = [None] * 7
    normed, mean, rstd = torch.ops.aten.native_layer_norm(x, ctx.normalized_shape, weight, bias, ctx.eps)
    if wanted[1]:
        found[1] = (grad * normed).sum(1).to(scale.dtype)
    if wanted[2]:
        found[2] = grad.sum(1)
    mask = [wanted[0], wanted[5], wanted[6]]
    if any(mask):
        found[0], found[5], found[6] = torch.ops.aten.native_layer_norm_backward(
            grad * (1 + scale[:, None]), x, ctx.normalized_shape, mean, rstd, weight, bias, mask
        )
    return tuple(found)


layer_norm_mul_add.differentiate(_backward, _setup)


class LayerNormMulAdd(Statistics):
    """Layer norm, scaled and shifted."""

    torch_ops = ("dtorch.layer_norm_mul_add",)

    def rule(self) -> Rule:
        """Batch and sequence are kept, the last dim needs statistics."""
        names: dict[str, Names] = {"x": ("b", "s", "n"), "scale": ("b", "n"), "shift": ("b", "n")}
        names |= {"weight": ("n",), "bias": ("n",)}
        inputs: list[Names | None] = [None] * len(self.inputs)
        for name, dims in names.items():
            if (slot := self.slot(name)) is not None:
                inputs[slot] = dims
        return Rule(tuple(inputs), (("b", "s", "n"),), stats=frozenset("n"))

    def pending_rows(self) -> Sequence[Row]:
        """y is linear in weight, bias and shift together."""
        if self.slot("weight") is None:
            return ()
        return [self.pending("weight", "bias", "shift", outputs="P")]

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Mean, and mean of squares around it."""
        return [(("b", "s", UNCUT), wide(self.dtype).itemsize)] * 2

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The mean of all, squares around it, then each shard for itself."""
        number, eps = self.arguments["normalized_shape"][0], self.arguments["eps"]

        def mean(values: list[torch.Tensor]) -> list[torch.Tensor]:
            return group.all_reduce([v.sum(-1, True) / number for v in values], axes)

        xs = [mine[0].to(wide(mine[0].dtype)) for mine in inputs]
        xs = [x - m for x, m in zip(xs, mean(xs), strict=True)]
        squares = mean([x.square() for x in xs])
        for mine, out, x, square in zip(inputs, outputs, xs, squares, strict=True):
            y = x * (square + eps).rsqrt()
            for name, merge in (("weight", torch.mul), ("bias", torch.add)):
                if (slot := self.slot(name)) is not None:
                    y = merge(y, mine[slot])
            scale, shift = mine[self.slot("scale")], mine[self.slot("shift")]  # type: ignore[index]
            out[:] = [(y.to(mine[0].dtype) * (1 + scale[:, None]) + shift[:, None]).to(self.dtype)]
