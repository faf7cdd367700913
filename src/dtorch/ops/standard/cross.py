"""linalg.cross: the product of vectors in space.

    y = x1 cross x2, along a dim d of 3 elements

Shapes      x1 [... d ...], x2 [... d ...] -> y [... d ...], broadcast
FLOPs       bound by memory
Placements  on one mesh axis, e any dim but d

    x1      x2      y
    R       R       R
    S(e)    S(e)    S(e)
    S(e)    R       S(e)    where x2 has size 1 at e
    P       R       P
    R       P       P
"""

from __future__ import annotations

from dtorch.op.dims import UNCUT, Rule, broadcast_names
from dtorch.op.operator import Operator


class Cross(Operator):
    """Vector products, linear in either vector."""

    torch_ops = ("aten.linalg_cross",)

    def rule(self) -> Rule:
        """Every dim but the vectors'."""
        names, output = broadcast_names(self.shapes)
        dim = self.arguments["dim"] % len(output)
        whole = frozenset({output[dim]}) - {UNCUT}
        return Rule(names, (output,), (frozenset({0}), frozenset({1})), whole=whole)
