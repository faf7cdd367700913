"""clamp: values brought between two bounds, numbers or tensors.

    y = min(max(x, low), high)

Shapes      x [...], low, high [...] or numbers or absent -> y [...], broadcast
FLOPs       bound by memory
Placements  as every element-wise operator (`pointwise.py`); not linear: a pending sum is summed first
"""

from __future__ import annotations

from dtorch.ops.standard.pointwise import Pointwise


class Clamp(Pointwise):
    """clamp, clamp_min, clamp_max."""

    torch_ops = ("aten.clamp", "aten.clamp_min", "aten.clamp_max")
    compiled_alike = frozenset(torch_ops)
