"""Running local work as if nothing surrounded it: no autograd, autocast, inference mode, functions' or user's modes.

What was recorded in one place may run in another; what surrounds that place must not change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def calm() -> Iterator[None]:
    """Surroundings off."""
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        yield
