"""Resampling of planes: interpolate in every mode, grid_sample, and their backwards.

    y[..., t] = sum over s of x[..., s] c[s, t], with coefficients c of the mode, the sizes and the scales

Shapes      x [n c s...] -> y [n c t...]; grid_sample: grid [n t... k] says where, for every t
FLOPs       bound by memory
Placements  on one mesh axis, for d n or c, and s a dim of the plane where it is not antialiased

    x       y               dy      dx
    R       R               R       R
    S(d)    S(d)            S(d)    S(d)
    S(s)    S(s)            S(s)    S(s)
    P       P               P       P

    input   grid    output          dout    input   grid    dinput  dgrid
    R       R       R               R       R       R       R       R
    S(n)    S(n)    S(n)            S(n)    S(n)    S(n)    S(n)    S(n)
    S(c)    R       S(c)            S(c)    S(c)    R       S(c)    P
    R       S(t)    S(t)            S(t)    R       S(t)    P       S(t)
    P       R       P               P       R       R       P       P
                                    R       P       R       R       P

Where a plane is cut, y has chunks of its own size (`taps.py`); it is summed up as torch does, dim by dim.
Price       of that, the elements of x, or of dy, that each device fetches
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from dtorch.op.operator import Dims, Local
from dtorch.op.signature import Row
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.statistics import wide
from dtorch.ops.standard.taps import Tapped, Taps
from dtorch.ops.standard.windows import in_order

_KINDS = {
    "upsample_nearest1d": 1, "upsample_nearest2d": 2, "upsample_nearest3d": 3, "_upsample_nearest_exact1d": 1,
    "_upsample_nearest_exact2d": 2, "_upsample_nearest_exact3d": 3, "upsample_linear1d": 1,
    "upsample_bilinear2d": 2, "upsample_trilinear3d": 3, "upsample_bicubic2d": 2,
    "_upsample_bilinear2d_aa": 2,    "_upsample_bicubic2d_aa": 2, "_upsample_lanczos2d_aa": 2,
}  # fmt: skip


class Interpolate(Tapped):
    """Forward and backward alike: planes are resampled one by one."""

    # One overload each: `.vec` is made of these.
    torch_ops = tuple(f"aten.{kind}{end}.default" for kind in _KINDS for end in ("", "_backward"))

    @property
    def kind(self) -> str:
        """The operator, forward."""
        return self.name.removeprefix("aten.").removesuffix("_backward")

    def moving(self) -> set[int]:
        """The plane."""
        return {2 + d for d in range(_KINDS[self.kind])}

    def may_be_cut(self, dim: int) -> bool:
        """Numbers with a fraction; antialiasing reads as far as the scale says."""
        assert self.inputs[0] is not None
        return self.inputs[0].spec.dtype.is_floating_point and not self.kind.endswith("_aa")

    def taps(self, dim: int) -> Taps:
        """By the mode."""
        x, places = self.inputs[0], self.arguments["output_size"][dim - 2]
        assert x is not None
        scale = self.arguments["scales" + ("", "_d", "_h", "_w")[_axis(dim - 2, _KINDS[self.kind])]]
        if "nearest" in self.kind:
            return self._nearest(dim, places, scale)
        align, dtype = self.arguments["align_corners"], wide(x.spec.dtype)
        size = self.elements(dim)
        if "cubic" in self.kind:
            return _cubic(size, _positions(size, places, align, scale, dtype))
        if size == places:
            at = torch.arange(size)
            return Taps(size, torch.stack([at, at]), torch.tensor([[1], [0]], dtype=dtype).expand(2, size))
        return _linear(size, _positions(size, places, align, scale, dtype))

    def _nearest(self, dim: int, places: int, scale: float | None) -> Taps:
        """As torch says when asked: it rounds in several ways, and backward not as forward.

        Forward it interpolates the numbers of the elements. Backward it counts the places of each; places of
        one element are neighbours.
        """
        x, size, rank = self.inputs[0], self.elements(dim), _KINDS[self.kind]
        assert x is not None
        at = [d == dim - 2 for d in range(rank)]
        scales = [scale if here else None for here in at]
        elements, shape = ([n if here else 1 for here in at] for n in (size, places))
        func, dtype = getattr(torch.ops.aten, self.name.removeprefix("aten.")).default, wide(x.spec.dtype)
        if self.backward:
            asked = in_order(torch.ones(1, 2, *shape, dtype=dtype), x.spec)
            found = func(asked, shape, [1, 2, *elements], *scales)[0, 0].flatten().long()
            return Taps.of(size, torch.arange(size).repeat_interleave(found))
        numbers = torch.arange(size, dtype=dtype).view(1, 1, *elements)
        asked = in_order(numbers.repeat(1, 2, *[1] * rank), x.spec)
        return Taps.of(size, func(asked, shape, *scales)[0, 0].flatten().long())

    def localize(self, coord: tuple[int, ...]) -> Local:
        """A backward is told the size of x."""
        y = self.outputs[0]
        if y is None or "backward" not in self.name:
            return super().localize(coord)
        return self.localized(coord, input_size=list(y.layout.local_shape(coord)))


def _axis(d: int, rank: int) -> int:
    """Which of no name, depth, height, width a dim of a plane has."""
    return 0 if rank == 1 else 4 - rank + d


def _positions(size: int, places: int, align: bool, scale: float | None, dtype: torch.dtype) -> torch.Tensor:
    """Where each place lies among the elements, rounded as torch does."""
    place = torch.arange(places, dtype=dtype)
    if align:
        return place * (torch.tensor(size - 1, dtype=dtype) / max(places - 1, 1))
    step = torch.tensor(1 / scale, dtype=dtype) if scale else torch.tensor(size, dtype=dtype) / places
    return (place + 0.5) * step - 0.5


def _linear(size: int, position: torch.Tensor) -> Taps:
    """The two elements beside each place, or that at the end twice."""
    position = position.clamp(min=0)
    first = position.long().clamp(max=size - 1)
    rest = (position - first).clamp(0, 1)
    return Taps(size, torch.stack([first, (first + 1).clamp(max=size - 1)]), torch.stack([1 - rest, rest]))


def _cubic(size: int, position: torch.Tensor) -> Taps:
    """Four elements around each place, those at the ends for those beyond; convolution with a = -3/4."""
    first = position.floor().long().clamp(max=size - 1)
    rest = (position - first).clamp(0, 1)

    def near(x: torch.Tensor) -> torch.Tensor:
        return (1.25 * x - 2.25) * x * x + 1

    def far(x: torch.Tensor) -> torch.Tensor:
        return ((-0.75 * x + 3.75) * x - 6) * x + 3

    weights = [far(rest + 1), near(rest), near(1 - rest), far(2 - rest)]
    return Taps(size, torch.stack([first + k for k in range(-1, 3)]).clamp(0, size - 1), torch.stack(weights))


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
