"""Samples of the fused operators: with and without what may be absent, broadcast or not."""

from __future__ import annotations

from typing import Any

import torch

from dtorch.testing.samples import Sample, Values

ops = torch.ops.dtorch


def _rotary(r: Values) -> Any:
    return [
        ops.apply_rotary_emb(r(2, 3, 5, 8), r(5, 8), r(5, 8)),
        ops.apply_rotary_emb(r(2, 3, 5, 8), r.constant(5, 8), r.constant(5, 8), -2),
        ops.apply_rotary_emb(r(4, 3, 5, 6), r(4, 1, 5, 6), r(4, 1, 5, 6), -1),
    ]


def _modulation(r: Values) -> Any:
    return [
        *ops.silu_linear_chunk(r(4, 5), r(9, 5), r(9), 3),
        *ops.silu_linear_chunk(r(4, 5), r(7, 5), None, 2),
    ]


def _norm(r: Values) -> Any:
    return [
        ops.layer_norm_mul_add(r(4, 3, 5), r(4, 5), r(4, 5), [5], 1e-5, r(5), r(5)),
        ops.layer_norm_mul_add(r(4, 3, 5), r(4, 5), r(4, 5), [5]),
    ]


SAMPLES: dict[str, Sample] = {
    "fused_rotary": _rotary,
    "fused_modulation": _modulation,
    "fused_norm": _norm,
}
