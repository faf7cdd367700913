"""Rotary position embedding: pairs of numbers turned by an angle that depends on the position.

    y = x cos + turned(x) sin, in float32, cast back
    turned: (a, b) -> (-b, a) for neighbours (x0, x1) with use_real_unbind_dim -1, for halves with -2

Shapes      x [... d], cos and sin [s d] or whatever broadcasts to x -> y [... d]
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d of x but the last, which is cut between pairs of neighbours

    x       cos     sin     y
    R       R       R       R
    S(d)    S(d)    S(d)    S(d)
    S(d)    R       R       S(d)    cos and sin are broadcast along d
    P       R       R       P
    R       P       P       P

The gradient of x is x's own operator, turned back: sin is negated and swapped within pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.errors import ShapeError
from dtorch.op.dims import UNCUT
from dtorch.ops.fused.compiled import CompiledFunction
from dtorch.ops.standard.composed import Composed, Nested
from dtorch.ops.standard.statistics import wide


def _pairs(x: torch.Tensor, unbind_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second of each pair, [... d/2]."""
    half = x.shape[-1] // 2
    if unbind_dim == -1:
        return x.unflatten(-1, (half, 2)).unbind(-1)
    return x.unflatten(-1, (2, half)).unbind(-2)


def _joined(a: torch.Tensor, b: torch.Tensor, unbind_dim: int) -> torch.Tensor:
    return torch.stack((a, b), -1).flatten(-2) if unbind_dim == -1 else torch.cat((a, b), -1)


def _turned(x: torch.Tensor, unbind_dim: int) -> torch.Tensor:
    a, b = _pairs(x, unbind_dim)
    return _joined(-b, a, unbind_dim)


def reference(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, use_real_unbind_dim: int = -1
) -> torch.Tensor:
    """Turn pairs of the last dim of x by the angles of which cos and sin are given.

    Args:
        x: [B, H, S, D] or any [..., D], D even.
        cos, sin: [S, D] or whatever broadcasts to x.
        use_real_unbind_dim: -1 pairs neighbours, -2 the first half with the second.

    Returns:
        x cos + turned(x) sin, of x's shape and dtype, computed in float32 (float64 for float64).

    Raises:
        ShapeError: D is odd, cos or sin do not broadcast to x, or there is no such pairing.
    """
    if use_real_unbind_dim not in (-1, -2):
        raise ShapeError(f"apply_rotary_emb: use_real_unbind_dim is -1 or -2, got {use_real_unbind_dim}")
    if x.ndim < 1 or x.shape[-1] % 2:
        raise ShapeError(f"apply_rotary_emb: the last dim of x {tuple(x.shape)} makes no pairs")
    for name, angle in (("cos", cos), ("sin", sin)):
        fits = angle.ndim <= x.ndim and all(
            n in (1, m) for n, m in zip(reversed(angle.shape), reversed(x.shape), strict=False)
        )
        if not fits or angle.ndim < 1 or angle.shape[-1] != x.shape[-1]:
            raise ShapeError(f"apply_rotary_emb: {name} {tuple(angle.shape)} does not fit x {tuple(x.shape)}")
    value = x.to(wide(x.dtype))
    return (value * cos + _turned(value, use_real_unbind_dim) * sin).to(x.dtype)


apply_rotary_emb = CompiledFunction(
    "apply_rotary_emb", "(Tensor x, Tensor cos, Tensor sin, int use_real_unbind_dim=-1) -> Tensor", reference
)


def _setup(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    x, cos, sin, ctx.unbind_dim = inputs
    ctx.save_for_backward(x, cos, sin)


def _backward(ctx: Any, wanted: list[bool], grad: torch.Tensor) -> tuple:
    x, cos, sin = ctx.saved_tensors
    found: list[torch.Tensor | None] = [None] * 3
    if wanted[0]:
        first, second = _pairs(sin, ctx.unbind_dim)
        found[0] = apply_rotary_emb(grad, cos, -_joined(second, first, ctx.unbind_dim), ctx.unbind_dim)
    value, weight = x.to(wide(x.dtype)), grad.to(wide(grad.dtype))
    if wanted[1]:
        found[1] = (weight * value).sum_to_size(cos.shape).to(cos.dtype)
    if wanted[2]:
        found[2] = (weight * _turned(value, ctx.unbind_dim)).sum_to_size(sin.shape).to(sin.dtype)
    return (*found, None)


apply_rotary_emb.differentiate(_backward, _setup)


class ApplyRotaryEmb(Composed):
    """Rotary position embedding."""

    torch_ops = ("dtorch.apply_rotary_emb",)

    @property
    def neighbours(self) -> bool:
        """Whether pairs are neighbours."""
        return self.arguments["use_real_unbind_dim"] == -1

    def sizes(self) -> dict[str, int]:
        """The last dim is pairs of two."""
        shape = self.shapes[0] or ()
        return {**{f"d{i}": n for i, n in enumerate(shape[:-1])}, "e": shape[-1] // 2, "p": 2}

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """cos and sin hold the dims of x that they are not broadcast along."""
        shape = self.shapes[0] or ()
        pair = ("e", "p") if self.neighbours else ("p", "e")
        x: Nested = (*((f"d{i}",) for i in range(len(shape) - 1)), pair)
        found: list[Nested] = [x]
        for angle in self.shapes[1:]:
            assert angle is not None
            top = len(shape) - len(angle)
            found.append(
                tuple(names if shape[top + i] == angle[i] else (UNCUT,) for i, names in enumerate(x[top:]))
            )
        return found, [x]

    def whole(self) -> frozenset[str]:
        """A pair is never cut, nor are halves, which lie apart."""
        return frozenset("p") if self.neighbours else frozenset("pe")

    def linear(self) -> tuple[frozenset[int], ...]:
        """In x, and in cos and sin together."""
        return frozenset({0}), frozenset({1, 2})
