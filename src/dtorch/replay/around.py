"""What stands around a call of a captured function: what a recording is for, and what looks at each call."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext

from dtorch.creation_mode import FactoryMode
from dtorch.graph.settings import present

_functions, _function = torch._C._len_torch_function_stack, torch._C._get_function_stack_at
_dispatches = torch._C._len_torch_dispatch_stack
_saving = torch._C._autograd._top_saved_tensors_default_hooks


def surroundings() -> tuple[Any, ...]:
    """torch's settings and contexts, as far as what a call does depends on them."""
    autocast = torch.is_autocast_enabled("cpu")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_autocast_dtype("cpu") if autocast else None,
        present(),
        *[_makes(_function(place)) for place in range(_functions())],
    )


def watcher() -> str:
    """What is open that looks at each call, in words: a replay would pass by it; nothing where nothing is."""
    for place in range(_functions()):
        if _makes(_function(place)) is None:
            return f"the function mode {type(_function(place)).__name__}"
    if _dispatches():
        return "a dispatch mode"
    return "" if _saving(True) is None else "a context with hooks for saved tensors"


def _makes(mode: Any) -> Any:
    """Where a function mode that does no more than that has tensors made; None for another one."""
    if type(mode) is FactoryMode:
        return mode.graph, mode.graph.default_device_mesh, mode.graph.default_dtype
    return mode.device if type(mode) is DeviceContext else None
