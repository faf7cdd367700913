"""Memory that a replayed plan keeps for its large results, from one replay to the next.

Large blocks come from the operating system page by page, and go back when they are freed, which can take
longer than the arithmetic of a call. A replay makes the same results each time, so their blocks are kept; one
is free again when no tensor lies in it.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any

import torch

from dtorch.inductor.listing import PRESENT

_uses: Callable[[int], int] = torch._C._storage_Use_Count
_ROUNDS = 2
"""Blocks that so many replays in a row have not taken are let go."""


class _Block:
    """A storage, and the replay that last took it; None once it has been let go."""

    __slots__ = ("round", "storage")

    def __init__(self, nbytes: int) -> None:
        self.storage: Any = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
        self.round = 0

    @property
    def is_free(self) -> bool:
        """Whether neither a tensor lies in it, nor the program holds the storage itself.

        One that the program has shared may be mapped by other processes, which nobody counts here.
        """
        storage = self.storage
        if storage is None or _uses(storage._cdata) != 1:
            return False
        # References: the attribute, the variable, and getrefcount's argument.
        return getrefcount(storage) == 3 and not storage.is_shared()


class Pool:
    """The blocks of one program, by size."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[_Block]] = {}
        self._round = 0

    def taker(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> Callable[[], torch.Tensor]:
        """What gives a tensor without values, in a block that is free; in a new one where none is.

        Args:
            shape, stride: of the tensor, in elements; it has some.
            dtype: of the tensor.
        """
        span = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        nbytes = span * dtype.itemsize
        last: _Block | None = None  # mostly the one that is free again

        def take() -> torch.Tensor:
            nonlocal last
            if PRESENT.listing:  # where nothing has data
                return torch.empty_strided(shape, stride, dtype=dtype)
            if last is None or not last.is_free:
                last = self._free(nbytes)
            last.round = self._round
            return torch.empty(0, dtype=dtype).set_(last.storage, 0, shape, stride)

        return take

    def _free(self, nbytes: int) -> _Block:
        blocks = self._blocks.setdefault(nbytes, [])
        for block in blocks:
            if block.is_free:
                return block
        blocks.append(_Block(nbytes))
        return blocks[-1]

    def settle(self) -> None:
        """A replay has ended: let go of what the last ones have not taken."""
        self._round += 1
        for blocks in self._blocks.values():
            for block in blocks:
                if self._round - block.round > _ROUNDS:
                    block.storage = None
            blocks[:] = [block for block in blocks if block.storage is not None]

    @property
    def nbytes(self) -> int:
        """Bytes in blocks that are free."""
        return sum(nbytes * sum(block.is_free for block in blocks) for nbytes, blocks in self._blocks.items())
