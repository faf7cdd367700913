"""Places that compiled code looks up, and who checks that they are in range.

Compiled code checks them itself, and raises. With several threads it does so inside of a parallel loop, where
an exception ends the process. So there the places are checked before the code runs, where they are an input
or count from a number to a number; a function that looks up other places is not compiled.
"""

from __future__ import annotations

from typing import Any

import torch

_LOOK_UP = frozenset(
    (
        "embedding",
        "index_select",
        "gather",
        "index",
        "index_put",
        "index_put_",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "scatter_reduce",
        "index_add",
        "index_add_",
        "index_copy",
        "index_copy_",
        "index_fill",
        "index_fill_",
        "take",
        "put",
        "put_",
        "nll_loss_forward",
        "nll_loss_backward",
        "nll_loss2d_forward",
        "nll_loss2d_backward",
        "embedding_dense_backward",
    )
)


class Lookups:
    """What the calls of one function look up.

    Attributes:
        bounds: input number -> (smallest place, one more than the largest) that all lookups by it allow.
        unchecked: the operator that looks up places which are neither an input nor counted; "" if none.
    """

    def __init__(self) -> None:
        self.bounds: dict[int, tuple[int, int]] = {}
        self.unchecked = ""
        self._counted: dict[int, tuple[int, int]] = {}

    def note(self, func: Any, args: Any, result: Any, input_roots: dict[int, int]) -> None:
        """Note a call; `input_roots` is the number of the input that has a storage."""
        name = func._opname
        if name == "arange" and isinstance(result, torch.Tensor):
            numbers = [x for x in args if type(x) is int]
            if len(numbers) == len(args) and (len(numbers) < 3 or numbers[2] > 0):
                start, end = (numbers[0], numbers[1]) if len(numbers) > 1 else (0, numbers[0])
                self._counted[result.untyped_storage()._cdata] = (start, end)
        elif name in _LOOK_UP:
            asked = _asked(name, args)
            if asked is None:
                self.unchecked = self.unchecked or str(func)
            for index, low, high in asked or ():
                self._look_up(func, index, low, high, input_roots)

    def _look_up(self, func: Any, index: torch.Tensor, low: int, high: int, roots: dict[int, int]) -> None:
        storage = index.untyped_storage()._cdata
        if storage in roots:
            before = self.bounds.get(roots[storage], (low, high))
            self.bounds[roots[storage]] = (max(low, before[0]), min(high, before[1]))
        elif storage in self._counted:
            start, end = self._counted[storage]
            if start < low or end > high:
                self.unchecked = self.unchecked or str(func)
        else:
            self.unchecked = self.unchecked or str(func)


def _asked(name: str, args: Any) -> list[tuple[torch.Tensor, int, int]] | None:
    """Index tensors of a call with the range that is legal for each; None where that is not known."""
    if name == "embedding":
        return [(args[1], 0, args[0].shape[0])]
    if name in ("index_select", "gather"):
        x, dim, index = args[:3]
        return [(index, 0, x.shape[dim] if x.ndim else 1)]
    if name == "index":
        x, indices = args
        sizes = zip(x.shape, indices, strict=False)
        return [(index, -size, size) for size, index in sizes if index is not None]
    return None


def in_range(inputs: list[torch.Tensor], bounds: dict[int, tuple[int, int]]) -> bool:
    """Whether the places among the inputs are in their ranges."""
    for number, (low, high) in bounds.items():
        index = inputs[number]
        if index.numel():
            smallest, largest = index.aminmax()
            if int(smallest) < low or int(largest) >= high:
                return False
    return True
