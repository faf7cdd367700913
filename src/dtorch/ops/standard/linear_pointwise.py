"""Element-wise operators that are linear in some inputs, beside the binary ones.

Shapes      x [...] -> y [...], other inputs broadcast
FLOPs       bound by memory
Placements  as every element-wise operator (`pointwise.py`), and for pending sums

    neg, clone, deg2rad     P -> P
    lerp, number as weight  P, P, R -> P
    addcmul                 P, P, R -> P and P, R, P -> P
    addcdiv                 P, P, R -> P
    where                   R, P, P -> P
    masked_fill with 0      P, R -> P
    masked_fill by tensor   P, R, P -> P
    to a wider float        P -> P      a narrower one rounds, so the sum comes first
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from dtorch.op.param import Slot
from dtorch.ops.standard.pointwise import Pointwise


class BaseMath(Pointwise):
    """Functions of one tensor that are linear: neg, the identity, degrees and radians."""

    torch_ops = (
        "aten.neg", "aten.clone", "aten.deg2rad", "aten.rad2deg", "aten.lerp", "aten.addcmul", "aten.addcdiv",
    )  # fmt: skip
    free_scalars: ClassVar[Mapping[str, Sequence[str]]] = {
        "aten.lerp": ("weight",),
        "aten.addcmul": ("value",),
        "aten.addcdiv": ("value",),
    }

    def linear_inputs(self) -> list[set[int]]:
        """By the operator's formula."""
        if self.name in ("aten.neg", "aten.clone", "aten.deg2rad", "aten.rad2deg"):
            return [self.slots("self")]
        if self.name == "aten.lerp":
            return [self.slots("self", "end")]
        if self.name == "aten.addcmul":
            return [self.slots("self", "tensor1"), self.slots("self", "tensor2")]
        return [self.slots("self", "tensor1")]


class Where(Pointwise):
    """where(condition, self, other)."""

    torch_ops = ("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther")

    def linear_inputs(self) -> list[set[int]]:
        """Both branches together."""
        return [self.slots("self", "other")]


class Masked(Pointwise):
    """masked_fill(self, mask, value)."""

    torch_ops = ("aten.masked_fill",)

    def linear_inputs(self) -> list[set[int]]:
        """Filling with 0 or a pending value is linear; any other value would be filled in once per device."""
        value = self.arguments["value"]
        if isinstance(value, Slot):
            return [self.slots("self", "value")]
        return [self.slots("self")] if value == 0 else []


class Cast(Pointwise):
    """to(dtype), to(memory_format): a copy."""

    torch_ops = ("aten._to_copy",)

    def linear_inputs(self) -> list[set[int]]:
        """Pending sums survive a cast that loses nothing."""
        source = self.inputs[0].spec.dtype  # type: ignore[union-attr]
        target = self.arguments.get("dtype") or source
        return [{0}] if _holds(source, target) else []


def _holds(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value, and every sum, of `source` is exact or finer in `target`."""
    if source == target:
        return True
    if not source.is_floating_point or not target.is_floating_point:
        return False
    a, b = torch.finfo(source), torch.finfo(target)
    return b.eps <= a.eps and b.max >= a.max
