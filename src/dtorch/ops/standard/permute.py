"""permute: dims in another order.

Shapes      x [...] -> y, dim d of y being dim dims[d] of x
FLOPs       none, traffic none
Placements  on one mesh axis, d any dim

    x       y
    R       R
    S(d)    S(d')    d' the same dim, renumbered
    P       P
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dtorch.layout import Layout
from dtorch.ops.standard.view import LayoutOperator


class Permute(LayoutOperator):
    """permute(dims)."""

    torch_ops: ClassVar[Sequence[str]] = ("aten.permute",)

    def order(self) -> list[int]:
        """The input dim that each output dim is."""
        ndim = len(self.shapes[0] or ())
        return [d % ndim if ndim else d for d in self.arguments["dims"]]

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Dims reordered."""
        return [layout.permute(self.order())]
