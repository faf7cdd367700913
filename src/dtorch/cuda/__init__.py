"""torch.cuda under dtorch's name, with ranges that enclose what recorded calls run."""

from __future__ import annotations

from typing import Any

import torch

from dtorch.cuda import nvtx

__all__ = ["nvtx"]


def __getattr__(name: str) -> Any:
    """What torch.cuda calls by that name."""
    return getattr(torch.cuda, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.cuda)})
