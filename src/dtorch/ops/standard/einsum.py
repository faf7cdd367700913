"""Contractions that torch does not make of mm and bmm: bilinear, addbmm.

    bilinear  y[b, o] = sum over i and j of x[b, i] w[o, i, j] z[b, j]
    addbmm    y[m, n] = beta a[m, n] + alpha sum over b and k of u[b, m, k] v[b, k, n]

torch.einsum, tensordot, multi_dot, matmul and inner arrive as bmm, mm, mul and views, whose rules (matmul.py)
say the rest: every letter of an equation may be cut, one that is summed leaves a pending sum.

Shapes      x [b i], w [o i j], z [b j] -> y [b o], these in any order, as in the gradients
FLOPs       bilinear 2 b o i j + 2 b o j: w with x, and that with z, as torch does; its gradients in the order
            of their arguments; addbmm 2 b m k n
Placements  on one mesh axis

    x       w       z       y               u       v       y
    R       R       R       R               R       R       R
    S(b)    R       S(b)    S(b)            S(b)    S(b)    P
    R       S(o)    R       S(o)            S(m)    R       S(m)
    S(i)    S(i)    R       P               S(k)    S(k)    P
    R       S(j)    S(j)    P               R       S(n)    S(n)
    P       R       R       P               P       R       P
    R       P       R       P               R       P       P
    R       R       P       P

What addbmm adds is P where the product is.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import ClassVar

from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Dims, Operator
from dtorch.ops.standard.matmul import AddMatmul


class Trilinear(Operator):
    """aten._trilinear: three tensors, unsqueezed at `expand`, multiplied, and summed over `sumdim`."""

    type = "Einsum"
    torch_ops = ("aten._trilinear",)

    def rule(self) -> Rule:
        """Dims of the common shape, less those that a tensor lacks."""
        expands = [self.arguments[f"expand{i}"] for i in (1, 2, 3)]
        common = len(self.shapes[0] or ()) + len(expands[0])
        names = tuple(f"d{d}" for d in range(common))
        inputs = tuple(tuple(n for d, n in enumerate(names) if d not in expand) for expand in expands)
        sizes: dict[str, int] = {}
        for dims, shape in zip(inputs, self.shapes, strict=True):
            for name, size in zip(dims, shape or (), strict=True):
                sizes[name] = sizes.get(name, 1) if size == 1 else size
        named = tuple(
            tuple(n if size == sizes[n] else UNCUT for n, size in zip(dims, shape or (), strict=True))
            for dims, shape in zip(inputs, self.shapes, strict=True)
        )
        output = tuple(n for d, n in enumerate(names) if d not in self.arguments["sumdim"])
        return Rule(named, (output,), tuple(frozenset({i}) for i in range(3)), sizes=sizes)

    def flops(self) -> int:
        """torch's order: the first two, summed at once over what they alone hold, then with the third.

        A product of two that sums nothing is element-wise, and not counted, as where torch makes it of mul.
        """
        rule = self.cached_rule
        assert rule is not None
        first, second, third = ({n for n in dims or () if n} for dims in rule.inputs)
        left = {n for n in first | second if n in third or n in rule.outputs[0]}
        steps = ((first | second, left), (left | third, set(rule.outputs[0])))
        summed = (names for names, kept in steps if names - kept)
        return self.real_operations() * sum(2 * prod(rule.sizes[n] for n in names) for names in summed)


class AddBatchMatmul(AddMatmul):
    """torch.addbmm: the batch is summed as well."""

    type = "Matmul"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.addbmm": Dims("batch1[b m k], batch2[b k n] -> y[m n]", ("batch1", "batch2"), "2 b m k n"),
    }
