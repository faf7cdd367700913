"""Functions of one tensor, element by element: exp, square, rsqrt, abs, round, cos, neg, log, isnan, ...

    y = f(x)                lerp, addcmul, addcdiv, complex and polar combine several tensors

Shapes      x [...] -> y [...], further inputs broadcast
FLOPs       bound by memory
Placements  as every element-wise operator (`pointwise.py`), and for pending sums

    neg, deg2rad, rad2deg   P -> P
    lerp, number as weight  P, P, R -> P
    addcmul                 P, P, R -> P and P, R, P -> P
    addcdiv                 P, P, R -> P
    complex                 P, P -> P
    polar                   P, R -> P

Whatever else torch tags as element-wise is served here, as functions that let no pending sum through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dtorch.ops.standard.pointwise import Pointwise

_FUNCTIONS = (
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh",
    "digamma", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "isfinite", "isinf", "isnan",
    "lgamma", "log", "log10", "log1p", "log2", "logical_not", "logit", "nan_to_num", "reciprocal", "round",
    "rsqrt", "sgn", "sign", "signbit", "sin", "sinc", "sinh", "sqrt", "square", "tan", "trunc",
)  # fmt: skip
_LINEAR = ("neg", "deg2rad", "rad2deg", "_conj_physical")
_GROUPS: Mapping[str, list[tuple[str, ...]]] = {
    "lerp": [("self", "end")],
    "addcmul": [("self", "tensor1"), ("self", "tensor2")],
    "addcdiv": [("self", "tensor1")],
    "complex": [("real", "imag")],
    "polar": [("abs",)],
}
"""Inputs in which the result is jointly linear."""


class BaseMath(Pointwise):
    """Element-wise mathematics."""

    left_out = (("aten.nan_to_num", "P -> P", "linear only where nothing is nan or infinite"),)

    torch_ops = (
        *(f"aten.{name}" for name in (*_FUNCTIONS, *_LINEAR)),
        "aten.lerp", "aten.addcmul", "aten.addcdiv", "aten.complex", "aten.polar",
    )  # fmt: skip
    compiled_alike = frozenset({
        "aten.abs", "aten.bitwise_not", "aten.addcdiv", "aten.addcmul", "aten.lerp", "aten.logical_not",
        "aten.neg", "aten.reciprocal", "aten.rsqrt",
    })  # fmt: skip
    free_scalars: ClassVar[Mapping[str, Sequence[str]]] = {
        "aten.lerp": ("weight",),
        "aten.addcmul": ("value",),
        "aten.addcdiv": ("value",),
    }

    def linear_inputs(self) -> list[set[int]]:
        """By the operator's formula."""
        name = self.name.removeprefix("aten.")
        groups = [("self",)] if name in _LINEAR else _GROUPS.get(name)
        return super().linear_inputs() if groups is None else [self.slots(*group) for group in groups]
