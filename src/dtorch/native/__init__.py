"""What is done at every call, in C, compiled when dtorch is installed.

`again.c` is the way of a call that was made before, `look.c` the look before a replay. Where there is no C
compiler they are missing, and the Python functions that they stand for are used; these are the reference, and
take what is not of the plainest kind. `DTORCH_NATIVE=0` leaves them unused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dtorch.options import GlobalOption

installed: dict[str, Any] = {}
"""What the answers are made of; `KNOWN` in the source lists it."""


def loaded(name: str) -> Any:
    """A compiled module; None where there is none, it is not wanted, or it is older than its source.

    Args:
        name: of its source, without `.c`.
    """
    if not GlobalOption.get_native():
        return None
    try:
        module = import_module(f"dtorch.native._{name}")
    except ImportError:
        return None
    source = Path(__file__).with_name(f"{name}.c")
    if source.exists() and _made_at(source) > _made_at(Path(module.__file__ or "")):
        warnings.warn(f"{source} is newer than what was compiled of it: make native", stacklevel=2)
        return None
    return module


def _made_at(path: Path) -> float:
    return path.stat().st_mtime


def before(slow: Callable[..., Any], **known: Any) -> Callable[..., Any]:
    """What answers calls that were made before, and passes the others on to `slow`; `slow` itself without it.

    Args:
        slow: torch's `__torch_dispatch__` in Python.
        known: what the answers are made of.
    """
    module = loaded("again")
    if module is None:
        return slow
    installed.update(known, slow=slow)
    module.install(installed)
    return module.dispatch


def view_of(cls: type, slow: Callable[..., Any]) -> Any:
    """The method `view` of a class, which hands sizes on to torch at once; `slow` itself without C."""
    return slow if not installed else loaded("again").view_of(cls)
