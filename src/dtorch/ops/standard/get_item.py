"""Basic indexing: slice, select (x[2], x[1:5:2], narrow), their gradients, and writing at such a place.

    y = x[start:end:step] on one dim        y = x[index] on one dim

Shapes      slice: d -> ceil((end - start) / step); select: d is gone
FLOPs       none; a view touches nothing, a gradient and a write touch the selected elements
Placements  on one mesh axis, d the sliced dim, e any other

    x       y
    R       R
    S(e)    S(e)
    P       P
    S(d)    S(d)    all of d; or whole blocks of an uncut outer factor of d, as the parts of a fused qkv
    S(d)    S(e)    any other slice: the axis moves to e, or becomes Replicate where that is not possible

In the last row y is a copy that stays tied to x (`op/operand.py`). Where no device holds only a part of d,
nothing depends on start and index, and each call gives them anew (`op/start.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

from dtorch.layout import Layout
from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Local, Operator
from dtorch.ops.standard.view import LayoutOperator


class Along(LayoutOperator, abstract=True):
    """Base of operators that take one dim apart: an axis in the way moves to another dim, if it can."""

    def unblocked(self, layout: Layout) -> Layout:
        """Each axis in the way cuts the longest other dim with an element for every device, else nothing."""
        dim = self.arguments["dim"] % max(layout.ndim, 1)
        for axis in self.blocking(layout):
            layout = layout.drop([axis])
            others = [
                d for d in range(layout.ndim) if d != dim and layout.shape[d] >= layout.mesh_shape[axis]
            ]
            for other in sorted(others, key=lambda d: -layout.shape[d]):
                moved = layout.add_shard(axis, other)
                if moved is not None:
                    layout = moved
                    break
        return layout


class GetItem(Along):
    """x[start:end:step] and x[index], on one dim."""

    torch_ops = ("aten.slice.Tensor", "aten.select.int")
    free_starts: ClassVar[Mapping[str, Sequence[str]]] = {"aten.slice": ("self",), "aten.select": ("self",)}

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """A slice is local where the layout can follow, an element where the dim is not cut."""
        a = self.arguments
        if self.name == "aten.select":
            target = layout.select(a["dim"], self.a_value("index"))
        else:
            target = layout.slice(a["dim"], self.a_value("start"), self.a_value("end"), a["step"])
        return None if target is None else [target]

    def moved_by(self) -> tuple[str, int] | None:
        """By the start, where it is given anew."""
        name = "index" if self.name == "aten.select" else "start"
        x = self.inputs[0]
        assert x is not None
        return None if self.slot(name) is None else (name, x.spec.stride[self.arguments["dim"]])

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Bounds on this device; those given anew are the same everywhere."""
        if self.name == "aten.select" or self.slot("start") is not None:
            return super().localize(coord)
        a = self.arguments
        layout = self.layouts[0]
        assert layout is not None
        start, end = layout.local_slice(a["dim"], a["start"], a["end"], a["step"], coord)
        return self.localized(coord, start=start, end=end)


class SliceBackward(LayoutOperator):
    """Zeros of the input's size, with the gradient where the slice was."""

    type = "GetItemBackward"
    torch_ops = ("aten.slice_backward",)
    free_starts: ClassVar[Mapping[str, Sequence[str]]] = {"aten.slice_backward": ("grad_output",)}

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """The layout whose slice is the gradient's: d uncut or made of such blocks."""
        a = self.arguments
        shape = tuple(a["input_sizes"])
        dim = a["dim"] % len(shape)
        for factors in self._candidates(layout, dim, shape[dim]):
            source = layout.with_dim(dim, factors)
            if source.slice(dim, self.a_value("start"), self.a_value("end"), a["step"]) is layout:
                return [source]
        return None

    @staticmethod
    def _candidates(layout: Layout, dim: int, size: int) -> list[tuple]:
        if not layout.axes_of(dim):
            return [((size, ()),)]
        length = layout.shape[dim]
        if length == size:
            return [layout.dims[dim]]
        return [((size // length, ()), *layout.dims[dim])] if length and size % length == 0 else []

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Sizes and bounds on this device."""
        a = self.arguments
        assert self.outputs[0] is not None
        layout = self.outputs[0].layout
        if self.slot("start") is not None:
            return self.localized(coord, input_sizes=list(layout.local_shape(coord)))
        start, end = layout.local_slice(a["dim"], a["start"], a["end"], a["step"], coord)
        return self.localized(coord, input_sizes=list(layout.local_shape(coord)), start=start, end=end)

    def traffic_bytes(self) -> int:
        """The gradient read, its whole input written."""
        return self.operand_bytes()


class SelectBackward(LayoutOperator):
    """Zeros of the input's size, with the gradient at the index."""

    type = "GetItemBackward"
    torch_ops = ("aten.select_backward",)
    free_starts: ClassVar[Mapping[str, Sequence[str]]] = {"aten.select_backward": ()}

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """The selected dim comes back uncut."""
        shape = tuple(self.arguments["input_sizes"])
        dim = self.arguments["dim"] % len(shape)
        return [layout.unsqueeze(dim).with_dim(dim, ((shape[dim], ()),))]

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Sizes on this device."""
        assert self.outputs[0] is not None
        return self.localized(coord, input_sizes=list(self.outputs[0].layout.local_shape(coord)))

    def traffic_bytes(self) -> int:
        """The gradient read, its whole input written."""
        return self.operand_bytes()


class SliceScatter(Operator):
    """A copy of x with src at x[start:end:step], or at x[index]; linear in x and src together."""

    type = "SetItem"
    torch_ops = ("aten.slice_scatter", "aten.select_scatter")
    free_starts: ClassVar[Mapping[str, Sequence[str]]] = {
        "aten.slice_scatter": ("self", "src"),
        "aten.select_scatter": ("self",),
    }

    def rule(self) -> Rule:
        """Every dim but d stays as it is."""
        target, source = self.shapes[0] or (), self.shapes[1] or ()
        dim = self.arguments["dim"] % len(target)
        names = tuple(UNCUT if d == dim else f"d{d}" for d in range(len(target)))
        others = names if len(source) == len(target) else (*names[:dim], *names[dim + 1 :])
        numbers = (None,) * (len(self.inputs) - 2)
        return Rule((names, others, *numbers), (names,), (frozenset((0, 1)),))

    def traffic_bytes(self) -> int:
        """Out of place x is copied; then the selected elements are read and written."""
        x, source = self.inputs[:2]
        assert x is not None
        assert source is not None
        return 2 * x.nbytes + 2 * prod(source.shape) * x.spec.itemsize
