"""A tensor in pieces along one dim: split, unbind; torch makes chunk and tensor_split of these.

Shapes      x [... n ...] -> pieces [... n_i ...] with sum of n_i = n; unbind: n pieces without the dim
FLOPs       none; views touch nothing
Placements  on one mesh axis, d the dim that is split, e any other

    x       every piece
    R       R
    S(e)    S(e)
    P       P
    S(d)    S(d)    where pieces are whole blocks of an uncut outer factor: qkv, ((3, ()), (h, (tp,)))
    S(d)    S(e)    else: the axis moves to e, or becomes Replicate where that is not possible
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from dtorch.layout import Layout
from dtorch.op.operator import Local
from dtorch.ops.standard.get_item import Along


class Chunk(Along):
    """split and its kin; `unsafe_` ones promise that no piece is written, and are views here all the same."""

    torch_ops = (
        "aten.split.Tensor",
        "aten.split_with_sizes",
        "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes",
    )

    def view_of(self) -> int:
        """Also what torch does not declare as views is made of x's storage."""
        return 0

    def bounds(self) -> list[tuple[int, int]]:
        """(start, stop) of every piece in the global dim."""
        dim = self.arguments["dim"]
        stops = list(accumulate(0 if m is None else m.shape[dim] for m in self.output_metas))
        return list(zip([0, *stops], stops, strict=False))

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Local where every piece is."""
        pieces = [layout.slice(self.arguments["dim"], start, stop) for start, stop in self.bounds()]
        return None if None in pieces else pieces

    def localize(self, coord: tuple[int, ...]) -> Local:
        """(start, length) of every piece on this device, in place of the sizes."""
        dim, layout = self.arguments["dim"], self.layouts[0]
        assert layout is not None
        cuts = [layout.local_slice(dim, start, stop, 1, coord) for start, stop in self.bounds()]
        return Local(coord, None, (dim, [(start, stop - start) for start, stop in cuts]), {})

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """Narrow views of the local part."""
        dim, cuts = local.args
        outputs[:] = [inputs[0].narrow(dim, start, length) for start, length in cuts]


class Unbind(Along):
    """unbind(dim): one piece for each index."""

    type = "Chunk"
    torch_ops = ("aten.unbind",)

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Local where the dim is not cut."""
        dim = self.arguments["dim"]
        pieces = [layout.select(dim, i) for i in range(layout.shape[dim])]
        return None if None in pieces else pieces
