"""Views by strides: diagonal, unfold, view_as_real, view_as_complex, _conj, _reshape_alias, and as_strided.

Shapes      diagonal: dims a, b -> one dim at the end; unfold: d -> windows, and their size at the end
            view_as_real: one more dim of size 2; view_as_complex: the last dim, of size 2, is gone
FLOPs       none, traffic none; a gradient writes its whole input
Placements  on one mesh axis, d a dim that the view takes apart, e any other

    x       y
    R       R
    S(e)    S(e)
    P       P
    S(d)    R       a copy that stays tied to x (`op/operand.py`)

as_strided reads the storage, not the tensor: it is a view of the root behind x (`dispatch.py`), and needs
that whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from dtorch.layout import Layout
from dtorch.op.operator import Local
from dtorch.ops.standard.view import Identity, LayoutOperator, View


class Diagonal(LayoutOperator):
    """diagonal(offset, dim1, dim2), and its gradient."""

    torch_ops = ("aten.diagonal", "aten.diagonal_backward")

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """The two dims must be uncut; the diagonal at the end is."""
        output = self.output_metas[0]
        assert output is not None
        forward = self.name == "aten.diagonal"
        whole = len((layout if forward else output).shape)
        a, b = self.arguments["dim1"] % whole, self.arguments["dim2"] % whole
        if forward:
            if layout.axes_of(a) or layout.axes_of(b):
                return None
            kept = [factors for d, factors in enumerate(layout.dims) if d not in (a, b)]
            kept.append(((output.shape[-1], ()),))
        else:
            if layout.axes_of(layout.ndim - 1):
                return None
            others = iter(layout.dims[:-1])
            kept = [((n, ()),) if d in (a, b) else next(others) for d, n in enumerate(output.shape)]
        return [Layout.of(layout.mesh_shape, kept, layout.partial)]

    def localize(self, coord: tuple[int, ...]) -> Local:
        """The gradient's sizes on this device."""
        if self.name == "aten.diagonal":
            return super().localize(coord)
        assert self.outputs[0] is not None
        return self.localized(coord, input_sizes=list(self.outputs[0].layout.local_shape(coord)))

    def traffic_bytes(self) -> int:
        """None for the view."""
        return 0 if self.name == "aten.diagonal" else self.operand_bytes()


class Unfold(LayoutOperator):
    """unfold(dimension, size, step): overlapping windows, and the gradient, which sums them."""

    torch_ops = ("aten.unfold", "aten.unfold_backward")

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Windowed dim, and window, must be uncut."""
        output = self.output_metas[0]
        assert output is not None
        forward = self.name == "aten.unfold"
        ndim = layout.ndim if forward else len(output.shape)
        dim = self.arguments["dimension" if forward else "dim"] % max(ndim, 1)
        if (not forward and layout.axes_of(layout.ndim - 1)) or (ndim and layout.axes_of(dim)):
            return None
        dims = list(layout.dims[: len(output.shape)])
        dims += [((n, ()),) for n in output.shape[len(dims) :]]
        if ndim:
            dims[dim] = ((output.shape[dim], ()),)
        return [Layout.of(layout.mesh_shape, dims, layout.partial)]

    def localize(self, coord: tuple[int, ...]) -> Local:
        """The gradient's sizes on this device."""
        if self.name == "aten.unfold":
            return super().localize(coord)
        assert self.outputs[0] is not None
        return self.localized(coord, input_sizes=list(self.outputs[0].layout.local_shape(coord)))

    def traffic_bytes(self) -> int:
        """None for the view."""
        return 0 if self.name == "aten.unfold" else self.operand_bytes()


class ComplexView(LayoutOperator):
    """view_as_real and view_as_complex."""

    type = "View"
    torch_ops = ("aten.view_as_real", "aten.view_as_complex")

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """The dim of real and imaginary part is never cut."""
        if self.name == "aten.view_as_complex":
            target = layout.select(layout.ndim - 1, 0)
            return None if target is None else [target]
        return [layout.unsqueeze(layout.ndim).with_dim(layout.ndim, ((2, ()),))]

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """Local parts may have a conjugate bit, which the whole tensor does not show."""
        assert local.call is not None
        outputs[:] = [local.call([inputs[0].resolve_conj()])]


class Conjugate(Identity):
    """Conjugates and negatives as views: the bit is on the local parts."""

    type = "View"
    torch_ops: ClassVar[Sequence[str]] = ("aten._conj", "aten._neg_view")


class ReshapeAlias(View):
    """A view by sizes whose strides torch has worked out already."""

    type = "View"
    torch_ops: ClassVar[Sequence[str]] = ("aten._reshape_alias",)

    def localize(self, coord: tuple[int, ...]) -> Local:
        """By sizes alone; local strides follow."""
        output = self.outputs[0]
        assert output is not None
        size = list(output.layout.local_shape(coord))
        return Local(coord, torch.ops.aten.view.default, (self.call.args[0], size), {})
