"""squeeze and unsqueeze: dims of size 1 taken out and put in.

Shapes      squeeze: dims of size 1 (all, or those given) are gone; unsqueeze: one more dim of size 1
FLOPs       none, traffic none
Placements  on one mesh axis, d any dim, e the dim squeezed, of size 1

    x       y
    R       R
    S(d)    S(d')    d' the same dim, renumbered
    P       P
    S(e)    S(d')    only the first device holds anything; d' is the dim before, else after
"""

from __future__ import annotations

from collections.abc import Sequence

from dtorch.layout import Layout
from dtorch.op.operator import Local
from dtorch.op.param import Slot, overload
from dtorch.ops.standard.view import LayoutOperator


class Squeeze(LayoutOperator):
    """squeeze(), squeeze(dim), squeeze(dims)."""

    torch_ops = ("aten.squeeze",)

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Without the dims; None where no dim is left to say which device holds the value."""
        target = layout.squeeze(self.arguments.get("dim"))
        return None if target is None else [target]

    def localize(self, coord: tuple[int, ...]) -> Local:
        """A view of the local output's sizes: a device may hold 0 of a dim that has size 1."""
        output = self.outputs[0]
        assert output is not None
        return Local(
            coord, overload("aten.view.default"), (Slot(0), list(output.layout.local_shape(coord))), {}
        )


class Unsqueeze(LayoutOperator):
    """unsqueeze(dim)."""

    torch_ops = ("aten.unsqueeze",)

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """With an uncut dim of size 1."""
        return [layout.unsqueeze(self.arguments["dim"])]
