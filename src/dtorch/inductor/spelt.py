"""How calls are spelt to the compiler that would round them otherwise, and calls with numbers as tensors.

torch's kernels multiply and add in one instruction here, and in two there; a compiler chooses for itself.
Each formula is that of torch's kernel where operands lie alike and fill whole vectors:

    add, sub    x + a y          one instruction
    lerp        x + a (y - x)    one; from a = 1/2 on  y + (a - 1) (y - x)
    addcmul     x + (a y) z      two
    addcdiv     x + (a y) / z    three

`a` is a number, and one that each call gives anew would be compiled in. So for each there is an operator that
takes a tensor without dims in its place. It makes torch's call; code that is compiled of it is compared with
that, as all code is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_LIBRARY = torch.library.Library("dtorch_spelt", "DEF")
NAMESPACE = "dtorch_spelt"

NUMBERS = {"aten.add": "alpha", "aten.sub": "alpha", "aten.addcmul": "value", "aten.addcdiv": "value"}
"""Operators whose number may be a tensor here, and the name of the argument."""


def is_spelt(name: str, alpha: Any) -> bool:
    """Whether the compiler is given a call in other words, which hold where operands lie alike.

    Args:
        name: of torch's, "aten.add".
        alpha: the argument of that name, 1 for a call without.
    """
    return name == "aten.lerp" or (name in NUMBERS and (NUMBERS[name] != "alpha" or alpha != 1))


def _define(name: str, number: str, count: int) -> None:
    names = ["x", "y", "z"][:count]
    _LIBRARY.define(f"{name}({', '.join(f'Tensor {n}' for n in (*names, number))}) -> Tensor")
    function: Callable[..., torch.Tensor] = getattr(torch, name)

    def call(*given: torch.Tensor) -> torch.Tensor:
        return function(*given[:-1], **{number: given[-1].item()})

    _LIBRARY.impl(name, call, "CPU")
    _LIBRARY.impl(name, lambda *given: function(*given[:-1]), "Meta")


for _name, _number in NUMBERS.items():
    _define(_name.removeprefix("aten."), _number, 3 if _number == "value" else 2)


def numbered(name: str) -> Any:
    """The operator that takes its number as a tensor, behind the others.

    Args:
        name: of torch's, "aten.add".
    """
    return getattr(getattr(torch.ops, NAMESPACE), name.removeprefix("aten.")).default


def _like(number: Any, x: torch.Tensor) -> torch.Tensor:
    """A number as a tensor like another, rounded to its dtype as kernels do."""
    if isinstance(number, torch.Tensor):
        return number.to(x.dtype).expand_as(x)
    return torch.full_like(x, number)


def _fma(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.ops.prims.fma.default(x, y, z)
    return made


def _alike(*given: Any) -> bool:
    """Whether these are tensors of one floating dtype and shape."""
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    same = len({(x.dtype, x.shape) for x in tensors}) == 1
    return same and len(tensors) == len(given) and tensors[0].dtype in (torch.float32, torch.float64)


def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    number = isinstance(alpha, torch.Tensor)
    if not _alike(x, y) or (not number and alpha == 1):
        return NotImplemented
    return _fma(y, _like(alpha, x), x)


def _sub(x: Any, y: Any, alpha: Any = 1) -> Any:
    return _add(x, y, -alpha) if isinstance(alpha, torch.Tensor) or alpha != 1 else NotImplemented


def _lerp(x: Any, y: Any, weight: Any) -> Any:
    if not _alike(x, y):
        return NotImplemented
    if abs(weight) < 0.5:
        return _fma(_like(weight, x), y - x, x)
    rounded = struct.unpack("f", struct.pack("f", weight))[0] if x.dtype == torch.float32 else weight
    return _fma(_like(rounded - 1, x), y - x, y)


def _addcmul(x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    return _fma(_like(value, x) * y, z, x) if _alike(x, y, z) else NotImplemented


def _addcdiv(x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    return x + (_like(value, x) * y) / z if _alike(x, y, z) else NotImplemented


@cache
def table() -> dict[Any, Callable[..., Any]]:
    """Overload -> what the compiler sees in its place."""
    aten = torch.ops.aten
    found: dict[Any, Callable[..., Any]] = {
        aten.add.Tensor: lambda x, y, *, alpha=1: _add(x, y, alpha),
        aten.sub.Tensor: lambda x, y, *, alpha=1: _sub(x, y, alpha),
        aten.lerp.Scalar: _lerp,
        aten.addcmul.default: lambda x, y, z, *, value=1: _addcmul(x, y, z, value),
        aten.addcdiv.default: lambda x, y, z, *, value=1: _addcdiv(x, y, z, value),
    }
    spelt: dict[str, Callable[..., Any]] = {
        "aten.add": _add,
        "aten.sub": _sub,
        "aten.addcmul": _addcmul,
        "aten.addcdiv": _addcdiv,
    }
    found.update((numbered(name), function) for name, function in spelt.items())
    return found
