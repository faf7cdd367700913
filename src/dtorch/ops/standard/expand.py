"""expand: dims of size 1 repeated, new dims in front, nothing copied.

Shapes      x [... 1 ...] -> y [n ... m ...]
FLOPs       none, traffic none
Placements  on one mesh axis, d any dim that is not repeated

    x       y
    R       R
    S(d)    S(d')    d' the same dim, renumbered; new dims are uncut
    P       P
"""

from __future__ import annotations

from collections.abc import Sequence

from dtorch.layout import Layout
from dtorch.op.operator import Local
from dtorch.ops.standard.view import LayoutOperator


class Expand(LayoutOperator):
    """expand(size)."""

    torch_ops = ("aten.expand",)

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """New dims uncut."""
        return [layout.expand(self.output_metas[0].shape)]  # type: ignore[union-attr]

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Sizes of the local output."""
        output = self.outputs[0]
        assert output is not None
        return self.localized(coord, size=list(output.layout.local_shape(coord)))
