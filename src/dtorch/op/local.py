"""An operator's call as one device makes it."""

from __future__ import annotations

from typing import Any

from dtorch.op.call import compile_call


def _returns_tensor(func: Any) -> bool:
    returns = func._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "Tensor"


class Local:
    """Coordinate of the device, and the torch call with arguments in local sizes.

    Attributes:
        coord: mesh coordinate.
        func, args, kwargs: the call, tensors as slots; func is None where the operator is no torch call.
        call: a function of the local inputs that makes it.
    """

    __slots__ = ("args", "call", "coord", "func", "kwargs", "returns_sequence")

    def __init__(self, coord: tuple[int, ...], func: Any, args: tuple, kwargs: dict) -> None:
        self.coord = coord
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.returns_sequence = func is not None and not _returns_tensor(func)
        self.call = None if func is None else compile_call(func, args, kwargs)
