"""torch's settings that change what a call computes: recorded calls run under those of their recording.

Settings are a tuple, since they are asked at each call: default dtype, whether algorithms must be
deterministic, whether float32 products may be less precise.
"""

from __future__ import annotations

from typing import Any

import torch

Settings = tuple[torch.dtype, bool, bool]

default_dtype = torch.get_default_dtype
deterministic = torch._C._get_deterministic_algorithms
imprecise = torch._C._get_cublas_allow_tf32
"""Whether float32_matmul_precision is another than "highest"."""


def present() -> Settings:
    """The settings now."""
    return default_dtype(), deterministic(), imprecise()


class Under:
    """Context with other settings."""

    __slots__ = ("_before", "_settings")

    def __init__(self, settings: Settings | None) -> None:
        self._settings = settings

    def __enter__(self) -> None:
        self._before: Any = None
        if self._settings is None or self._settings == present():
            return
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self._before = default_dtype(), (deterministic(), warn_only), _precision()
        less = self._settings[2]
        precision = None if less is imprecise() else "high" if less else "highest"
        _set(self._settings[0], (self._settings[1], False), precision)

    def __exit__(self, *error: Any) -> None:
        if self._before is not None:
            _set(*self._before)


def _precision() -> str | None:
    """The precision by torch's older interface; None where the newer one set it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set(default: torch.dtype, mode: tuple[bool, bool], precision: str | None) -> None:
    torch._C._set_default_dtype(default)
    torch._C._set_deterministic_algorithms(mode[0], warn_only=mode[1])
    if precision is not None and _precision() is not None:
        torch.set_float32_matmul_precision(precision)
