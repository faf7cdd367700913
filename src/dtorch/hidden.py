"""What torch's operators do to their arguments' memory though their schemas do not say so.

Whoever asks what a call writes asks here, or `op/schema.py`, which stands on this: torch's schema alone does
not tell.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_RUNNING = ("running_mean", "running_var")

HIDDEN_WRITES: dict[str, tuple[str, ...]] = {
    "aten::native_batch_norm": _RUNNING,
    "aten::cudnn_batch_norm": _RUNNING,
    "aten::miopen_batch_norm": _RUNNING,
    "aten::batch_norm_update_stats": _RUNNING,
    "aten::batch_norm_gather_stats": _RUNNING,
    "aten::batch_norm_gather_stats_with_counts": _RUNNING,
}
"""Arguments that an operator writes though its schema does not say so: running statistics, when training."""

HIDDEN_VIEWS = {"aten::_unsafe_view": "self"}
"""Operators whose output shares storage with an argument though their schema does not say so.

torch.kron(out=) writes into the one of its `out`.
"""


@cache
def writes(func: Any) -> tuple[str, ...]:
    """Names of the arguments that a torch overload writes or may write, `out=` ones included."""
    schema = func._schema
    told = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return (*told, *HIDDEN_WRITES.get(schema.name, ()))
