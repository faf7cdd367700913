"""Operator parameters: typed, serialisable values, apart from the operands.

A torch call becomes `TorchCall`: the overload's name and its arguments, every tensor replaced by the `Slot`
of an operand. Two calls with equal parameters and equally specified operands are the same operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

_OVERLOADS: dict[str, Any] = {}


class Slot(msgspec.Struct, frozen=True, tag="slot"):
    """The place of input number `index` among an operator's arguments.

    An input may be a value that each call gives anew: a number (a learning rate, the start of a slice), of
    which `sample` is one value, or a random generator.
    """

    index: int
    sample: int | float | None = None


class OpParam(msgspec.Struct, frozen=True, tag=True):
    """Base of all operator parameters; the tag of a subclass is its name."""


class TorchCall(OpParam, frozen=True):
    """A call of the torch operator `op` ("aten.add.Tensor"), tensors replaced by slots."""

    op: str
    args: tuple
    kwargs: dict

    @property
    def func(self) -> Any:
        """The torch overload that `op` names."""
        return overload(self.op)


def key_of(value: Any) -> Any:
    """Something hashable that equals another value's key only where the values agree in type and bits.

    1, 1.0 and True are equal in Python, and so are 0.0 and -0.0; operators tell them apart. None for what is
    no plain value, or holds such: a tensor, a generator, what has no hash.
    """
    try:
        return _key_of(value)
    except TypeError:
        return None


def _key_of(value: Any) -> Any:
    """`key_of`.

    Raises:
        TypeError: the value is no plain one.
    """
    kind = type(value)
    if kind is float:
        return value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is list or kind is tuple:
        return kind, tuple([_key_of(item) for item in value])
    if kind is dict:
        return kind, tuple([(_key_of(name), _key_of(item)) for name, item in value.items()])
    if isinstance(value, msgspec.Struct):
        return kind, tuple([_key_of(getattr(value, name)) for name in kind.__struct_fields__])
    if isinstance(value, (torch.Tensor, torch.Generator)):
        raise TypeError(f"{kind.__name__} is no plain value")
    hash(value)
    return kind, value


def overload(name: str) -> Any:
    """Find a torch overload by its full name, such as `aten.mm.default`."""
    found = _OVERLOADS.get(name)
    if found is None:
        namespace, packet, kind = name.split(".")
        found = _OVERLOADS[name] = getattr(getattr(getattr(torch.ops, namespace), packet), kind)
    return found


def fill(template: Any, values: list[Any]) -> Any:
    """Replace every slot in nested lists, tuples and dicts by its value, or its sample where that is None."""
    kind = type(template)
    if kind is Slot:
        value = values[template.index]
        return template.sample if value is None else value
    if kind is list or kind is tuple:
        return kind([fill(item, values) for item in template])
    if kind is dict:
        return {key: fill(item, values) for key, item in template.items()}
    return template


def fill_numbers(template: Any, numbers: Mapping[int, Any]) -> Any:
    """Replace the slots of some inputs by the numbers that a call gave; others stay."""
    kind = type(template)
    if kind is Slot:
        return numbers.get(template.index, template)
    if kind is list or kind is tuple:
        return kind([fill_numbers(item, numbers) for item in template])
    if kind is dict:
        return {key: fill_numbers(item, numbers) for key, item in template.items()}
    return template


def holds_slot(value: Any) -> bool:
    """Whether an argument is a slot, or a list or tuple with one somewhere in it."""
    if isinstance(value, (list, tuple)):
        return any(map(holds_slot, value))
    return isinstance(value, Slot)
