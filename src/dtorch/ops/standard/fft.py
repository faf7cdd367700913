"""Fourier transforms: fft, ifft, rfft, irfft, hfft in one and several dims.

    y[..., k] = sum over j of x[..., j] exp(-2 pi i j k / n), or its inverse, over each of the dims

Shapes      x [...] -> y [...], half of the last dim where x or y is real
FLOPs       5 n log2 n for each transform, n the product of the transformed sizes, half of it where x or y is
            real (`counts.py`); bytes as well, since memory may bound it
Placements  on one mesh axis, for every dim e that is not transformed

    x       y
    R       R
    S(e)    S(e)
    P       P
"""

from __future__ import annotations

from math import prod

from dtorch.op.cost import OperatorCost
from dtorch.op.dims import Rule
from dtorch.ops.standard import counts
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

    def flops(self) -> int:
        """Of every transform; the whole of it is counted on the side that holds all of it."""
        full = self.outputs[0] if self.name == "aten._fft_c2r" else self.inputs[0]
        assert full is not None
        points = prod(full.shape[d] for d in self.arguments["dim"])
        return prod(full.shape) // max(points, 1) * counts.fft(points, self.name != "aten._fft_c2c")

    def get_operator_cost(self) -> OperatorCost:
        """Both channels."""
        moved = OperatorCost.from_operands(self.inputs, self.outputs).bandwidth_bytes
        return OperatorCost.compute_and_memory(self.flops(), moved or 0)
