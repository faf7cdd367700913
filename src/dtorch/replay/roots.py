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
import functools
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from dtorch.errors import CaptureError, UnsupportedError
from dtorch.op.operand import Operand
from dtorch.replay.functions import is_library, of_function
from dtorch.replay.history import History
from dtorch.replay.places import Place, Places, absent, array_name, entries, same, some_entries
from dtorch.replay.reads import Reads
from dtorch.tensor import Tensor

MAX_REACHED = 200_000
"""Objects looked at before a function is refused: it reaches a whole program."""
MAX_WATCHED_BYTES = 2**20
"""Of arrays, which are compared before each replay; a function that reaches more is refused."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OPAQUE = (types.ModuleType, types.BuiltinFunctionType, types.CodeType, torch.Generator)

_SEEN_THROUGH: tuple[type, ...] = (
    types.MappingProxyType,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_HELD = ("_parameters", "_buffers", "_modules")
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

_MODULE_OWN = frozenset(vars(torch.nn.Module())) - {"training"}
"""What torch keeps in every module; parameters, buffers, modules and hooks are looked at one by one."""

_HOOKS_OF_ALL = [
    (held, f"{name[8:]} of all")
    for module in ("torch.nn.modules.module", "torch.optim.optimizer")
    for name, held in vars(sys.modules[module]).items()
    if name.startswith("_global_") and name.endswith("_hooks")
]
"""torch's own dictionaries of hooks that are called for whatever module or optimizer."""

_base: Any = torch._C.TensorBase
_WATCHED: dict[str, Any] = {
    "value, by .data =,": Tensor._operand,
    "requires_grad": _base.requires_grad,
    "hooks": _base._backward_hooks,
    "hooks of gradients": _base._post_accumulate_grad_hooks,
}
"""Attributes of tensors, by what they are in a message."""
_HOOKS_OF_ONE = ("hooks", "hooks of gradients")
"""Those that only a tensor that requires grad may have."""
_GRAD = _base.grad.__get__


class Roots:
    """What a function reaches, at one moment.

    Attributes:
        tensors: of dtorch, each once.
        groups: the parameter groups of optimizers.
        settings: groups and the names of those entries that are inputs.
        objects: of other classes than torch's, and schedulers.
        refused: why the function cannot be captured, because of what it reaches.
        leaves: the tensors that gather gradients.
        uses_gradients: whether the function reads or makes `.grad`; until that is known, it does.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Sequence[Any] = (), history: History | None = None
    ) -> None:
        self._history = history or History()
        self.uses_gradients = True
        self._missing: list[bool] = []
        self._were: dict[str, tuple[list[Tensor], list[Any]]] = {}
        self._from = [function, *(leaf for leaf in arguments if not isinstance(leaf, torch.Tensor))]
        self._walk(None)
        self.leaves = [tensor for tensor in self.tensors if tensor.requires_grad and tensor.is_leaf]
        self._see_tensors()

    def _walk(self, reads: Reads | None) -> None:
        """Find what is reached, of objects only through attributes that were read, where that is known."""
        self.tensors: list[Tensor] = []
        self.groups: list[dict[str, Any]] = []
        self.settings: list[tuple[dict[str, Any], str]] = []
        self.objects: list[Any] = []
        self.refused: CaptureError | None = None
        self._reads = reads
        self._places = Places()
        seen: dict[int, Any] = {}
        self._waiting = list(self._from)
        for held, owner in _HOOKS_OF_ALL:
            self._waiting += self._places.add_hooks(held, owner)
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
            for place in self._look(found):
                self._waiting += self._places.add(place)

    def narrow(self, reads: Reads) -> None:
        """Look from now on only at attributes that the call has read, unless it changed what it reaches.

        Raises:
            CaptureError: the function reaches arrays that are too large to be looked at.
        """
        if self._places.hold():
            leaves = {id(leaf): missing for leaf, missing in zip(self.leaves, self._missing, strict=True)}
            self._walk(reads)
            reached = set(map(id, self.tensors))
            self._were = {part: _only(reached, *were) for part, were in self._were.items()}
            self.tensors = self._were["requires_grad"][0]
            self.leaves = [tensor for tensor in self.tensors if id(tensor) in leaves]
            self._missing = [leaves[id(leaf)] for leaf in self.leaves]
            self._see_hooks()
        if self.refused is not None:
            raise self.refused

    def _see_tensors(self) -> None:
        hooked = [tensor for tensor in self.tensors if tensor.requires_grad]
        self._were = {
            part: (tensors, list(map(watched.__get__, tensors)))
            for part, watched in _WATCHED.items()
            for tensors in (hooked if part in _HOOKS_OF_ONE else self.tensors,)
        }
        self._missing = [grad is None for grad in map(_GRAD, self.leaves)]
        self._see_hooks()

    def _see_hooks(self) -> None:
        self._looks = [(_WATCHED[part], *were) for part, were in self._were.items()]
        for part in _HOOKS_OF_ONE:
            for hooks in self._were[part][1]:
                if hooks is not None:
                    self._places.add(Place(iter, hooks, "the hooks of a tensor"))

    def gradients(self) -> list[tuple[Tensor, Operand]]:
        """The leaves that have a gradient now, and its operand."""
        found: list[tuple[Tensor, Any]] = [(leaf, leaf.grad) for leaf in self.leaves]
        return [(leaf, grad._operand) for leaf, grad in found if grad is not None]

    def hold(self) -> bool:
        """Whether all is as it was."""
        return (
            all(starmap(same, self._looks))
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
        for part, were in self._were.items():
            for tensor, before in zip(*were, strict=True):
                if _WATCHED[part].__get__(tensor) is not before:
                    return f"a tensor of shape {list(tensor.shape)} that the function uses has another {part}"
        return "a parameter that the function uses had a gradient and has none, or the other way round"

    def _look(self, found: Any) -> Iterator[Place]:
        kind = type(found).__name__
        if isinstance(found, torch.Tensor):
            yield from entries(self._places.add_object(found), "a tensor")
        elif isinstance(found, type):
            if not is_library(found.__module__):
                yield Place(_of_class, found, f"class {found.__name__}")
        elif isinstance(found, (staticmethod, classmethod)):
            yield Place(lambda held: [held.__func__], found, f"a {kind}")
        elif isinstance(found, property):
            yield Place(lambda held: [held.fget], found, "a property")
        elif isinstance(found, torch.nn.Module):
            yield from self._module(found, f"a {kind}")
        elif isinstance(found, torch.optim.Optimizer):
            yield from entries(self._places.add_object(found), f"a {kind}")
            yield from _class_of(found)
            yield from entries(found.state, f"the state of {kind}")
            yield Place(iter, found.param_groups, f"the groups of {kind}")
            for group in found.param_groups:
                self.groups.append(group)
                yield from self._group(group, f"a group of {kind}")
        elif isinstance(found, dict):
            yield from entries(found, "a dict")
            yield from self._of_own_class(found)
        elif isinstance(found, (list, tuple, set, frozenset, deque)):
            yield Place(iter, found, f"a {kind}")
            yield from self._of_own_class(found)
        elif isinstance(found, _SEEN_THROUGH):
            yield Place(_behind, found, f"a {kind}")
        elif isinstance(found, functools.partial):
            yield Place(lambda held: (held.func, *held.args, *held.keywords.values()), found, "a partial")
        elif isinstance(found, types.MethodType):
            yield Place(lambda held: (held.__self__, held.__func__), found, "a method")
        elif _is_captured(found):
            yield Place(lambda held: [held.function], found, "a captured function")
        elif isinstance(found, contextvars.ContextVar):
            yield Place(lambda held: [held.get(None)], found, f"ContextVar {found.name!r}")
        elif isinstance(found, types.FunctionType):
            if not is_library(found.__module__ or ""):
                yield from entries(self._places.add_object(found), f"{found.__name__}()")
            yield from of_function(found)
        elif isinstance(found, weakref.ref):
            yield Place(lambda held: [held()], found, "a weak reference")
        elif isinstance(found, threading.local):  # each thread has attributes of its own
            yield Place(lambda held: [vars(held)], found, "a threading.local")
        elif isinstance(found, LRScheduler) or type(found).__module__.split(".")[0] not in (
            "torch",
            "dtorch",
        ):
            self.objects.append(found)
            yield from self._object(found, None if self._reads is None else self._reads.of(found))

    def _object(self, found: Any, read: set[str] | None) -> Iterator[Place]:
        """An object of a class of somebody else's; of its attributes those that were read, None for all."""
        kind, held = type(found).__name__, self._places.add_object(found)
        if _is_written_memory(found):
            self._array(found)
        if isinstance(held, dict) and read is None:
            yield from entries(held, f"a {kind}")
        elif isinstance(held, dict) and read is not None:
            yield from some_entries(held, [name for name in held if name in read], f"a {kind}")
            yield from absent(held, sorted(read), f"a {kind}")
            self._places.add_size(held)
        slots = [name for base in type(found).__mro__ for name in _slots(base)]
        slots = [name for name in slots if read is None or name in read]
        if slots:
            yield Place(lambda held: [getattr(held, name, None) for name in slots], found, kind, slots)
        yield from _class_of(found)

    def _of_own_class(self, found: Any) -> Iterator[Place]:
        """What a container has beside what it contains, where its class is somebody's own."""
        of_class = list(_class_of(found))
        if of_class:
            held = self._places.add_object(found)
            yield from of_class
            yield from [] if held is None else entries(held, f"a {type(found).__name__}")

    def _group(self, group: dict[str, Any], owner: str) -> Iterator[Place]:
        """A group of an optimizer: floats are inputs, tuples of them, such as betas, once they changed."""
        inputs = [name for name in group if self._history.is_input(group, name)]
        self.settings += [(group, name) for name in inputs]
        yield from some_entries(group, [name for name in group if name not in inputs], owner)
        self._places.add_size(group)
        for name in inputs:
            if type(group[name]) is tuple:
                yield Place(_length(name), group, owner)

    def _array(self, found: Any) -> None:
        if getattr(getattr(found, "dtype", None), "kind", "") == "O":
            members = Place(lambda held: list(held.flat), found, "an array of objects")
            self._waiting += self._places.add(members)
        elif _nbytes(found) > MAX_WATCHED_BYTES or self._places.add_memory(found) > MAX_WATCHED_BYTES:
            self.refused = CaptureError(
                f"capture(): the function reaches {array_name(found)}, and a replay looks at no more than "
                f"{MAX_WATCHED_BYTES >> 20} MiB of arrays; make it read-only by setflags(write=False), make "
                "a tensor of it, or keep it out of the function's reach"
            )

    def _module(self, found: torch.nn.Module, owner: str) -> Iterator[Place]:
        for held in map(found.__getattribute__, _HELD):
            yield from entries(held, owner)
        for name in _HOOKS:
            self._waiting += self._places.add_hooks(getattr(found, name), f"the hooks of {owner}")
        attributes = self._places.add_object(found)
        for place in some_entries(attributes, [*_HELD, *_HOOKS], owner):  # what is in these, see above
            self._places.add(place)
        yield from some_entries(attributes, [key for key in attributes if key not in _MODULE_OWN], owner)
        self._places.add_size(attributes)
        yield from _class_of(found)


def _only(reached: set[int], tensors: list[Tensor], was: list[Any]) -> tuple[list[Tensor], list[Any]]:
    kept = [(tensor, before) for tensor, before in zip(tensors, was, strict=True) if id(tensor) in reached]
    return [tensor for tensor, _ in kept], [before for _, before in kept]


def _behind(held: Any) -> list[Any]:
    """What is in the dictionary behind a proxy or a view."""
    mapping = getattr(held, "mapping", held)
    return [*mapping.keys(), *mapping.values()]


def _is_captured(found: Any) -> bool:
    """Whether it is another captured function, which is called as it is where this one is recorded."""
    from dtorch.replay.capture import Capture  # which stands on this

    return isinstance(found, Capture)


def _length(name: str) -> Callable[[dict[str, Any]], list[Any]]:
    """Reads how many floats a setting has; what is no tuple of floats now is read as it is."""

    def read(group: dict[str, Any]) -> list[Any]:
        held = group[name]
        return [len(held) if type(held) is tuple and {*map(type, held)} == {float} else held]

    return read


def _is_written_memory(found: Any) -> bool:
    """Whether it is an array of numbers or bytes, numpy's or Python's, that can be written."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(found, numpy.ndarray):
        return bool(found.flags.writeable)
    return isinstance(found, (bytearray, array.array)) or (
        isinstance(found, memoryview) and not found.readonly
    )


def _nbytes(found: Any) -> int:
    return found.nbytes if hasattr(found, "nbytes") else memoryview(found).nbytes


def _of_class(kind: type) -> list[Any]:
    own = [value for name, value in vars(kind).items() if name not in _NO_CODE]
    return [type(kind), *kind.__bases__, *own]


def _class_of(found: Any) -> Iterator[Place]:
    """The class of an object, for what its methods use; what libraries define is taken to stay."""
    if any(not is_library(kind.__module__) for kind in type(found).__mro__):
        yield Place(lambda held: [type(held)], found, f"a {type(found).__name__}")


def _slots(kind: type) -> list[str]:
    names = vars(kind).get("__slots__", ())
    return [names] if isinstance(names, str) else [name for name in names if not name.startswith("__")]
