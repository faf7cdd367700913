"""Fourier transforms: fft, ifft, rfft, irfft, hfft in one and several dims.

    y[..., k] = sum over j of x[..., j] exp(-2 pi i j k / n), or its inverse, over each of the dims

Shapes      x [...] -> y [...], half of the last dim where x or y is real
FLOPs       of the order 5 n log2 n; bound by memory
Placements  on one mesh axis, for every dim e that is not transformed

    x       y
    R       R
    S(e)    S(e)
    P       P
"""

from __future__ import annotations

from dtorch.op.dims import Rule
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.statistics import dim_names


class Fft(Batched):
    """Transforms along `dim`."""

    torch_ops = ("aten._fft_c2c", "aten._fft_r2c", "aten._fft_c2r")

    def rule(self) -> Rule:
        """Transformed dims are whole."""
        names = dim_names(len(self.shapes[0] or ()))
        whole = frozenset(names[d] for d in self.arguments["dim"])
        return Rule((names,), (names,), (frozenset({0}),), whole=whole)
