"""torch.nn.functional under dtorch's name: `dtorch.nn.functional.conv2d is torch.nn.functional.conv2d`."""

from __future__ import annotations

from typing import Any

import torch


def __getattr__(name: str) -> Any:
    """What torch.nn.functional calls by that name."""
    return getattr(torch.nn.functional, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn.functional)})
