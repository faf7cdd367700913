"""One line that says what an operator is: kind, shapes in and out, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dtorch.op.param import TorchCall, fill_numbers

if TYPE_CHECKING:
    from dtorch.op.operator import Operator


def describe(operator: Operator, numbers: Mapping[int, Any] = {}) -> str:
    """`Matmul([4, 8] x [8, 6] -> [4, 6])`, `Sum([2, 3] -> [1, 1], dim=[0, 1], keepdim=True)`.

    A family changes its text by `kinds`, `inputs_text` and `parameters` (`called.py`).

    Args:
        operator: inferred or not; without outputs the arrow is left out.
        numbers: those that a call gave beside tensors, by input; without them they are left out.
    """
    if numbers and isinstance(operator.param, TorchCall):
        call, operator = operator.param, operator.forgetful()
        args, kwargs = fill_numbers(call.args, numbers), fill_numbers(call.kwargs, numbers)
        operator.param = TorchCall(call.op, args, kwargs)
    left = operator.inputs_text()
    metas = operator.output_metas
    right = ", ".join(str(list(m.shape)) for m in metas if m is not None)
    arrow = f"{left} -> {right}".strip() if metas else left
    parameters = [_parameter(name, value) for name, value in operator.parameters().items()]
    shown = [arrow, *parameters] if arrow else parameters
    return f"{operator.kind_name()}({', '.join(shown)})"


def _parameter(name: str, value: Any) -> str:
    """`dim=[0, 1]`; a dtype without `torch.`, and alone where it is that of what is made: `float32`."""
    if isinstance(value, torch.dtype):
        value = str(value).removeprefix("torch.")
    return f"{name}={value}" if name else str(value)
