"""Views: the same storage under other sizes or strides. They move nothing and keep pending sums.

Shapes      by each view's own rule
FLOPs       none, traffic none
Placements  the layout's own transformation (`layout/views.py`); an axis in the way becomes Replicate

A view that its layout cannot follow locally becomes a copy that stays tied to its base; see `op/operand.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dtorch.layout import Layout
from dtorch.op.choice import Choice
from dtorch.op.operator import Local, Operator


class LayoutOperator(Operator, abstract=True):
    """Base of operators with one input whose outputs' layouts are a function of the input's."""

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Layouts of the outputs, or None where the operator would not be local."""
        raise NotImplementedError

    def blocking(self, layout: Layout) -> tuple[int, ...]:
        """Axes to make whole where `transform` says None; by default each axis that alone is in the way."""
        alone = [axis for axis in layout.cut_axes if self.transform(_only(layout, axis)) is None]
        return tuple(alone) or layout.cut_axes

    def unblocked(self, layout: Layout) -> Layout:
        """The layout nearest to `layout` that leaves more local; by default less the axes in the way."""
        return layout.drop(self.blocking(layout) or layout.cut_axes)

    def source(self) -> int:
        """The input whose layout counts."""
        return 0

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """The input's own layout if the operator is local there, else without the axes in the way."""
        if not self.output_metas:
            self.output_metas = tuple(self.infer_output_meta_info())
        layouts = list(self.layouts)
        layout = layouts[self.source()]
        assert layout is not None
        outputs = self.transform(layout)
        while outputs is None:
            layout = self.unblocked(layout)
            outputs = self.transform(layout)
        if self.source() in pinned and layout is not layouts[self.source()]:
            return None
        inputs = [None if x is None else Layout.replicate(x.mesh_shape, x.shape) for x in layouts]
        inputs[self.source()] = layout
        return Choice(tuple(inputs), tuple(outputs))  # type: ignore[arg-type]

    def traffic_bytes(self) -> int:
        """A view touches nothing."""
        return 0


def _only(layout: Layout, axis: int) -> Layout:
    return layout.drop([other for other in layout.cut_axes if other != axis]).without_partial()


class View(LayoutOperator):
    """view, and what is a view by its sizes: _unsafe_view, unflatten."""

    torch_ops: ClassVar[Sequence[str]] = ("aten.view.default", "aten._unsafe_view")
    kinds: ClassVar[Mapping[str, str]] = {
        "aten._unsafe_view": "View",
    }

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Merge and split dims."""
        target = layout.view(self.output_metas[0].shape)  # type: ignore[union-attr]
        return None if target is None else [target]

    def blocking(self, layout: Layout) -> tuple[int, ...]:
        """Axes that cut across the new dims."""
        return layout.blocking_axes(self.output_metas[0].shape)  # type: ignore[union-attr]

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Sizes of the local output."""
        output = self.outputs[0]
        assert output is not None
        return self.localized(coord, size=list(output.layout.local_shape(coord)))


class Identity(LayoutOperator):
    """Views of the whole tensor as it is."""

    type = "View"
    torch_ops: ClassVar[Sequence[str]] = ("aten.alias", "aten.detach", "aten.lift_fresh")

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Unchanged."""
        return [layout]
