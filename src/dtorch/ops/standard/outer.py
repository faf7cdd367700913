"""Outer products: outer, where it arrives whole (below inference_mode; else torch makes it of mul), and addr.

    y[m, n] = x[m] z[n]                            addr: y = beta a + alpha x z

Shapes      x [m], z [n] -> y [m n]; addr adds a tensor broadcast to y
FLOPs       m n: one multiplication for each element, no contraction; the addition is not counted; 6 m n where
            complex: 4 multiplications and 2 additions
Placements  on one mesh axis

    x       z       y
    R       R       R
    S(m)    R       S(m)
    R       S(n)    S(n)
    P       R       P
    R       P       P

What is added is P where the product is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dtorch.op.operator import Dims, Operator
from dtorch.ops.standard.matmul import AddMatmul


class Outer(Operator):
    """torch.outer."""

    def real_operations(self) -> int:
        """Of one multiplication without addition."""
        return 6 if super().real_operations() > 1 else 1

    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.outer": Dims("self[m], vec2[n] -> y[m n]", ("self", "vec2"), "m n"),
    }


class AddOuter(AddMatmul):
    """torch.addr."""

    kinds = "Outer"
    type = "Outer"

    def real_operations(self) -> int:
        """Of one multiplication without addition."""
        return 6 if super().real_operations() > 1 else 1

    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.addr": Dims("vec1[m], vec2[n] -> y[m n]", ("vec1", "vec2"), "m n"),
    }
