"""copy_: another tensor's values written into this one, across dtypes, placements and meshes.

    x[...] = y[...]

Shapes      x [...], y [...] broadcast to x
FLOPs       none; touched are y read and x written
Placements  on one mesh axis; x keeps its own, y is brought to it (from another
            mesh by dispatch_value.py)

    x       y       x after
    R       R       R
    S(d)    S(d)    S(d)
    S(d)    R       S(d)    where y has size 1 at d, or no d
    P       P       P       unless the cast loses digits: then x is reduced first
"""

from __future__ import annotations

from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Operator
from dtorch.op.priced import touched
from dtorch.ops.standard.convert import holds


class Copy(Operator):
    """copy_(src)."""

    left_out = (("aten.copy", "P, P -> P", "a narrower type rounds each part, so the sum comes first"),)

    torch_ops = ("aten.copy",)

    def rule(self) -> Rule:
        """x's dims; those of y right-aligned."""
        x, y = self.inputs
        assert x is not None
        assert y is not None
        names = tuple(f"d{d}" for d in range(len(x.shape)))
        tail = names[max(len(x.shape) - len(y.shape), 0) :]
        sizes = x.shape[max(len(x.shape) - len(y.shape), 0) :]
        extra = (UNCUT,) * (len(y.shape) - len(tail))
        source = extra + tuple(
            n if a == b else UNCUT for n, a, b in zip(tail, sizes, y.shape[len(extra) :], strict=True)
        )
        linear = (frozenset((0, 1)),) if holds(y.spec.dtype, x.spec.dtype) else ()
        return Rule((names, source), (names,), linear)

    def traffic_bytes(self) -> int:
        """y read, x written."""
        return sum(map(touched, self.inputs))
