"""torch's Python functions in place of overload objects: the same computation for half a microsecond less.

`torch.add` and `Tensor.view` parse their arguments by generated code and choose an overload; an overload
object goes by its schema. Which overload a function chooses depends on the kinds of its arguments alone, so
it is tried once for each: a mode under which nothing runs sees what arrives. Where this is not the same
overload with the same arguments, or no such function exists, the overload is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dtorch.op.param import Slot, fill, key_of
from dtorch.spec import Spec

_HOMES = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)
_MODES = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
_FOUND: dict[Any, Any] = {}
_SAME_BELOW_AUTOGRAD = {torch.ops.aten._unsafe_view.default: torch.Tensor.view}
"""Overloads that only autograd tells apart from another one; plans run below it."""


def function_of(func: Any, args: tuple, kwargs: dict, specs: Sequence[Spec | None]) -> Any:
    """What to call for an overload on local tensors: a function of torch, or what the overload itself calls.

    Args:
        func: the overload.
        args, kwargs: of the call, with slots for inputs.
        specs: of the inputs; None for a number or an absent one.
    """
    kinds = [None if spec is None else (len(spec.shape), spec.dtype) for spec in specs]
    key = (func, _kind(args), _kind(kwargs), tuple(kinds))
    found = _FOUND.get(key)
    if found is None:
        known = _SAME_BELOW_AUTOGRAD.get(func)
        found = _FOUND[key] = known or _search(func, args, kwargs, specs) or bare(func)
    return found


def bare(func: Any) -> Any:
    """What an overload calls, without its Python frame: a third of a microsecond less."""
    return getattr(func, "_op", func)


def _kind(value: Any) -> Any:
    """What of an argument an overload is chosen by."""
    if type(value) in (list, tuple):
        return type(value), tuple([_kind(item) for item in value])
    if type(value) is dict:
        return tuple([(name, _kind(item)) for name, item in value.items()])
    return (value.index, type(value.sample)) if type(value) is Slot else type(value)


def _search(func: Any, args: tuple, kwargs: dict, specs: Sequence[Spec | None]) -> Any | None:
    if func.namespace != "aten" or all(spec is None for spec in specs):
        return None
    inputs = [None if spec is None else _sample(spec) for spec in specs]
    if any(slot.sample is None and inputs[slot.index] is None for slot in _slots((args, kwargs))):
        return None  # a generator, or an input that is absent
    args, kwargs = fill(args, inputs), fill(kwargs, inputs)
    expected = _arriving(func, args, kwargs)
    for home in _HOMES:
        function = getattr(home, func._opname, None)
        if function is not None and expected is not None and _arriving(function, args, kwargs) == expected:
            return function
    return None


def _sample(spec: Spec) -> torch.Tensor:
    return torch.empty((1,) * len(spec.shape), dtype=spec.dtype, device="cpu")


def _slots(value: Any) -> Iterator[Slot]:
    if type(value) is Slot:
        yield value
    elif type(value) in (list, tuple, dict):
        for item in value.values() if type(value) is dict else value:
            yield from _slots(item)


class _Arrived(Exception):
    """Ends a call that has been seen."""


class _Watching(TorchDispatchMode):
    """Notes the call that arrives, and ends it."""

    seen: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.seen = func, _named(args), _named(kwargs or {})
        raise _Arrived


class _Seen:
    """Context in which dispatch modes see calls, also inside of work that is hidden from them."""

    def __enter__(self) -> None:
        self._guards = [torch._C._SetExcludeDispatchKeyGuard(key, False) for key in _MODES]
        for guard in self._guards:
            guard.__enter__()

    def __exit__(self, *error: Any) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(*error)


def _arriving(function: Any, args: tuple, kwargs: dict) -> Any | None:
    """The overload that a call leads to, and with which arguments; None where it leads to none."""
    with torch._C.DisableTorchFunction(), torch.inference_mode(), _Seen(), _Watching() as watching:
        try:
            function(*args, **kwargs)
        except Exception:  # the function does not take these arguments, or what arrived was noted
            return watching.seen
    return None


def _named(value: Any) -> Any:
    """Something that is equal for equal arguments only: tensors by identity."""
    if isinstance(value, torch.Tensor):
        return id(value)
    if type(value) in (list, tuple):
        return type(value), [_named(item) for item in value]
    if type(value) is dict:
        return {name: _named(item) for name, item in value.items()}
    return key_of(value)
