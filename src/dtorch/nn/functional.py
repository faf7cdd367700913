"""torch.nn.functional under dtorch's name: `dtorch.nn.functional.conv2d is torch.nn.functional.conv2d`.

Beside torch's own there are the fused operators of `dtorch.compiled_op`.
"""

from __future__ import annotations

from typing import Any

import torch

from dtorch.compiled_op import apply_rotary_emb, layer_norm_mul_add, silu_linear_chunk

__all__ = ["apply_rotary_emb", "layer_norm_mul_add", "silu_linear_chunk"]


def __getattr__(name: str) -> Any:
    """What torch.nn.functional calls by that name."""
    return getattr(torch.nn.functional, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn.functional)})
