"""What a device mesh may be made from: the checks of `DeviceMesh`'s arguments, and their errors."""

from __future__ import annotations

import operator
import reprlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dtorch.errors import MeshError

DEVICE_TYPES = ("cpu", "cuda")

_ROW = (list, tuple, range)

# A mesh of a thousand devices must not fill the screen with its error.
_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = 16


def parse_device_type(device_type: Any) -> tuple[str, int | None]:
    """("cuda", 1) from "cuda:1" or torch.device("cuda", 1)."""
    text = str(device_type) if isinstance(device_type, torch.device) else device_type
    if not isinstance(text, str):
        raise MeshError(f"device type must be a string, got {device_type!r} ({type(device_type).__name__})")
    kind, colon, index = text.partition(":")
    if kind not in DEVICE_TYPES or (colon and not (index.isascii() and index.isdigit())):
        raise MeshError(f"unknown device type {text!r}; known are {', '.join(map(repr, DEVICE_TYPES))}")
    return kind, int(index) if colon else None


def parse_ids(mesh: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and row-major ids of a nested list of device ids."""
    nested = _as_lists(mesh)
    shown = _SHORT.repr(nested)
    if not isinstance(nested, _ROW):
        raise MeshError(
            f"mesh={shown} is no list of device ids; write [0] for device 0 alone, range(n) for n devices"
        )
    shape: list[int] = []
    level: list[Any] = [nested]
    while any(isinstance(item, _ROW) for item in level):
        lengths = {len(item) if isinstance(item, _ROW) else None for item in level}
        if len(lengths) > 1:
            raise MeshError(f"mesh={shown} is ragged: axis {len(shape)} has {_lengths_text(lengths)}")
        (length,) = lengths
        if not length:
            raise MeshError(f"mesh={shown} is empty: axis {len(shape)} has no devices")
        shape.append(length)
        level = [_as_lists(item) for row in level for item in row]
    ids = tuple(whole_number(item, f"mesh={shown}: a device id") for item in level)
    if min(ids) < 0:
        raise MeshError(f"mesh={shown}: device id {min(ids)} is negative")
    id, times = Counter(ids).most_common(1)[0]
    if times > 1:
        raise MeshError(f"mesh={shown}: device id {id} stands {times} times, each device may stand once")
    return tuple(shape), ids


def _as_lists(item: Any) -> Any:
    """A tensor or array as nested lists; everything else as it is."""
    numpy = sys.modules.get("numpy")
    if isinstance(item, torch.Tensor) or (numpy is not None and isinstance(item, numpy.ndarray)):
        return item.tolist()
    return item


def _lengths_text(lengths: Iterable[int | None]) -> str:
    """Different lengths of rows, None an item that is no row: `rows of 2 and 3, and single ids`."""
    rows = " and ".join(map(str, sorted(n for n in lengths if n is not None)))
    return f"rows of {rows}" + (", and single ids" if None in lengths else "")


def whole_number(value: Any, what: str) -> int:
    """`value` as an int; bools, floats and None are refused, numpy's and torch's integers taken."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise MeshError(f"{what} must be an int, got {value!r} ({type(value).__name__})") from None


def parse_names(names: Any, ndim: int) -> tuple[str, ...] | None:
    """Names of the axes, checked."""
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise MeshError(f"mesh_dim_names must be a tuple of names, as ({names!r},)")
    for name in names:
        if not isinstance(name, str) or not name:
            raise MeshError(f"mesh_dim_names={names!r}: a name must be a non-empty string, got {name!r}")
    if len(names) != ndim:
        raise MeshError(f"mesh_dim_names={names!r} has {len(names)} names, the mesh has {ndim} axes")
    for name, times in Counter(names).items():
        if times > 1:
            raise MeshError(f"mesh_dim_names={names!r}: the name {name!r} stands {times} times")
    return tuple(names) or None
