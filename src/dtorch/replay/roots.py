"""What a function reaches, and whether that is still the same.

Reached are the function's closure, the globals its code names, its defaults, the object it is bound to, and
what stands in these: containers, attributes of objects, parameters and buffers of modules, state of
optimizers. Each place where something was found is looked at again before a replay: another object there, or
another number, and the recording does not hold. Floats in an optimizer's groups, such as a learning rate,
are inputs of the replay.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import is_
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from dtorch.errors import UnsupportedError
from dtorch.op.operand import Operand
from dtorch.tensor import Tensor

MAX_REACHED = 200_000
"""Objects looked at before a function is refused: it reaches a whole program."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OPAQUE = (types.ModuleType, types.BuiltinFunctionType, types.CodeType, torch.Generator)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NO_CODE = (
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__annotations__",
    "__abstractmethods__",
    "_abc_impl",
)

Read = Callable[[], Sequence[Any]]


class Roots:
    """What a function reaches, at one moment.

    Attributes:
        tensors: of dtorch, each once.
        plain: torch's own, each once.
        groups: the parameter groups of optimizers.
        places: how to read what stood somewhere, and what that was.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any] = ()) -> None:
        self.tensors: list[Tensor] = []
        self.plain: list[torch.Tensor] = []
        self.groups: list[dict[str, Any]] = []
        self.places: list[tuple[Read, list[Any]]] = []
        seen: dict[int, Any] = {}
        waiting = [function, *(leaf for leaf in arguments if not isinstance(leaf, torch.Tensor))]
        while waiting:
            found = waiting.pop()
            if isinstance(found, (*_PLAIN, *_OPAQUE)) or id(found) in seen:
                continue
            if len(seen) > MAX_REACHED:
                raise UnsupportedError(f"capture(): the function reaches more than {MAX_REACHED:,} objects")
            seen[id(found)] = found
            if isinstance(found, Tensor):
                self.tensors.append(found)
            elif isinstance(found, torch.Tensor):
                self.plain.append(found)
            else:
                for read in self._reads(found):
                    values = list(read())
                    self.places.append((read, values))
                    waiting += values
        self._tensors = [self._state(tensor) for tensor in self.tensors]

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors that gather gradients."""
        return [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]

    def gradients(self) -> list[tuple[Tensor, Operand]]:
        """The leaves that have a gradient now, and its operand."""
        found: list[tuple[Tensor, Any]] = [(leaf, leaf.grad) for leaf in self.leaves]
        return [(leaf, grad._operand) for leaf, grad in found if grad is not None]

    def changed(self) -> str:
        """What is not as it was, in words; nothing where all is."""
        for read, values in self.places:
            try:
                now = read()
            except (KeyError, ValueError, AttributeError):
                return "something the function uses is gone"
            if len(now) != len(values) or not all(map(is_, now, values)):
                was, became = next(
                    ((a, b) for a, b in zip(values, now, strict=False) if a is not b), (len(values), len(now))
                )
                return f"what the function uses was {_shown(was)} and is {_shown(became)}"
        for tensor, state in zip(self.tensors, self._tensors, strict=True):
            if self._state(tensor) != state:
                return f"a tensor of shape {list(tensor.shape)} that the function uses is another, or its "
                "gradient is"
        return ""

    @staticmethod
    def _state(tensor: Tensor) -> tuple[Any, ...]:
        hooks = tuple(tensor._backward_hooks or ())
        if not tensor.requires_grad:
            return (id(tensor._operand), False, True, hooks)
        return (id(tensor._operand), True, tensor.is_leaf and tensor.grad is None, hooks)

    def _reads(self, found: Any) -> Iterator[Read]:
        if isinstance(found, type):
            if not _is_library(found.__module__):
                yield from _entries_of_class(found)
        elif isinstance(found, (staticmethod, classmethod)):
            yield lambda: [found.__func__]
        elif isinstance(found, property):
            yield lambda: [found.fget]
        elif isinstance(found, torch.nn.Module):
            for held in (found._parameters, found._buffers, found._modules):
                yield from _entries(held)
            yield lambda: [value for key, value in vars(found).items() if not key.startswith("_")]
            yield lambda: [hook for name in _HOOKS for hook in getattr(found, name).values()]
            yield from _class_of(found)
        elif isinstance(found, torch.optim.Optimizer):
            for group in found.param_groups:
                self.groups.append(group)
                yield from _of_dict(group, [key for key in group if type(group[key]) is not float])
            for state in found.state.values():
                yield from _of_dict(state, list(state))
        elif isinstance(found, dict):
            yield from _entries(found)
        elif isinstance(found, (list, tuple, set, frozenset, deque)):
            yield lambda: list(found)
        elif isinstance(found, functools.partial):
            yield lambda: (found.func, *found.args, *found.keywords.values())
        elif isinstance(found, types.MethodType):
            yield lambda: (found.__self__, found.__func__)
        elif isinstance(found, types.FunctionType):
            yield from _of_function(found)
        elif isinstance(found, LRScheduler) or type(found).__module__.split(".")[0] not in (
            "torch",
            "dtorch",
        ):
            yield from _entries(getattr(found, "__dict__", {}))
            slots = [name for kind in type(found).__mro__ for name in _slots(kind)]
            if slots:
                yield lambda: [getattr(found, name, None) for name in slots]
            yield from _class_of(found)


def _entries(held: dict[Any, Any]) -> Iterator[Read]:
    """All of a dictionary, entries that are added too."""
    yield lambda: [*held, *held.values()]


def _entries_of_class(kind: type) -> Iterator[Read]:
    yield lambda: [*kind.__bases__, *(value for name, value in vars(kind).items() if name not in _NO_CODE)]


def _class_of(found: Any) -> Iterator[Read]:
    """The class of an object, for what its methods use; what libraries define is taken to stay."""
    if any(not _is_library(kind.__module__) for kind in type(found).__mro__):
        yield lambda: [type(found)]


@functools.cache
def _is_library(module: str) -> bool:
    root = module.split(".")[0]
    if root in ("torch", "dtorch") or root in sys.stdlib_module_names - {"__main__"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file.startswith((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))


def _slots(kind: type) -> list[str]:
    names = vars(kind).get("__slots__", ())
    return [names] if isinstance(names, str) else [name for name in names if not name.startswith("__")]


def _of_dict(held: dict[Any, Any], keys: list[Any]) -> Iterator[Read]:
    if keys:
        yield lambda: [held[key] for key in keys]


def _of_function(function: types.FunctionType) -> Iterator[Read]:
    cells = [cell for cell in function.__closure__ or () if _is_filled(cell)]
    yield lambda: [cell.cell_contents for cell in cells]
    space = function.__globals__
    names = list(dict.fromkeys(_names(function.__code__)))
    yield from _of_dict(space, [name for name in names if name in space])
    for name in names:
        module = space.get(name)
        if isinstance(module, types.ModuleType) and not _is_library(module.__name__):
            yield from _of_dict(vars(module), [name for name in names if name in vars(module)])
    yield lambda: (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"
