"""Options: environment variables for the whole process, and options of single calls.

    DTORCH_EAGER                                               0   run every operator at once
    DTORCH_DTENSOR_IN_SAME_DEVICE                              0   all GPUs of a mesh are the first one
    DTORCH_NUM_GPU_WHEN_ENABLE_DTENSOR_IN_SAME_DEVICE          8   how many it then stands for
    DTORCH_OPTIMIZE                                        exact   what may be compiled: exact, fast or off
    DTORCH_COMPILE_SECONDS                                   300   after which a compilation is given up
    DTORCH_NATIVE                                              1   do what each call needs in compiled C

A variable is read each time it is asked for, `DTORCH_NATIVE` at import. One that is not set, or set to
nothing, has its default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from dtorch.errors import OptionError

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})


class GlobalOption:
    """The process-wide options, as functions; nothing is stored, so nothing can be stale."""

    __slots__ = ()

    @staticmethod
    def get_eager() -> bool:
        """Whether every operator runs at once instead of being recorded (`DTORCH_EAGER`).

        Raises:
            OptionError: the variable is neither 0 nor 1.
        """
        return _flag("DTORCH_EAGER")

    @staticmethod
    def get_dtensor_in_same_device() -> bool:
        """Whether every GPU of a mesh is the first one (`DTORCH_DTENSOR_IN_SAME_DEVICE`).

        Raises:
            OptionError: the variable is neither 0 nor 1.
        """
        return _flag("DTORCH_DTENSOR_IN_SAME_DEVICE")

    @staticmethod
    def get_num_gpu_when_enable_dtensor_in_same_device() -> int:
        """How many GPUs the first one stands for when it is shared; 8 unless set.

        Raises:
            OptionError: the variable is not a whole number above 0.
        """
        return _count("DTORCH_NUM_GPU_WHEN_ENABLE_DTENSOR_IN_SAME_DEVICE", default=8)

    @staticmethod
    def get_optimize() -> str:
        """What may be compiled (`DTORCH_OPTIMIZE`): "exact" unless set, "fast" or "off".

        Raises:
            OptionError: the variable is none of the three.
        """
        text = os.environ.get("DTORCH_OPTIMIZE", "").strip().lower() or "exact"
        if text not in ("exact", "fast", "off"):
            raise OptionError(f"DTORCH_OPTIMIZE={text!r}: write exact, fast or off")
        return text

    @staticmethod
    def get_compile_seconds() -> int:
        """Seconds after which a compilation is given up (`DTORCH_COMPILE_SECONDS`); 300 unless set.

        Raises:
            OptionError: the variable is not a whole number above 0.
        """
        return _count("DTORCH_COMPILE_SECONDS", default=300)

    @staticmethod
    def get_native() -> bool:
        """Whether compiled C does what each call needs (`DTORCH_NATIVE`), read once, at import.

        Raises:
            OptionError: the variable is neither 0 nor 1.
        """
        return _flag("DTORCH_NATIVE", default=True)

    @staticmethod
    def get_num_gpu() -> int:
        """How many GPUs a mesh can use here: those torch sees, or the simulated ones on the first."""
        present = torch.cuda.device_count()
        if present and GlobalOption.get_dtensor_in_same_device():
            return GlobalOption.get_num_gpu_when_enable_dtensor_in_same_device()
        return present


@dataclass(frozen=True, slots=True)
class SdpaOption:
    """Mesh axes over which attention finds its sequence cut; axes a mesh lacks are not used.

    Args:
        ulysess_cp_dim: axis whose devices exchange heads for sequence (all-to-all).
        ring_cp_dim: axis along which blocks of keys and values are passed round.

    Raises:
        OptionError: a name is not a non-empty string, or both are the same.
    """

    ulysess_cp_dim: str = "ulysess_cp"
    ring_cp_dim: str = "ring_cp"

    def __post_init__(self) -> None:
        for field in ("ulysess_cp_dim", "ring_cp_dim"):
            name = getattr(self, field)
            if not isinstance(name, str) or not name:
                raise OptionError(f"SdpaOption: {field} must be the name of a mesh axis, got {name!r}")
        if self.ulysess_cp_dim == self.ring_cp_dim:
            raise OptionError(
                f"SdpaOption: ulysess_cp_dim and ring_cp_dim are both {self.ring_cp_dim!r}; "
                f"one axis can do only one of the two"
            )


def _flag(variable: str, default: bool = False) -> bool:
    text = os.environ.get(variable, "").strip().lower()
    if not text:
        return default
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise OptionError(f"{variable}={os.environ[variable]!r}: write 1 or 0")


def _count(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise OptionError(f"{variable}={os.environ[variable]!r}: write a whole number above 0")
    return int(text)
