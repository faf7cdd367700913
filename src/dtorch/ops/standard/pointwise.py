"""Element-wise operators: every element of the output from the elements at the same place, inputs broadcast.

    y[...] = f(x1[...], x2[...], ...)

Shapes      x1 [...], x2 [...] -> y [...], right-aligned, broadcast
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d held at full size

    x1     x2     y
    R      R      R
    S(d)   S(d)   S(d)
    S(d)   R      S(d)    where x2 has size 1 at d, or no d
    P      R      P       a backward, x1 the gradient it is given

A kind that is linear in some inputs says so (`linear_inputs`), and lets pending sums through these.
"""

from __future__ import annotations

import cmath

from dtorch.op.dims import Rule, broadcast_names
from dtorch.op.operator import Operator


class Pointwise(Operator, abstract=True):
    """Base of the element-wise families."""

    def rule(self) -> Rule:
        """Right-aligned names, one output each."""
        names, output = broadcast_names(self.shapes)
        count = len(self.output_metas) or len(self.schema.returned)
        finite = all(cmath.isfinite(v) for v in self.arguments.values() if isinstance(v, (float, complex)))
        # Times infinity the parts of a sum, of both signs or 0, would add up to NaN.
        groups = tuple(frozenset(group) for group in self.linear_inputs() if group) if finite else ()
        return Rule(names, (output,) * count, groups)

    def linear_inputs(self) -> list[set[int]]:
        """Groups of inputs in which the result is jointly linear: of a backward the gradient, by default."""
        return [self.slots("grad_output")] if self.name.endswith("_backward") else []

    def slots(self, *names: str) -> set[int]:
        """Inputs that the named arguments hold; empty if one of them is a plain value."""
        found = [self.slot(name) for name in names]
        return set() if None in found else {i for i in found if i is not None}
