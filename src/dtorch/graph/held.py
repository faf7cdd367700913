"""How much memory values take, for errors about running out of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_TEXTS = ("can't allocate memory", "not enough memory", "out of memory")


def memory_note(error: BaseException, values: Iterable[Any]) -> str:
    """What an error about memory should add: the parts that were held meanwhile; nothing for other errors."""
    return f"held meanwhile: {held(values)}" if is_out_of_memory(error) else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host had no memory left; torch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


def held(values: Iterable[Any]) -> str:
    """Number and bytes of the storages behind the parts of operands, and the largest of them."""
    sizes: dict[int, tuple[int, str]] = {}
    for parts in values:
        for part in parts if type(parts) is list else ():
            if isinstance(part, torch.Tensor):
                storage = part.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes(), f"{list(part.shape)} {part.dtype}"
    total = sum(size for size, _ in sizes.values())
    largest = max(sizes.values(), default=None)
    text = f"{len(sizes)} storages, {total} bytes"
    return text if largest is None else f"{text}; the largest {largest[1]}, {largest[0]} bytes"
