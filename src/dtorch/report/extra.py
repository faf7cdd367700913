"""Packages of the extra `report`, imported where they are first needed."""

from __future__ import annotations

import importlib
from types import ModuleType

from dtorch.errors import DtorchError


def need(module: str) -> ModuleType:
    """The module, imported.

    Raises:
        DtorchError: it is not installed; the text says what to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        raise DtorchError(
            f'{package} is not installed; it comes with: pip install "dtorch-mesh[report]"'
        ) from error
