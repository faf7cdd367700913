"""renorm: slices along a dim scaled down to a norm at most, each by its own.

    y[i] = x[i] min(1, maxnorm / |x[i]|_p)

Shapes      x [... d ...] -> y [... d ...]
FLOPs       bound by memory
Placements  on one mesh axis, d the dim of the slices

    x       y
    R       R
    S(d)    S(d)
"""

from __future__ import annotations

from dtorch.op.dims import Rule
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.statistics import dim_names


class Renorm(Batched):
    """renorm: slices along a dim, each scaled by its own norm."""

    torch_ops = ("aten.renorm",)

    def rule(self) -> Rule:
        """A slice is whole."""
        names = dim_names(len(self.shapes[0] or ()))
        dim = self.arguments["dim"] % len(names)
        return Rule((names,), (names,), whole=frozenset(names) - {names[dim]})
