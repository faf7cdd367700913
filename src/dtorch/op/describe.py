"""One line that says what an operator is: kind, shapes in and out, parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dtorch.op.param import TorchCall, holds_slot

if TYPE_CHECKING:
    from dtorch.op.operator import Operator

_HIDDEN = {"size", "dtype", "device", "layout", "pin_memory", "memory_format", "requires_grad", "generator"}


def describe(operator: Operator) -> str:
    """`Matmul([4, 8] x [8, 6] -> [4, 6])`, `Sum([2, 3] -> [1, 1], dim=[0, 1], keepdim=True)`.

    Args:
        operator: inferred or not; without outputs the arrow is left out.
    """
    kind = operator.kind_name()
    left = " x ".join(shape_text(s) for s in operator.shapes if s is not None)
    metas = operator.output_metas
    right = ", ".join(shape_text(m.shape) for m in metas if m is not None)
    arrow = f"{left} -> {right}".strip() if metas else left
    return f"{kind}({', '.join([arrow, *parameters(operator)])})"


def parameters(operator: Operator) -> list[str]:
    """Arguments that are no tensors and differ from their defaults, as `name=value`."""
    if not isinstance(operator.param, TorchCall):
        return []
    found = []
    for name in operator.schema.names:
        value = operator.arguments.get(name)
        if name in _HIDDEN or holds_slot(value):
            continue
        if value is None or (name in operator.schema.defaults and value == operator.schema.defaults[name]):
            continue
        found.append(f"{name}={value_text(value)}")
    return found


def shape_text(shape: tuple[int, ...]) -> str:
    """[4, 8]"""
    return f"[{', '.join(map(str, shape))}]"


def value_text(value: Any) -> str:
    """A parameter as a reader expects it; dtypes without `torch.`."""
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else str(value)
