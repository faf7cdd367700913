"""Matrix products: mm, bmm, mv, dot, and those that add to the product.

    y[m, n] = sum over k of x[m, k] w[k, n]

Shapes      x [m, k], w [k, n] -> y [m, n]; bmm with a leading b; addmm adds a tensor broadcast to y
FLOPs       2 b m k n; the addition is not counted
Placements  on one mesh axis

    x       w       y
    R       R       R
    S(m)    R       S(m)
    R       S(n)    S(n)
    S(k)    S(k)    P
    P       R       P
    R       P       P

What is added is P where the product is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Dims, Local, Operator


class Matmul(Operator):
    """Products of two tensors."""

    kinds = "Matmul"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.mm": Dims("self[m k], mat2[k n] -> y[m n]", ("self", "mat2"), "2 m k n"),
        "aten.bmm": Dims("self[b m k], mat2[b k n] -> y[b m n]", ("self", "mat2"), "2 b m k n"),
        "aten.mv": Dims("self[m k], vec[k] -> y[m]", ("self", "vec"), "2 m k"),
        "aten.dot": Dims("self[k], tensor[k] -> y[]", ("self", "tensor"), "2 k"),
        "aten.vdot": Dims("self[k], other[k] -> y[]", ("self", "other"), "2 k"),
    }
    products: ClassVar[Mapping[str, tuple[str, str, str]]] = {
        "aten.mm": ("self", "mat2", ""),
        "aten.bmm": ("self", "mat2", ""),
    }


class AddMatmul(Operator):
    """beta * self + alpha * product; `self` is broadcast to the product."""

    left_out = (("aten.addmm", "beta=0", "beta = 0 makes the added tensor irrelevant"),)

    type = "Matmul"
    kinds = "Matmul"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.addmm": Dims("mat1[m k], mat2[k n] -> y[m n]", ("mat1", "mat2"), "2 m k n"),
        "aten.baddbmm": Dims("batch1[b m k], batch2[b k n] -> y[b m n]", ("batch1", "batch2"), "2 b m k n"),
        "aten.addmv": Dims("mat[m k], vec[k] -> y[m]", ("mat", "vec"), "2 m k"),
    }
    products: ClassVar[Mapping[str, tuple[str, str, str]]] = {
        "aten.addmm": ("mat1", "mat2", "self"),
        "aten.baddbmm": ("batch1", "batch2", "self"),
    }

    def inputs_text(self) -> str:
        """The product, then what is added: `[4, 8] x [8, 6] + [6]`."""
        added = self.slot("self")
        factors = [str(list(s)) for i, s in enumerate(self.shapes) if i != added and s is not None]
        return " x ".join(factors) + ("" if added is None else f" + {list(self.shapes[added] or ())}")

    def rule(self) -> Rule:
        """The product's dims; the added tensor has those of the output, and is in every linear group."""
        dims = super().rule()
        added = self.slot("self")
        assert dims is not None
        assert added is not None
        shape, output = self.shapes[added] or (), dims.outputs[0]
        names = list(dims.inputs)
        tail = output[len(output) - len(shape) :]
        names[added] = tuple(
            n if size == dims.sizes[n] else UNCUT for n, size in zip(tail, shape, strict=True)
        )
        groups = tuple(group | {added} for group in dims.linear)
        return Rule(tuple(names), dims.outputs, groups, dims.whole, dims.stats, dims.flops, dims.sizes)

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Integers take whole factors: torch says so itself, but not where a shard has nothing to sum."""
        x = self.inputs[0]
        if x is None or x.spec.dtype.is_floating_point or x.spec.dtype.is_complex:
            return super().localize(coord)
        return self.localized(coord, **{name: int(self.arguments[name]) for name in ("alpha", "beta")})

    def is_torch_call(self, local: Local) -> bool:
        """But for a shard without rows: addmv gives that the shape of what is added."""
        y = self.outputs[0]
        return y is None or bool(y.layout.local_numel(local.coord)) or 0 in y.shape

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, but for a shard without rows."""
        y = self.outputs[0]
        if y is None or self.is_torch_call(local):
            super().compute(inputs, outputs, local)
        else:
            shape = y.layout.local_shape(local.coord)
            outputs[:] = [inputs[0].new_zeros(shape, dtype=y.spec.dtype)]
