"""torch.nn under dtorch's name: every module is torch's, and works on distributed tensors as it is."""

from __future__ import annotations

from typing import Any

import torch

from dtorch.nn import functional

__all__ = ["functional"]


def __getattr__(name: str) -> Any:
    """What torch.nn calls by that name."""
    return getattr(torch.nn, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn)})
