"""Resampling of planes: interpolate in every mode, grid_sample, and their backwards.

    y[..., t] = sum over s of x[..., s] c[s, t], with coefficients c of the mode, the sizes and the scales

Shapes      x [n c s...] -> y [n c t...]; grid_sample: grid [n t... k] says where, for every t
FLOPs       bound by memory
Placements  on one mesh axis, for d n or c

    x       y               dy      dx
    R       R               R       R
    S(d)    S(d)            S(d)    S(d)
    P       P               P       P

    input   grid    output          dout    input   grid    dinput  dgrid
    R       R       R               R       R       R       R       R
    S(n)    S(n)    S(n)            S(n)    S(n)    S(n)    S(n)    S(n)
    S(c)    R       S(c)            S(c)    S(c)    R       S(c)    P
    R       S(t)    S(t)            S(t)    R       S(t)    P       S(t)
    P       R       P               P       R       R       P       P
                                    R       P       R       R       P
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dtorch.op.dims import Rule
from dtorch.op.operator import Dims, Local
from dtorch.op.signature import Row
from dtorch.ops.standard.batched import Batched

_KINDS = {
    "upsample_nearest1d": 1, "upsample_nearest2d": 2, "upsample_nearest3d": 3, "_upsample_nearest_exact1d": 1,
    "_upsample_nearest_exact2d": 2, "_upsample_nearest_exact3d": 3, "upsample_linear1d": 1,
    "upsample_bilinear2d": 2, "upsample_trilinear3d": 3, "upsample_bicubic2d": 2,
    "_upsample_bilinear2d_aa": 2,    "_upsample_bicubic2d_aa": 2, "_upsample_lanczos2d_aa": 2,
}  # fmt: skip


class Interpolate(Batched):
    """Forward and backward alike: planes are resampled one by one."""

    # One overload each: `.vec` is made of these.
    torch_ops = tuple(f"aten.{kind}{end}.default" for kind in _KINDS for end in ("", "_backward"))

    def rule(self) -> Rule:
        """Planes are whole."""
        space = _KINDS[self.name.removeprefix("aten.").removesuffix("_backward")]
        source = tuple(f"s{d}" for d in range(space))
        target = tuple(f"t{d}" for d in range(space))
        return Rule(
            (("n", "c", *source),),
            (("n", "c", *target),),
            (frozenset({0}),),
            whole=frozenset((*source, *target)),
        )

    def localize(self, coord: tuple[int, ...]) -> Local:
        """A backward is told the size of x."""
        y = self.outputs[0]
        if y is None or "backward" not in self.name:
            return super().localize(coord)
        return self.localized(coord, input_size=list(y.layout.local_shape(coord)))


class GridSample(Batched):
    """Sampling at places that a grid gives."""

    left_out = (("", "R, P -> R", "a grid of one place, outside"),)

    type = "Interpolate"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.grid_sampler_2d": Dims("input[n c h! w!], grid[n p q two!] -> y[n c p q]", ("input",)),
        "aten.grid_sampler_3d": Dims("input[n c d! h! w!], grid[n o p q three!] -> y[n c o p q]", ("input",)),
    }


class GridSampleBackward(Batched):
    """Gradients of the planes and of the grid."""

    type = "Interpolate"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.grid_sampler_2d_backward": Dims(
            "grad_output[n c p q], input[n c h! w!], grid[n p q two!] -> dx[n c h w], dg[n p q two]",
            ("grad_output",),
        ),
        "aten.grid_sampler_3d_backward": Dims(
            "grad_output[n c o p q], input[n c d! h! w!], grid[n o p q three!] "
            "-> dx[n c d h w], dg[n o p q three]",
            ("grad_output",),
        ),
    }

    def pending_rows(self) -> Sequence[Row]:
        """The grid's gradient alone is linear in the planes."""
        return [self.pending("input", outputs="RP")]
