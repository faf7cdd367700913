"""Which class is an operator: type <-> class <-> torch operators. Defining a class registers it.

A type is a family of operators with one shape rule and placements. Several classes may share it; the one that
bears its name stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from dtorch.op.schema import base_name, has_tag, schema_of

if TYPE_CHECKING:
    from dtorch.op.operator import Operator

_BY_TYPE: dict[str, type[Operator]] = {}
_BY_TORCH_OP: dict[str, type[Operator]] = {}


def register(cls: type[Operator], torch_ops: Iterable[str]) -> None:
    """Enter a class under its type and the torch operators it serves.

    Args:
        cls: the operator class; `cls.type` is its type's name.
        torch_ops: names such as `aten.mm` (every overload and the in-place form) or `aten.max.dim` (this
            overload alone).

    Raises:
        ValueError: two classes claim one torch operator.
    """
    known = _BY_TYPE.setdefault(cls.type, cls)
    if cls.__name__ == cls.type != known.__name__:
        _BY_TYPE[cls.type] = cls
    for name in torch_ops:
        other = _BY_TORCH_OP.setdefault(name, cls)
        if other is not cls:
            raise ValueError(f"{name} belongs to {other.__name__} already, {cls.__name__} claims it too")
    class_of.cache_clear()
    is_composite.cache_clear()


def class_by_type(type_name: str) -> type[Operator]:
    """The class of an operator type.

    Raises:
        KeyError: no class has this type.
    """
    if type_name not in _BY_TYPE:
        raise KeyError(f"no operator of type {type_name}; there are {', '.join(sorted(_BY_TYPE))}")
    return _BY_TYPE[type_name]


@cache
def class_of(func: Any) -> type[Operator]:
    """The class that serves a torch overload: its own, else an element-wise one by tag, else General."""
    found = own_class_of(func)
    if found is not None:
        return found
    if not has_tag(func, torch.Tag.pointwise) or has_tag(func, torch.Tag.nondeterministic_seeded):
        return class_by_type("General")
    return class_by_type("BroadcastBinary" if "other" in schema_of(func).names else "BaseMath")


def own_class_of(func: Any) -> type[Operator] | None:
    """The class that claims a torch overload by name; None where its tag or the general path serves it."""
    return _BY_TORCH_OP.get(_overload_key(func)) or _BY_TORCH_OP.get(base_name(func))


@cache
def is_composite(func: Any) -> bool:
    """Whether torch makes the overload of others (reshape, contiguous, narrow ...) and no class claims it.

    Below inference_mode such calls arrive whole; what torch would make of them, by the global strides, is
    exact.
    An overload with a kernel of its own (silu_backward) is not made of others, though torch could.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = has(func.name(), "CompositeImplicitAutograd") and not has(func.name(), "CPU")
    return composite and own_class_of(func) is None


def _overload_key(func: Any) -> str:
    return f"{base_name(func)}.{func._overloadname}"


def types() -> dict[str, type[Operator]]:
    """All operator types, each with the class that stands for it; abstract bases are no types."""
    return dict(_BY_TYPE)


def torch_operators() -> dict[str, type[Operator]]:
    """All torch operators that have a class of their own."""
    return dict(_BY_TORCH_OP)
