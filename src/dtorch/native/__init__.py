"""The way of a call that was made before, in C: `again.c`, compiled when dtorch is installed.

Where there is no C compiler it is missing, and the Python functions that it stands for are used; they are the
reference, and take every call that is not of the plainest kind. `DTORCH_NATIVE=0` leaves it unused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtorch.options import GlobalOption

installed: dict[str, Any] = {}
"""What the answers are made of; `KNOWN` in the source lists it."""


def loaded() -> Any:
    """The compiled module; None where there is none, it is not wanted, or it is older than its source."""
    if not GlobalOption.get_native():
        return None
    try:
        from dtorch.native import _again  # type: ignore[attr-defined]
    except ImportError:
        return None
    source = Path(__file__).with_name("again.c")
    if source.exists() and _made_at(source) > _made_at(Path(_again.__file__)):
        warnings.warn(f"{source} is newer than what was compiled of it: make native", stacklevel=2)
        return None
    return _again


def _made_at(path: Path) -> float:
    return path.stat().st_mtime


def before(slow: Callable[..., Any], **known: Any) -> Callable[..., Any]:
    """What answers calls that were made before, and passes the others on to `slow`; `slow` itself without it.

    Args:
        slow: torch's `__torch_dispatch__` in Python.
        known: what the answers are made of.
    """
    module = loaded()
    if module is None:
        return slow
    installed.update(known, slow=slow)
    module.install(installed)
    return module.dispatch


def view_of(cls: type, slow: Callable[..., Any]) -> Any:
    """The method `view` of a class, which hands sizes on to torch at once; `slow` itself without C."""
    return slow if not installed else loaded().view_of(cls)
