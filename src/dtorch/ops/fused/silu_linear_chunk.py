"""A linear layer on silu(emb), its result in chunks: the modulation of adaptive layer norms.

    y_1, y_2, ... = chunks along dim 1 of sum over i of silu(emb)[b, i] w[o, i] + bias[o]

Shapes      emb [b i], w [o i], bias [o] or absent -> `chunks` times y [b o/chunks], as torch.chunk cuts
FLOPs       2 b i o
Placements  on one mesh axis

    emb     w       bias    y
    R       R       R       R
    S(b)    R       R       S(b)
    S(i)    S(i)    P       P
    R       P       P       P

Rows of w are in no chunk of their own, so o stays whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear, silu

from dtorch.errors import ShapeError
from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Operator
from dtorch.ops.fused.compiled import CompiledFunction


def reference(
    emb: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, chunks: int = 1
) -> list[torch.Tensor]:
    """linear(silu(emb)) in chunks along dim 1, each in memory of its own.

    Args:
        emb: [B, I].
        weight: [O, I].
        bias: [O] or None.
        chunks: how many.

    Raises:
        ShapeError: emb has other dims than two, or there are no chunks.
    """
    if emb.ndim != 2:
        raise ShapeError(f"silu_linear_chunk: emb is [batch, features], got {tuple(emb.shape)}")
    if chunks < 1:
        raise ShapeError(f"silu_linear_chunk: {chunks} chunks")
    return [y.contiguous() for y in linear(silu(emb), weight, bias).chunk(chunks, 1)]


silu_linear_chunk = CompiledFunction(
    "silu_linear_chunk", "(Tensor emb, Tensor weight, Tensor? bias=None, int chunks=1) -> Tensor[]", reference
)


def _setup(ctx: Any, inputs: tuple, output: list[torch.Tensor]) -> None:
    emb, weight, *_ = inputs
    ctx.save_for_backward(emb, weight)


def _backward(ctx: Any, wanted: list[bool], grads: list[torch.Tensor]) -> tuple:
    emb, weight = ctx.saved_tensors
    grad = torch.cat(grads, 1)
    found: list[torch.Tensor | None] = [None] * 3
    if wanted[0]:
        found[0] = torch.ops.aten.silu_backward(grad @ weight, emb)
    if wanted[1]:
        found[1] = grad.t() @ silu(emb)
    if wanted[2]:
        found[2] = grad.sum(0)
    return (*found, None)


silu_linear_chunk.differentiate(_backward, _setup)


class SiluLinearChunk(Operator):
    """linear(silu(emb)) in chunks."""

    torch_ops = ("dtorch.silu_linear_chunk",)

    def rule(self) -> Rule:
        """The batch is kept, i is summed."""
        emb, weight = self.shapes[0], self.shapes[1]
        assert emb is not None
        assert weight is not None
        bias = self.slot("bias")
        inputs = (("b", "i"), ("o", "i"), *(() if bias is None else (("o",),)))
        linear = (frozenset({1} if bias is None else {1, bias}),)
        outputs = (("b", UNCUT),) * len(self.output_metas or self.infer_output_meta_info())
        sizes = {"b": emb[0], "i": emb[1], "o": weight[0]}
        return Rule(inputs, outputs, linear, whole=frozenset("o"), flops="2 b i o", sizes=sizes)
