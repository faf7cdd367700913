"""What was found out about regions and operators, on disk beside Inductor's own cache.

One small JSON file per question, named by a hash of everything the answer depends on; a file is written
whole or not at all. Files that cannot be read count as missing.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

_FORMAT = 2
"""Counts up where answers look otherwise, or calls are spelt otherwise to the compiler."""
_log = logging.getLogger("dtorch")


def folder() -> Path:
    """Where answers are kept: under Inductor's cache (`TORCHINDUCTOR_CACHE_DIR`), which holds the code."""
    base = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not base:
        try:
            name = getpass.getuser()
        except (KeyError, ModuleNotFoundError, OSError):
            name = f"uid_{os.getuid()}"
        base = os.path.join(tempfile.gettempdir(), f"torchinductor_{name}")
    return Path(base) / "dtorch"


def fall_back() -> None:
    """Leave the folder that `TORCHINDUCTOR_CACHE_DIR` names for the default one, if it is unusable.

    torch makes it when it first works out an operator's shapes, and where that fails, so do later imports.
    """
    name = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not name:
        return
    try:
        os.makedirs(name, exist_ok=True)
        usable = os.access(name, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        _log.warning(
            f"TORCHINDUCTOR_CACHE_DIR={name} cannot be made or written; {folder().parent} is used instead"
        )


def build() -> str:
    """What compiled code and its rounding depend on beside the program."""
    compiler = os.environ.get("CXX", "")
    parts = (_FORMAT, torch.__version__, torch.version.git_version, torch.backends.cpu.get_cpu_capability())
    return repr((*parts, compiler))


def digest(*parts: Any) -> str:
    """The name of an answer."""
    return hashlib.sha256(repr((build(), parts)).encode()).hexdigest()[:40]


def load(name: str) -> Any:
    """An answer, None where there is none."""
    try:
        return json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def save(name: str, answer: Any) -> None:
    """Keep an answer; a disk that cannot keep it is no error."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder(), delete=False, encoding="utf-8") as file:
            json.dump(answer, file)
        os.replace(file.name, folder() / f"{name}.json")
    except OSError:
        pass
