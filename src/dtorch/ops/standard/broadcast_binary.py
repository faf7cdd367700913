"""Two tensors, or a tensor and a number, broadcast together: add, sub, mul, div, comparisons, logic, ...

    y[...] = x[...] op w[...]

Shapes      x [...], w [...] -> y [...], right-aligned, broadcast
FLOPs       bound by memory
Placements  as every element-wise operator (`pointwise.py`), and for pending sums

    op          x   w   y
    add, sub    P   P   P     not with a number: it would be added once per device
    mul         P   R   P
    mul         R   P   P
    div         P   R   P     not with rounding, nor by the number 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dtorch.ops.standard.pointwise import Pointwise


class BroadcastBinary(Pointwise):
    """Element-wise operators of two operands."""

    left_out = (
        ("aten.add", "other=0.0", "adding nothing"),
        ("aten.add", "other=2.2", "adding hardly anything"),
        ("aten.pow", "exponent=1.0", "the first power"),
        ("aten.xlogy", "P, R -> P", "0 log 0 is 0 for a sum of 0, not for its parts"),
        ("aten.special_xlog1py", "P, R -> P", "0 log 0 is 0 for a sum of 0, not for its parts"),
        ("aten.remainder", "S(0), S(0)", "whole numbers smaller than all that they are divided by"),
        ("aten.heaviside", "P -> ", "the second input counts only where the first is 0"),
        ("aten.__lshift__", "P", "of whole numbers, until they overflow"),
        ("aten.bitwise_left_shift", "P, R -> P", "of whole numbers, until they overflow"),
        ("aten.nextafter", "P", "a step is smaller than the tolerance"),
        ("aten.igamma", "P", "nan for a sum that is negative, which parts are"),
        ("aten.igammac", "P", "nan for a sum that is negative, which parts are"),
        ("aten.special_zeta", "P", "nan or infinite for most values"),
    )

    torch_ops = (
        "aten.add", "aten.sub", "aten.rsub", "aten.mul", "aten.div", "aten.true_divide", "aten.floor_divide",
        "aten.remainder", "aten.fmod", "aten.pow", "aten.atan2", "aten.maximum", "aten.minimum",
        "aten.fmax", "aten.fmin", "aten.eq", "aten.ne", "aten.lt", "aten.le", "aten.gt", "aten.ge",
        "aten.logical_and", "aten.logical_or", "aten.logical_xor",
        "aten.bitwise_and", "aten.bitwise_or", "aten.bitwise_xor",
        "aten.copysign", "aten.hypot", "aten.xlogy", "aten.heaviside", "aten.logaddexp", "aten.logaddexp2",
        "aten.ldexp",
    )  # fmt: skip
    compiled_alike = frozenset({
        "aten.add", "aten.bitwise_and", "aten.bitwise_or", "aten.div", "aten.eq", "aten.ge", "aten.gt",
        "aten.le", "aten.logical_and", "aten.logical_or", "aten.lt", "aten.maximum", "aten.minimum",
        "aten.mul", "aten.ne", "aten.rsub", "aten.sub",
    })  # fmt: skip

    free_scalars: ClassVar[Mapping[str, Sequence[str]]] = {
        "aten.add": ("other", "alpha"),
        "aten.sub": ("other", "alpha"),
        "aten.mul": ("other",),
        "aten.div": ("other",),
    }

    def linear_inputs(self) -> list[set[int]]:
        """Which inputs let pending sums through."""
        if self.name in ("aten.add", "aten.sub", "aten.rsub"):
            return [self.slots("self", "other")]
        if self.name == "aten.mul":
            both = (self.slot("self"), self.slot("other"))
            return [{i} for i in both if i is not None]
        if self.name == "aten.ldexp":
            return [self.slots("self")]
        if self.name in ("aten.div", "aten.true_divide") and self.arguments.get("rounding_mode") is None:
            return [self.slots("self")] if self.arguments["other"] != 0 else []
        return []
