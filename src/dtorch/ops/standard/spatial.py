"""Elements of planes moved: padding by reflection or replication, shuffles, unfold and fold.

    y[..., t] = x[..., s(t)], where s mirrors, repeats or regroups; fold sums what meets at one place

Shapes      x [... s...] -> y [... t...]
FLOPs       bound by memory
Placements  on one mesh axis, for every leading dim d that stays as it is, and every padded dim s

    x       y               dy      x       dx
    R       R               R       R       R
    S(d)    S(d)            S(d)    S(d)    S(d)
    S(s)    S(s)            S(s)    S(s)    S(s)
    P       P               P       R       P
                            R       P       R
                            P       P       P

Where a padded dim is cut, y has chunks of its own size (`taps.py`).
Price       of that, the elements of x, or of dy, that each device fetches
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from dtorch.op.operator import Dims
from dtorch.op.signature import Row
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.taps import Tapped, Taps


class EdgePad(Tapped):
    """Padding with elements of x, and its gradient; the numbers count from the last dim."""

    type = "Pad"
    torch_ops = tuple(
        f"aten.{kind}_pad{rank}d{end}"
        for kind in ("reflection", "replication")
        for rank in (1, 2, 3)
        for end in ("", "_backward")
    )

    def moving(self) -> set[int]:
        """Padded dims."""
        ndim = len(self.shapes[0] or ())
        return {ndim - 1 - i // 2 for i, n in enumerate(self.arguments["padding"]) if n}

    def taps(self, dim: int) -> Taps:
        """The mirrored element, or the one at the end."""
        size, at = self.elements(dim), 2 * (len(self.shapes[0] or ()) - 1 - dim)
        before, after = self.arguments["padding"][at : at + 2]
        places = torch.arange(-before, size + after)
        if "reflection" in self.name:
            return Taps.of(size, size - 1 - (size - 1 - places.abs()).abs())
        return Taps.of(size, places.clamp(0, size - 1))

    def pending_rows(self) -> Sequence[Row]:
        """A backward reads of x its shape alone."""
        if not self.backward:
            return ()
        return [self.pending("self", outputs="R"), self.pending("self", "grad_output", outputs="P")]


class Spatial(Batched):
    """One dims line each; linear all."""

    left_out = (
        ("aten.pixel_shuffle", "S(2) -> S(2)", "rows of a picture, where cuts fall together"),
        ("aten.pixel_unshuffle", "S(2) -> S(2)", "rows of a picture, where cuts fall together"),
        ("aten.pixel_shuffle", "factor=1", "a factor of 1 moves nothing"),
        ("aten.pixel_unshuffle", "factor=1", "a factor of 1 moves nothing"),
    )

    type = "Pad"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.pixel_shuffle": Dims("self[... c! h! w!] -> y[... p q r]", ("self",)),
        "aten.pixel_unshuffle": Dims("self[... c! h! w!] -> y[... p q r]", ("self",)),
        "aten.channel_shuffle": Dims("self[n c! ...] -> y[n c ...]", ("self",)),
        "aten.native_channel_shuffle": Dims("self[n c! ...] -> y[n c ...]", ("self",)),
        "aten.im2col": Dims("self[... c! h! w!] -> y[... k l]", ("self",)),
        "aten.col2im": Dims("self[... k! l!] -> y[... c h w]", ("self",)),
    }
