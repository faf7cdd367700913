"""What is known of a torch overload, and the scan of a call of it: tensors become slots, the rest the key."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from dtorch.op import registry
from dtorch.op.operand import Scalar
from dtorch.op.param import Slot, TorchCall
from dtorch.op.schema import base_name, schema_of
from dtorch.op.start import Start, Starts
from dtorch.tensor import Tensor

_SLOTS = [Slot(i) for i in range(4096)]
_TENSOR = object()
_INFINITE = float("inf")
_GENERATOR = torch.Generator
_INT = frozenset((int,))
TRUE, FALSE = (bool, "True"), (bool, "False")

Handler = Callable[[Any, tuple, dict], Any]
_HANDLERS: dict[Any, Handler] = {}
_KINDS: list[tuple[Callable[[Any], Any], Handler]] = []


def handles(*funcs: Any) -> Callable[[Handler], Handler]:
    """Decorator: `handler(func, args, kwargs)` answers calls of these torch overloads itself."""

    def enter(handler: Handler) -> Handler:
        for func in funcs:
            _HANDLERS[func] = handler
        return handler

    return enter


def handles_kind(belongs: Callable[[Any], Any]) -> Callable[[Handler], Handler]:
    """Decorator: as `handles`, for all overloads of a kind that no handler and no kind before it answers."""

    def enter(handler: Handler) -> Handler:
        _KINDS.append((belongs, handler))
        return handler

    return enter


class Door:
    """What is known of one torch overload at the door.

    Attributes:
        func: the overload; a door stands for it in keys.
        handler: what answers it, None for the ordinary way.
        free: positions and names of the arguments whose float value is an input, not part of the key; 0,
            infinity and NaN are part of it, since no parts of a pending sum may meet them.
        starts: finds the bounds of slices that are inputs; None where there are none.
    """

    __slots__ = ("free", "func", "handler", "starts")

    def __init__(self, func: Any) -> None:
        self.func = func
        self.handler = _HANDLERS.get(func) or next((h for belongs, h in _KINDS if belongs(func)), None)
        cls = registry.class_of(func)
        names = cls.free_scalars.get(base_name(func), ())
        known = schema_of(func).names
        self.free = frozenset([*names, *(known.index(name) for name in names if name in known)])
        whole = cls.free_starts.get(base_name(func))
        self.starts = None if whole is None else Starts(func, whole)


DOORS: dict[int, Door] = {}
"""By the id of the overload, which is cheaper to look up; a door holds its overload, and so the id."""


def door_of(func: Any) -> Door:
    """The door of an overload."""
    return DOORS.get(id(func)) or DOORS.setdefault(id(func), Door(func))


def name_of(func: Any) -> str:
    """The full name of an overload, `aten.add.Tensor`."""
    return f"{func.namespace}.{func._opname}.{func._overloadname}"


def scan(door: Door, args: tuple, kwargs: dict | None) -> tuple[list[Any], list[Any], list[Scalar], Any]:
    """Walk over the arguments of a call once.

    Returns:
        The key, of types and bit patterns, since 1, 1.0 and True are equal in Python, and 0.0 and -0.0; the
        operands of the tensors; the values that are inputs beside them; and the graph of all tensors, None
        where it takes more than the key to tell what the call is: it has plain tensors, those of several
        graphs, lists of tensors, copied views, or tensors that were converted before.
    """
    key: list[Any] = [door]
    operands: list[Any] = []
    scalars: list[Scalar] = []
    graph, plain = None, True
    for position, value in enumerate(args if door.starts is None else door.starts.freed(args)):
        kind = type(value)
        if kind is Tensor:
            operand = value._operand
            shared = operand.shared
            key.append(operand.spec)
            operands.append(operand)
            if value._graph is not graph:
                plain = plain and graph is None
                graph = value._graph
            if operand.converted is not None or (shared is not None and shared.upstream is not None):
                plain = False
        elif kind is int or value is None:
            key.append(value)
        elif kind is list and _INT.issuperset(map(type, value)):
            key.append(tuple(value))
        elif not _scan(kind, value, position, door, key, scalars):
            plain = False
    if kwargs:
        for name, value in kwargs.items():
            key.append(name)
            if not _scan(type(value), value, name, door, key, scalars):
                plain = False
    return key, operands, scalars, graph if plain else None


def _scan(
    kind: type, value: Any, name: int | str | None, door: Door, key: list[Any], scalars: list[Scalar]
) -> bool:
    """Write one argument into the key; whether there was no tensor in it."""
    if kind is list or kind is tuple:
        if _INT.issuperset(map(type, value)):
            key.append(tuple(value))
            return True
        key.append((kind, len(value)))
        plain = True
        for item in value:
            plain = _scan(type(item), item, None, door, key, scalars) and plain
        return plain
    if name is not None and _is_input(kind, value, name, door):
        scalars.append(Scalar(value))
        key.append(kind)
    elif kind is Start:
        scalars.append(Scalar(value.number))
        key.append((kind, value.length))
    elif kind is float:
        key.append(value.hex())
    elif kind is bool:
        key.append(TRUE if value else FALSE)
    elif kind is complex:
        key.append((kind, repr(value)))
    elif kind is Tensor:
        key.append(value._operand.spec)
        return False
    elif isinstance(value, torch.Tensor):
        key.append(_TENSOR)
        return False
    else:
        key.append(value)
    return True


def _is_input(kind: type, value: Any, name: int | str, door: Door) -> bool:
    """Whether a value is an input that each call gives anew: a generator, or a number declared so."""
    if kind is float:
        return name in door.free and 0.0 < abs(value) < _INFINITE
    return kind is _GENERATOR


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors among arguments, nested ones too, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) is list or type(value) is tuple:
            found += tensors_in(value)
    return found


def parameters(door: Door, args: tuple, kwargs: dict) -> TorchCall:
    """The call as a value: tensors, and values that are inputs, replaced by slots tensors first."""
    slots = iter(_SLOTS)
    scalars = itertools.count(len(tensors_in((*args, *kwargs.values()))))

    def template(value: Any, name: Any = None) -> Any:
        kind = type(value)
        if name is not None and _is_input(kind, value, name, door):
            return Slot(next(scalars), value if kind is float else None)
        if kind is Start:
            return Slot(next(scalars), value.number)
        if isinstance(value, torch.Tensor):
            return next(slots)
        if kind is list or kind is tuple:
            return kind([template(item) for item in value])
        return value

    args = args if door.starts is None else door.starts.freed(args)
    call_args = tuple([template(value, i) for i, value in enumerate(args)])
    return TorchCall(
        name_of(door.func), call_args, {name: template(value, name) for name, value in kwargs.items()}
    )
