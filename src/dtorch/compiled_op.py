"""The fused operators, on plain tensors and on distributed ones; `dtorch.nn.functional` has them too.

Each is a `CompiledFunction`: call it; `.reference` is the same in torch's own functions, `.tolerance` how far
"fast" may be from it, and `.region(*args)` what calls with such arguments run through.
"""

from __future__ import annotations

from dtorch.ops.fused.apply_rotary_emb import apply_rotary_emb
from dtorch.ops.fused.layer_norm_mul_add import layer_norm_mul_add
from dtorch.ops.fused.silu_linear_chunk import silu_linear_chunk

__all__ = ["apply_rotary_emb", "layer_norm_mul_add", "silu_linear_chunk"]
