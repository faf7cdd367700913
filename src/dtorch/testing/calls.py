"""Calls to judge: an operator with small plain inputs, given directly or taken down from a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dtorch.op import registry
from dtorch.op.call import flatten
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam, Slot, TorchCall, fill, holds_slot
from dtorch.op.schema import schema_of
from dtorch.testing.compare import Tolerance, tolerance

Value = torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Call:
    """One call of one operator.

    Attributes:
        param: the operator's parameters; for a torch operator its arguments, tensors as slots.
        inputs: the plain tensors, None where one is absent.
        expected: plain outputs, for an operator that is no torch call; torch calls are run to know theirs.
    """

    param: OpParam
    inputs: tuple[Value, ...]
    expected: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, func: Any, *args: Any, **kwargs: Any) -> Call:
        """A call of a torch overload (`torch.ops.aten.mm.default`)."""
        tensors: list[torch.Tensor] = []
        param = TorchCall(
            f"{func.namespace}.{func._opname}.{func._overloadname}",
            tuple(_slots(a, tensors) for a in args),
            {name: _slots(value, tensors) for name, value in kwargs.items()},
        )
        return cls(param, tuple(tensors))

    @property
    def operator_class(self) -> type[Operator]:
        """The class that serves the call."""
        if isinstance(self.param, TorchCall):
            return registry.class_of(self.param.func)
        return registry.class_by_type(type(self.param).__name__.removesuffix("Param"))

    @property
    def written(self) -> frozenset[int]:
        """Inputs that the operator writes."""
        if not isinstance(self.param, TorchCall):
            return frozenset()
        facts = schema_of(self.param.func)
        bound = facts.bind(self.param.args, self.param.kwargs)
        values = [item for name in facts.written for item in flatten(bound.get(name))]
        return frozenset(value.index for value in values if isinstance(value, Slot))

    def run(self, inputs: tuple[Value, ...] | None = None) -> list[Any]:
        """Outputs of plain torch, flat, on the call's own inputs (copied) or on others."""
        if not isinstance(self.param, TorchCall):
            if self.expected is None:
                raise TypeError("a call of an operator that is no torch call needs `expected`")
            return list(self.expected)
        values = [None if x is None else copy(x) for x in self.inputs] if inputs is None else list(inputs)
        return flatten(self.param.func(*fill(self.param.args, values), **fill(self.param.kwargs, values)))

    def with_values(self, generator: torch.Generator) -> Call:
        """The same call with other numbers, of mixed sign, where they have a fraction."""
        other = [
            x
            if x is None or not (x.is_floating_point() or x.is_complex())
            else torch.empty_like(x).copy_(torch.randn(x.shape, dtype=x.dtype, generator=generator))
            for x in self.inputs
        ]
        return replace(self, inputs=tuple(other))

    def key(self) -> str:
        """What makes two calls the same to a judge: all but the values of tensors and of most floats."""
        kinds = [None if x is None else (tuple(x.shape), x.dtype, x.stride()) for x in self.inputs]
        return f"{_without_floats(self.param)} {kinds}"

    def tolerance(self, result: Any) -> Tolerance | None:
        """How far a result may be off: sums of narrow inputs are no better for a wide output."""
        if not isinstance(result, torch.Tensor) or not (result.is_floating_point() or result.is_complex()):
            return None
        return tolerance(result, *(x for x in self.inputs if x is not None))

    @cached_property
    def is_generic(self) -> bool:
        """Whether values tell placements apart: every tensor has some, few are 0, not all results alike."""
        results = [y for y in self.run() if _is_dense(y)]
        plain = any(y.numel() == 0 or (y.dtype is torch.bool and y.numel() == 1) for y in results)
        alike = any(y.numel() > 1 and bool((y == y.flatten()[0]).all()) for y in results)
        masks = [x for x in self.inputs if x is not None and x.dtype is torch.bool]
        flat = any(bool(x.all()) or not bool(x.any()) for x in masks)
        present = [x for x in self.inputs if x is not None]
        flat |= all(x.numel() < 2 for x in present) or any(x.numel() == 0 for x in present)
        counts = [x for x in present if not (x.is_floating_point() or x.is_complex()) and x.numel() > 1]
        flat |= any(bool((x == x.flatten()[0]).all()) for x in counts)
        floats = [x for x in present if x.is_floating_point()]
        return not (plain or alike or flat) and all(bool((x != 0).double().mean() > 0.8) for x in floats)

    def __str__(self) -> str:
        shapes = ", ".join("-" if x is None else str(list(x.shape)) for x in self.inputs)
        if not isinstance(self.param, TorchCall):
            return f"{self.param}({shapes})"
        facts = schema_of(self.param.func)
        given = dict(zip(facts.names, self.param.args)) | self.param.kwargs
        plain = [f"{name}={value}" for name, value in given.items() if not holds_slot(value)]
        return f"{self.param.op}({', '.join([shapes, *plain])})"


def copy(tensor: torch.Tensor) -> torch.Tensor:
    """A plain copy without history, of the same strides where these are dense."""
    return tensor.detach().clone()


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _without_floats(value: Any) -> Any:
    """The same parameters whether a number is 0.1 or 0.2, but not whether it is 0, 1 or neither."""
    if isinstance(value, TorchCall):
        return value.op, _without_floats(value.args), _without_floats(value.kwargs)
    if isinstance(value, (list, tuple)):
        return [_without_floats(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_floats(item) for name, item in value.items()}
    return "float" if isinstance(value, float) and value not in (0.0, 1.0) else value


def _slots(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(copy(value))
        return Slot(len(tensors) - 1)
    if isinstance(value, (list, tuple)):
        return type(value)([_slots(item, tensors) for item in value])
    return value


class _Listener(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Call] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if not schema_of(func).outs:
            call = Call.of(func, *args, **(kwargs or {}))
            self.calls.setdefault(call.key(), call)
        return func(*args, **(kwargs or {}))


def calls_in(function: Callable[[], Any]) -> list[Call]:
    """The torch calls that a function makes below autograd, backward included, each kind of call once."""
    with _Listener() as listener:
        function()
    return list(listener.calls.values())
