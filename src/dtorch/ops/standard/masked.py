"""masked_fill and masked_scatter: one value, or values in their order, where a mask is set.

    y = value if mask else x

Shapes      x [...], mask [...], value a number or a tensor without dims -> y [...], broadcast
FLOPs       bound by memory
Placements  as every element-wise operator (`pointwise.py`), and for pending sums

    with 0          P, R -> P
    by a tensor     P, R, P -> P

masked_scatter takes its values in their order, and a shard does not know how many went before: nothing is
cut. It is linear in x and values together.
"""

from __future__ import annotations

from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Operator
from dtorch.op.param import Slot
from dtorch.ops.standard.pointwise import Pointwise


class Masked(Pointwise):
    """masked_fill(self, mask, value)."""

    torch_ops = ("aten.masked_fill",)
    compiled_alike = frozenset(torch_ops)

    def linear_inputs(self) -> list[set[int]]:
        """Filling with 0 or a pending value is linear; any other value would be filled in once per device."""
        value = self.arguments["value"]
        if isinstance(value, Slot):
            return [self.slots("self", "value")]
        return [self.slots("self")] if value == 0 else []


class MaskedScatter(Operator):
    """masked_scatter(self, mask, source)."""

    type = "Masked"
    torch_ops = ("aten.masked_scatter",)

    def rule(self) -> Rule:
        """Nothing is cut; x and values are pending together."""
        names = tuple(None if s is None else (UNCUT,) * len(s) for s in self.shapes)
        ndim = len(self.output_metas[0].shape)  # type: ignore[union-attr]
        return Rule(names, ((UNCUT,) * ndim,), (frozenset({0, 2}),))
