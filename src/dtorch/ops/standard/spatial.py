"""Elements of planes moved: padding by reflection or replication, shuffles, unfold and fold.

    y[..., t] = x[..., s(t)], where s mirrors, repeats or regroups; fold sums what meets at one place

Shapes      x [... s...] -> y [... t...]
FLOPs       bound by memory
Placements  on one mesh axis, for every leading dim d that stays as it is

    x       y               dy      x       dx
    R       R               R       R       R
    S(d)    S(d)            S(d)    S(d)    S(d)
    P       P               P       R       P
                            R       P       R
                            P       P       P
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dtorch.op.operator import Dims
from dtorch.op.signature import Row
from dtorch.ops.standard.batched import Batched

_SPACE = {1: ("w!",), 2: ("h!", "w!"), 3: ("d!", "h!", "w!")}


def _padding(kind: str) -> dict[str, Dims]:
    found = {}
    for rank, space in _SPACE.items():
        x, y = " ".join(space), " ".join(f"o{name}" for name in space)
        found[f"aten.{kind}_pad{rank}d"] = Dims(f"self[... {x}] -> y[... {y}]", ("self",))
        found[f"aten.{kind}_pad{rank}d_backward"] = Dims(
            f"grad_output[... {y}], self[... {x}] -> dx[... {x}]", ("grad_output",)
        )
    return found


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
        **_padding("reflection"),
        **_padding("replication"),
        "aten.pixel_shuffle": Dims("self[... c! h! w!] -> y[... p q r]", ("self",)),
        "aten.pixel_unshuffle": Dims("self[... c! h! w!] -> y[... p q r]", ("self",)),
        "aten.channel_shuffle": Dims("self[n c! ...] -> y[n c ...]", ("self",)),
        "aten.native_channel_shuffle": Dims("self[n c! ...] -> y[n c ...]", ("self",)),
        "aten.im2col": Dims("self[... c! h! w!] -> y[... k l]", ("self",)),
        "aten.col2im": Dims("self[... k! l!] -> y[... c h w]", ("self",)),
    }

    def pending_rows(self) -> Sequence[Row]:
        """A backward reads of x its shape alone."""
        if "backward" not in self.name:
            return ()
        return [self.pending("self", outputs="R"), self.pending("self", "grad_output", outputs="P")]
