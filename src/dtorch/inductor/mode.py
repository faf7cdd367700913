"""`dtorch.optimize`: which compiled code may take the place of what was recorded."""

from __future__ import annotations

from typing import Any

from dtorch.errors import OptionError
from dtorch.options import GlobalOption

MODES = ("exact", "fast", "off")

_chosen: str | None = None


def mode() -> str:
    """The mode in force: what `optimize` chose, or else the option `DTORCH_OPTIMIZE`."""
    return _chosen or GlobalOption.get_optimize()


class optimize:
    """Choose what may be compiled, from now on, or inside `with`.

    - `"exact"` (default): only code that gives the same bits, by a test on this build of torch.
    - `"fast"`: also code that rounds otherwise, within 2e-5 of the largest value in float32.
    - `"off"`: nothing is compiled.

    The choice is the process's. What is compiled already is used only under the mode it was compiled for.

    Args:
        mode: one of the three.

    Raises:
        OptionError: another mode.
    """

    def __init__(self, mode: str) -> None:
        global _chosen
        if mode not in MODES:
            raise OptionError(f"optimize({mode!r}): the mode is one of {', '.join(MODES)}")
        self._before = _chosen
        _chosen = mode

    def __enter__(self) -> optimize:
        return self

    def __exit__(self, *error: Any) -> None:
        global _chosen
        _chosen = self._before
