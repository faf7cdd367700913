"""What a function reaches, and whether that is still the same.

Reached are the function's closure, the globals its code names, its defaults, the object it is bound to, and
what stands in these: containers, arrays, attributes of objects, parameters and buffers of modules, state of
optimizers. Each place where something was found is looked at again before a replay: another object there, or
another number, and the recording does not hold. Floats in an optimizer's groups, such as a learning rate,
are inputs of the replay.
"""

from __future__ import annotations

import array
import contextvars
import dis
import functools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler

from dtorch.errors import CaptureError, UnsupportedError
from dtorch.op.operand import Operand
from dtorch.replay.places import Place, Places, array_name, entries, same, some_entries
from dtorch.tensor import Tensor

MAX_REACHED = 200_000
"""Objects looked at before a function is refused: it reaches a whole program."""
MAX_WATCHED_BYTES = 2**20
"""Of arrays, which are compared before each replay; a function that reaches more is refused."""
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

_LOOKED_UP = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), 0),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"), 1),
    "IMPORT_NAME": 2,
}
"""Which of `_Names` an instruction looks up; an equal name of another kind is another thing."""

_MODULE_OWN = frozenset(vars(torch.nn.Module())) - {"training"}
"""What torch keeps in every module; parameters, buffers, modules and hooks are looked at one by one."""

_base: Any = torch._C.TensorBase
_WATCHED: dict[str, Any] = {
    "value, by .data =,": Tensor._operand,
    "hooks": _base._backward_hooks,
    "requires_grad": _base.requires_grad,
}
"""Attributes of tensors, by what they are in a message."""
_GRAD = _base.grad.__get__


class Roots:
    """What a function reaches, at one moment.

    Attributes:
        tensors: of dtorch, each once.
        groups: the parameter groups of optimizers.
        leaves: the tensors that gather gradients.
        uses_gradients: whether the function reads or makes `.grad`; until that is known, it does.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any] = ()) -> None:
        self.tensors: list[Tensor] = []
        self.groups: list[dict[str, Any]] = []
        self.uses_gradients = True
        self._places = Places()
        seen: dict[int, Any] = {}
        self._waiting = [function, *(leaf for leaf in arguments if not isinstance(leaf, torch.Tensor))]
        while self._waiting:
            found = self._waiting.pop()
            if isinstance(found, (*_PLAIN, *_OPAQUE)) or id(found) in seen:
                continue
            if any(found is group for group in self.groups):
                continue  # its floats are inputs
            if len(seen) > MAX_REACHED:
                raise UnsupportedError(f"capture(): the function reaches more than {MAX_REACHED:,} objects")
            seen[id(found)] = found
            if isinstance(found, Tensor):
                self.tensors.append(found)
            elif not isinstance(found, torch.Tensor):
                for place in self._look(found):
                    self._waiting += self._places.add(place)
        self.leaves = [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]
        self._see_tensors()

    def _see_tensors(self) -> None:
        self._watched = [
            (part, watched, list(map(watched.__get__, self.tensors))) for part, watched in _WATCHED.items()
        ]
        self._missing = [grad is None for grad in map(_GRAD, self.leaves)]
        for hooks in map(_base._backward_hooks.__get__, self.tensors):
            if hooks is not None:
                self._places.add(Place(iter, hooks, "the hooks of a tensor"))

    def gradients(self) -> list[tuple[Tensor, Operand]]:
        """The leaves that have a gradient now, and its operand."""
        found: list[tuple[Tensor, Any]] = [(leaf, leaf.grad) for leaf in self.leaves]
        return [(leaf, grad._operand) for leaf, grad in found if grad is not None]

    def hold(self) -> bool:
        """Whether all is as it was."""
        return (
            all(same(watched, self.tensors, was) for _, watched, was in self._watched)
            and self._places.hold()
            and (
                not self.uses_gradients or [grad is None for grad in map(_GRAD, self.leaves)] == self._missing
            )
        )

    def changed(self) -> str:
        """What is not as it was, in words; nothing where all is."""
        if self.hold():
            return ""
        return self._places.changed() or self._changed_tensor()

    def _changed_tensor(self) -> str:
        for part, watched, was in self._watched:
            for tensor, before in zip(self.tensors, was, strict=True):
                if watched.__get__(tensor) is not before:
                    return f"a tensor of shape {list(tensor.shape)} that the function uses has another {part}"
        return "a parameter that the function uses had a gradient and has none, or the other way round"

    def _look(self, found: Any) -> Iterator[Place]:
        kind = type(found).__name__
        if isinstance(found, type):
            if not _is_library(found.__module__):
                yield Place(_of_class, found, f"class {found.__name__}")
        elif isinstance(found, (staticmethod, classmethod)):
            yield Place(lambda held: [held.__func__], found, f"a {kind}")
        elif isinstance(found, property):
            yield Place(lambda held: [held.fget], found, "a property")
        elif isinstance(found, torch.nn.Module):
            yield from self._module(found, f"a {kind}")
        elif isinstance(found, torch.optim.Optimizer):
            attributes = vars(found)
            yield from some_entries(attributes, ["state", "param_groups"], f"a {kind}")
            yield from entries(found.state, f"the state of {kind}")
            yield Place(iter, found.param_groups, f"the groups of {kind}")
            for group in found.param_groups:
                self.groups.append(group)
                names = [key for key in group if type(group[key]) is not float]
                yield from some_entries(group, names, f"a group of {kind}")
        elif isinstance(found, dict):
            yield from entries(found, "a dict")
        elif isinstance(found, (list, tuple, set, frozenset, deque)):
            yield Place(iter, found, f"a {kind}")
        elif isinstance(found, functools.partial):
            yield Place(lambda held: (held.func, *held.args, *held.keywords.values()), found, "a partial")
        elif isinstance(found, types.MethodType):
            yield Place(lambda held: (held.__self__, held.__func__), found, "a method")
        elif isinstance(found, contextvars.ContextVar):
            yield Place(lambda held: [held.get(None)], found, f"ContextVar {found.name!r}")
        elif isinstance(found, types.FunctionType):
            yield from _of_function(found)
        elif isinstance(found, LRScheduler) or type(found).__module__.split(".")[0] not in (
            "torch",
            "dtorch",
        ):
            held = getattr(found, "__dict__", None)
            if _is_written_memory(found):
                yield from self._array(found)
            if isinstance(held, dict):
                yield from entries(held, f"a {kind}")
            slots = [name for base in type(found).__mro__ for name in _slots(base)]
            if slots:
                yield Place(lambda held: [getattr(held, name, None) for name in slots], found, kind, slots)
            yield from _class_of(found)

    def _array(self, found: Any) -> Iterator[Place]:
        if getattr(getattr(found, "dtype", None), "kind", "") == "O":
            yield Place(lambda held: list(held.flat), found, "an array of objects")
        elif _nbytes(found) > MAX_WATCHED_BYTES or self._places.add_memory(found) > MAX_WATCHED_BYTES:
            raise CaptureError(
                f"capture(): the function reaches {array_name(found)}, and a replay looks at no more than "
                f"{MAX_WATCHED_BYTES >> 20} MiB of arrays; make it read-only by setflags(write=False), make "
                "a tensor of it, or keep it out of the function's reach"
            )

    def _module(self, found: torch.nn.Module, owner: str) -> Iterator[Place]:
        for held in (found._parameters, found._buffers, found._modules):
            yield Place(dict.values, held, owner, tuple(held))
        for name in _HOOKS:
            self._waiting += self._places.add_hooks(getattr(found, name), f"the hooks of {owner}")
        attributes = vars(found)
        yield from some_entries(attributes, [key for key in attributes if key not in _MODULE_OWN], owner)
        self._places.add_size(attributes)
        yield from _class_of(found)


def _is_written_memory(found: Any) -> bool:
    """Whether it is an array of numbers or bytes, numpy's or Python's, that can be written."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(found, numpy.ndarray):
        return bool(found.flags.writeable)
    return isinstance(found, (bytearray, array.array))


def _nbytes(found: Any) -> int:
    return found.nbytes if hasattr(found, "nbytes") else memoryview(found).nbytes


def _of_class(kind: type) -> list[Any]:
    return [*kind.__bases__, *(value for name, value in vars(kind).items() if name not in _NO_CODE)]


def _class_of(found: Any) -> Iterator[Place]:
    """The class of an object, for what its methods use; what libraries define is taken to stay."""
    if any(not _is_library(kind.__module__) for kind in type(found).__mro__):
        yield Place(lambda held: [type(held)], found, f"a {type(found).__name__}")


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


def _of_function(function: types.FunctionType) -> Iterator[Place]:
    owner = f"{function.__name__}()"
    named = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    cells = {name: cell for name, cell in named if _is_filled(cell)}
    yield Place(_contents, list(cells.values()), f"{owner}'s closure", list(cells))
    space, used = function.__globals__, _names(function.__code__)
    module = space.get("__name__", "a module")
    yield from some_entries(space, [name for name in used.globals if name in space], module)
    waiting = [
        *map(space.get, used.globals),
        *map(sys.modules.get, used.imports),
        *_contents([*cells.values()]),
    ]
    modules: dict[str, types.ModuleType] = {}
    while waiting:
        found = waiting.pop()
        own = isinstance(found, types.ModuleType) and not _is_library(found.__name__)
        if own and found.__name__ not in modules:
            modules[found.__name__] = found
            waiting += [vars(found).get(name) for name in used.attributes]
    for name, found in modules.items():
        held = vars(found)
        yield from some_entries(held, [name for name in used.attributes if name in held], name)
    if not _is_library(function.__module__ or ""):
        yield from entries(vars(function), owner)
    yield Place(_defaults, function, f"the defaults of {owner}")


def _contents(cells: Sequence[types.CellType]) -> list[Any]:
    return [cell.cell_contents for cell in cells]


def _defaults(function: types.FunctionType) -> list[Any]:
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class _Names(NamedTuple):
    """What code looks up by name, the code within it too.

    Attributes:
        globals: variables of its module.
        attributes: of any object.
        imports: modules that it imports itself.
    """

    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    imports: tuple[str, ...]


@functools.lru_cache(maxsize=2**14)
def _names(code: types.CodeType) -> _Names:
    found: tuple[dict[str, None], ...] = ({}, {}, {})
    for instruction in dis.get_instructions(code):
        kind = _LOOKED_UP.get(instruction.opname)
        if kind is not None:
            found[kind][instruction.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for names, inner in zip(found, _names(constant), strict=True):
                names.update(dict.fromkeys(inner))
    return _Names(*map(tuple, found))
