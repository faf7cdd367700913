"""where: one tensor's values where a condition holds, another's elsewhere.

    y = self if condition else other

Shapes      condition [...], self [...], other [...] or numbers -> y [...], broadcast
FLOPs       bound by memory
Placements  as every element-wise operator (`pointwise.py`), and for pending sums R, P, P -> P
"""

from __future__ import annotations

from dtorch.ops.standard.pointwise import Pointwise


class Where(Pointwise):
    """where(condition, self, other)."""

    torch_ops = ("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther")
    compiled_alike = frozenset({"aten.where"})

    def linear_inputs(self) -> list[set[int]]:
        """Both branches together."""
        return [self.slots("self", "other")]
