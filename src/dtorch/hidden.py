"""What torch's operators do to their arguments' memory where their schemas say otherwise.

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

ONLY_READ = {"aten::_fused_adagrad_": ("state_steps",)}
"""Arguments that an operator's schema says it writes though it only reads them: who calls it counts steps."""

HIDDEN_VIEWS = {"aten::_unsafe_view": "self"}
"""Operators whose output shares storage with an argument though their schema does not say so.

torch.kron(out=) writes into the one of its `out`.
"""


@cache
def writes(func: Any) -> tuple[str, ...]:
    """Names of the arguments that a torch overload writes or may write, `out=` ones included."""
    schema = func._schema
    read = ONLY_READ.get(schema.name, ())
    told = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return (*(name for name in told if name not in read), *HIDDEN_WRITES.get(schema.name, ()))
