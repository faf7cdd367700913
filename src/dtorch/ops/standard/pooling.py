"""Pooling over the last dims, forward and backward: max, average, adaptive, fractional, and unpooling.

    max  y[..., t] = largest x[..., s] of the window at t, and where it is
    avg  y[..., t] = mean of x[..., s] over the window at t

Shapes      x [... s...] -> y [... t...]; two or three s; indices as y, within a plane of x
FLOPs       bound by memory
Placements  on one mesh axis, for every leading dim d

    x       y               dy      x       dx
    R       R               R       R       R
    S(d)    S(d)            S(d)    S(d)    S(d)
    P       P               P       R       P
                            R       P       R
                            P       P       P

A maximum has no row P; its backward also takes the indices, cut as dy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dtorch.op.operator import Dims
from dtorch.op.priced import touched
from dtorch.op.signature import Row
from dtorch.ops.standard.batched import Batched

_2D, _3D = ("h!", "w!"), ("d!", "h!", "w!")


def _dims(line: str, linear: str = "", space: Sequence[str] = _2D) -> Dims:
    """A line in which s stands for the dims of a plane, t for those of a pooled one."""
    pooled = " ".join(f"o{name}" for name in space)
    return Dims(
        line.replace(" s]", f" {' '.join(space)}]").replace(" t]", f" {pooled}]"), tuple(linear.split())
    )


_MAX = "self[... s] -> y[... t], i[... t]"
_MAX_BACK = "grad_output[... t], self[... s], indices[... t] -> dx[... s]"
_AVG, _AVG_BACK = "self[... s] -> y[... t]", "grad_output[... t], self[... s] -> dx[... s]"


class Pooling(Batched):
    """All pools that look at planes one by one."""

    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.max_pool2d_with_indices": _dims(_MAX),
        "aten.max_pool3d_with_indices": _dims(_MAX, "", _3D),
        "aten.adaptive_max_pool2d": _dims(_MAX),
        "aten.adaptive_max_pool3d": _dims(_MAX, "", _3D),
        "aten.avg_pool2d": _dims(_AVG, "self"),
        "aten.avg_pool3d": _dims(_AVG, "self", _3D),
        "aten._adaptive_avg_pool2d": _dims(_AVG, "self"),
        "aten._adaptive_avg_pool3d": _dims(_AVG, "self", _3D),
        "aten.max_unpool2d": _dims("self[... t], indices[... t] -> y[... s]", "self"),
        "aten.max_unpool3d": _dims("self[... t], indices[... t] -> y[... s]", "self", _3D),
        "aten.max_pool2d_with_indices_backward": _dims(_MAX_BACK, "grad_output"),
        "aten.max_pool3d_with_indices_backward": _dims(_MAX_BACK, "grad_output", _3D),
        "aten.adaptive_max_pool2d_backward": _dims(_MAX_BACK, "grad_output"),
        "aten.adaptive_max_pool3d_backward": _dims(_MAX_BACK, "grad_output", _3D),
        "aten.avg_pool2d_backward": _dims(_AVG_BACK, "grad_output"),
        "aten.avg_pool3d_backward": _dims(_AVG_BACK, "grad_output", _3D),
        "aten._adaptive_avg_pool2d_backward": _dims(_AVG_BACK, "grad_output"),
        "aten._adaptive_avg_pool3d_backward": _dims(_AVG_BACK, "grad_output", _3D),
    }

    def traffic_bytes(self) -> int:
        """A backward does not read x."""
        unread = self.slot("self") if "backward" in self.name else None
        return self.operand_bytes() - (0 if unread is None else touched(self.inputs[unread]))

    def pending_rows(self) -> Sequence[Row]:
        """A backward reads of x its shape alone."""
        if "backward" not in self.name:
            return ()
        return [self.pending("self", outputs="R"), self.pending("self", "grad_output", outputs="P")]


class FractionalPooling(Pooling):
    """Max pools with windows drawn for every n and channel, by numbers that are given."""

    type = "Pooling"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.fractional_max_pool2d": _dims("self[n c s], random_samples[n c two!] -> y[n c t], i[n c t]"),
        "aten.fractional_max_pool3d": _dims(
            "self[n c s], random_samples[n c three!] -> y[n c t], i[n c t]", "", _3D
        ),
        "aten.fractional_max_pool2d_backward": _dims(
            "grad_output[... t], self[... s], indices[... t] -> dx[... s]", "grad_output"
        ),
        "aten.fractional_max_pool3d_backward": _dims(
            "grad_output[... t], self[... s], indices[... t] -> dx[... s]", "grad_output", _3D
        ),
    }
