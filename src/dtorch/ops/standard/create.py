"""Tensors made like another one, and tensors overwritten with a constant: the old values do not matter.

Shapes      zeros_like and kin: as x; new_zeros and kin: the given sizes; fill and zero: as x
FLOPs       none; touched is what is written
Placements  on one mesh axis, d a dim whose size is that of x

    x       zeros_like, new_zeros ...   new_empty_strided, empty_like    fill, zero
    R       R                           R                                R
    S(d)    S(d)                        S(d)                             S(d)
    P       R                           P where the size is that of x    P: the first device holds the value

Gradients are cloned through new_empty_strided; so a pending gradient stays pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import OutputMeta
from dtorch.op.operand import Operand
from dtorch.op.operator import Local, Operator
from dtorch.op.param import OpParam, Slot
from dtorch.ops.standard.view import LayoutOperator


class Create(LayoutOperator):
    """zeros, ones, full, empty in the likeness of a tensor."""

    torch_ops = (
        "aten.zeros_like", "aten.ones_like", "aten.full_like", "aten.empty_like",
        "aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty", "aten.new_empty_strided",
    )  # fmt: skip

    kinds = "Create"

    def inputs_text(self) -> str:
        """None: the values of x do not matter."""
        return ""

    def parameters(self) -> dict[str, Any]:
        """The dtype, and what fills the tensor."""
        meta = self.output_metas[0] if self.output_metas else None
        return {"": None if meta is None else meta.dtype, **super().parameters()}

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Cut as x is, where sizes agree."""
        output = self.output_metas[0]
        assert output is not None
        keeps = self.name in ("aten.empty_like", "aten.new_empty_strided") and output.shape == layout.shape
        return [like(layout if keeps else layout.without_partial(), output.shape)]

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Sizes and strides on this device."""
        output, meta = self.outputs[0], self.output_metas[0]
        assert output is not None
        assert meta is not None
        size = output.layout.local_shape(coord)
        changed: dict[str, Any] = {}
        if "size" in self.arguments:
            changed["size"] = list(size)
        if "stride" in self.arguments:
            changed["stride"] = list(local_strides(size, meta.stride))
        return self.localized(coord, **changed)

    def traffic_bytes(self) -> int:
        """What is written."""
        return 0 if "empty" in self.name else sum(y.nbytes for y in self.outputs if y is not None)


def like(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """The layout for another shape: dims of equal size from the left keep their cuts, others are whole."""
    if shape == layout.shape:
        return layout
    dims = [
        layout.dims[d] if len(shape) == layout.ndim and n == layout.shape[d] else ((n, ()),)
        for d, n in enumerate(shape)
    ]
    return Layout.of(layout.mesh_shape, dims, layout.partial)


def local_strides(size: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Strides of a compact tensor of `size` whose dims lie in memory in the order of `stride`."""
    found = [0] * len(size)
    step = 1
    for dim in sorted(range(len(size)), key=lambda d: (stride[d], -d)):
        found[dim] = step
        step *= max(size[dim], 1)
    return tuple(found)


class Fill(LayoutOperator):
    """fill_ and zero_ keep any layout; of a pending sum the first device gets the value, the others 0."""

    type = "Create"
    torch_ops = ("aten.fill", "aten.zero")

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Unchanged."""
        return [layout]

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Zero away from the first device of a pending axis."""
        layout = self.layouts[0]
        assert layout is not None
        if self.name == "aten.zero" or not any(coord[axis] for axis in layout.partial):
            return super().localize(coord)
        zero = torch.ops.aten.zero_ if self.schema.written else torch.ops.aten.zero
        return Local(coord, zero.default, (Slot(0),), {})

    def traffic_bytes(self) -> int:
        """What is written."""
        return 0 if self.inputs[0] is None else self.inputs[0].nbytes


class MadeParam(OpParam, frozen=True):
    """A factory of torch that takes no tensors, by its overload, and the spec of what it makes."""

    op: str
    spec: Any


class Made(Operator):
    """zeros, arange, randn ... from nothing; recorded where devices are described."""

    type = "Create"

    param: MadeParam

    @property
    def mesh(self) -> DeviceMesh:
        """Where the tensor is made."""
        return self.param.spec.mesh

    def parameters(self) -> dict[str, Any]:
        """The dtype."""
        return {"": self.param.spec.dtype}

    def infer_output(self) -> None:
        """What the parameters say."""
        spec = self.param.spec
        self.output_metas = (OutputMeta(spec.shape, spec.stride, spec.dtype),)
        self.outputs = (Operand(spec),)

    def traffic_bytes(self) -> int:
        """What is written."""
        return 0 if "empty" in self.param.op else super().traffic_bytes()
