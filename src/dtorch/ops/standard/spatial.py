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

Where a padded dim is cut, y has chunks of its own size (`taps.py`). Shuffled pictures are cut by channels,
and by rows and columns where cuts fall together; unfolded ones by channels.
Price       of that, the elements of x, or of dy, that each device fetches
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

import torch

from dtorch.op.operator import Dims
from dtorch.op.signature import Row
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.composed import Composed, Nested
from dtorch.ops.standard.taps import Tapped, Taps

_SMALL: Nested = (("c", "r", "s"), ("h",), ("w",))
_LARGE: Nested = (("c",), ("h", "r"), ("w", "s"))
_PICTURE: Nested = (("c",), ("p",), ("q",))
_WINDOWS: Nested = (("c", "k"), ("l",))
_NESTED: Mapping[str, tuple[Nested, Nested]] = {
    "aten.pixel_shuffle": (_SMALL, _LARGE),
    "aten.pixel_unshuffle": (_LARGE, _SMALL),
    "aten.im2col": (_PICTURE, _WINDOWS),
    "aten.col2im": (_WINDOWS, _PICTURE),
}
"""What the last dims of x and y are composed of."""


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


class Regroup(Composed, Batched):
    """Dims taken apart and put together anew; of those that are composed the outer one may be cut."""

    type = "Pad"
    torch_ops = tuple(_NESTED)

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """With leading dims, if there are any; all dims are, where nothing moves."""
        x, y = ((), ()) if self.is_still else _NESTED[self.name]
        lead = tuple((f"b{d}",) for d in range(len(self.shapes[0] or ()) - len(x)))
        return [(*lead, *x)], [(*lead, *y)]

    @property
    def is_still(self) -> bool:
        """Whether y is x: a factor of 1, or no elements, which torch may leave in the shape they came in."""
        return self.metas[0] is not None and self.metas[0].shape == self.shapes[0]

    def sizes(self) -> dict[str, int]:
        """Of what is composed, by the side where it stands alone."""
        found: dict[str, int] = {}
        if self.is_still:
            return {f"b{d}": size for d, size in enumerate(self.shapes[0] or ())}
        assert self.metas[0] is not None
        for nested, shape in zip(
            _NESTED[self.name], (self.shapes[0] or (), self.metas[0].shape), strict=True
        ):
            sizes = reversed(shape)
            found |= {names[0]: n for names, n in zip(reversed(nested), sizes) if len(names) == 1}
        given = self.arguments
        factor = given.get("upscale_factor", given.get("downscale_factor"))
        inner = {"r": factor, "s": factor} if factor else {"k": prod(given["kernel_size"])}
        return found | inner

    def whole(self) -> frozenset[str]:
        """The inner ones, and space under windows."""
        return frozenset("rsk") | (frozenset("lpq") if "k" in self.sizes() else frozenset())

    def linear(self) -> tuple[frozenset[int], ...]:
        """All."""
        return (frozenset((0,)),)


class Spatial(Batched):
    """One dims line each; linear all."""

    type = "Pad"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.channel_shuffle": Dims("self[n c! ...] -> y[n c ...]", ("self",)),
        "aten.native_channel_shuffle": Dims("self[n c! ...] -> y[n c ...]", ("self",)),
    }
