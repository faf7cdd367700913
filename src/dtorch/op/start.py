"""Where a slice starts: a number that each call gives anew, where nothing else depends on it.

    x[:, i : i + n]     a view of n columns, whichever they are, as long as no device holds only some of them

An operator names the tensors whose dim must be whole for that (`free_starts`). Then start and end are inputs
beside the tensors, and the key holds how far apart they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.op.schema import schema_of


class Start:
    """A bound of a slice, in the place of the integer that it was.

    Attributes:
        number: counted from the front, within the dim.
        length: how many elements the slice takes; 0 for the index of a single one.
    """

    __slots__ = ("length", "number")

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length


class Starts:
    """Which arguments of a torch overload are bounds, and when they are free.

    Args:
        func: the overload; it has `dim`, and `start`, `end` and `step` or `index`, by torch's names.
        whole: names of the tensors of which no device may hold only a part of the dim.
    """

    __slots__ = ("_dim", "_first", "_is_index", "_sizes", "_whole")

    def __init__(self, func: Any, whole: Sequence[str]) -> None:
        names = schema_of(func).names
        self._dim = names.index("dim")
        self._is_index = "index" in names
        self._first = names.index("index" if self._is_index else "start")
        self._sizes = names.index("input_sizes") if "input_sizes" in names else 0
        self._whole = tuple([names.index(name) for name in whole])

    def freed(self, args: tuple) -> tuple:
        """The arguments of a call, its bounds as `Start`s where they are free; illegal ones stay.

        So does a slice of all or of nothing, which has one place only.
        """
        first = self._first
        if len(args) <= first + (not self._is_index):
            return args
        sizes, dim = args[self._sizes], args[self._dim]
        if isinstance(sizes, torch.Tensor):
            sizes = _shape(sizes)
        if not -len(sizes) <= dim < len(sizes):
            return args
        size, start = sizes[dim], args[first]
        for place in self._whole:
            operand = getattr(args[place], "_operand", None)
            layout = None if operand is None else operand.spec.layout
            if layout is not None and not layout.is_replicate and layout.axes_of(dim):
                return args
        if self._is_index:
            if type(start) is not int or not -size <= start < size:
                return args
            return (*args[:first], Start(start % size, 0), *args[first + 1 :])
        end = args[first + 1]
        if type(start) is not int or type(end) is not int:
            return args
        start, end, _ = slice(start, end).indices(size)
        length = end - start
        if not 0 < length < size:
            return args
        return (*args[:first], Start(start, length), Start(end, length), *args[first + 2 :])


def _shape(tensor: torch.Tensor) -> Sequence[int]:
    operand = getattr(tensor, "_operand", None)
    return tensor.shape if operand is None else operand.spec.shape
