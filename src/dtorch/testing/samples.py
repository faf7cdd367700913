"""Small programs whose every call below autograd, backward included, is judged.

One line serves an operator, its overloads and its backward operators. Sizes are distinct, and such that 2 and
3 devices cut them unevenly: on 3 devices the last holds nothing of a dim of size 4. Values are generic and of
mixed sign. More programs come with the families: `samples_*.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch

from dtorch.op.call import flatten
from dtorch.op.param import TorchCall
from dtorch.op.schema import base_name, schema_of
from dtorch.testing.calls import Call, calls_in

FAMILIES = ("pointwise", "shape", "index", "reduce", "product", "nn", "linalg", "fused")

UNINITIALISED = frozenset({"aten.empty_like", "aten.new_empty", "aten.new_empty_strided"})
"""Their values are whatever the memory held."""

Sample = Callable[["Values"], Any]


class Values:
    """Makes the tensors of a sample."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def __call__(self, *shape: int) -> torch.Tensor:
        """Generic values of mixed sign, a leaf that requires a gradient."""
        return self.constant(*shape).requires_grad_()

    def constant(self, *shape: int) -> torch.Tensor:
        """Generic values of mixed sign, without gradient."""
        return torch.randn(shape, generator=self._generator, dtype=self._dtype)

    def positive(self, *shape: int) -> torch.Tensor:
        """Generic values between 0.1 and 0.9, a leaf that requires a gradient."""
        values = torch.rand(shape, generator=self._generator, dtype=self._dtype) * 0.8 + 0.1
        return values.requires_grad_()

    def ints(self, stop: int, *shape: int, start: int = 0) -> torch.Tensor:
        """Whole numbers from `start` up to `stop`, exclusive."""
        return torch.randint(start, stop, shape, generator=self._generator)

    def mask(self, *shape: int) -> torch.Tensor:
        """Bools."""
        return torch.rand(shape, generator=self._generator) > 0.4


@cache
def samples() -> dict[str, Sample]:
    """All samples by name."""
    found: dict[str, Sample] = {}
    for family in FAMILIES:
        for name, sample in import_module(f"dtorch.testing.samples_{family}").SAMPLES.items():
            if name in found:
                raise ValueError(f"two samples are called {name}")
            found[name] = sample
    return found


def run_sample(sample: Sample) -> None:
    """Forward, and backward from every output that has a gradient."""
    backward_of([y for y in flatten(sample(Values())) if isinstance(y, torch.Tensor)])


def backward_of(outputs: Sequence[torch.Tensor]) -> None:
    """Backward from all that have a gradient, of generic values."""
    wanting = [y for y in outputs if y.requires_grad]
    if wanting:
        cotangents = [
            torch.arange(1, y.numel() + 1).mul(1.7).sin().to(y.dtype).reshape(y.shape) for y in wanting
        ]
        torch.autograd.backward(wanting, cotangents)


@cache
def calls_of(name: str) -> tuple[Call, ...]:
    """The calls that one sample makes, each kind once; not those without tensors or determined values."""
    calls = calls_in(lambda: run_sample(samples()[name]))
    return tuple(c for c in calls if c.inputs and is_determined(c))


def is_determined(call: Call) -> bool:
    """Whether a call gives the same values each time, and its own shapes."""
    if not isinstance(call.param, TorchCall):
        return True
    func = call.param.func
    # In-place views change the tensor's own shape; the engine runs their out-of-place forms.
    if torch.Tag.inplace_view in func.tags or base_name(func) in UNINITIALISED:
        return False
    # Attention is random only by its dropout.
    chance = schema_of(func).bind(call.param.args, call.param.kwargs).get("dropout_p", 1.0)
    return chance == 0 or torch.Tag.nondeterministic_seeded not in func.tags


def calls_by_operator(names: Iterable[str] | None = None) -> dict[str, list[Call]]:
    """Torch operator ("aten.mm") -> its calls in all samples, or in those named; each kind of call once."""
    return by_operator(call for name in (samples() if names is None else names) for call in calls_of(name))


def by_operator(calls: Iterable[Call]) -> dict[str, list[Call]]:
    """Torch operator ("aten.mm") -> its calls, each kind of call once."""
    found: dict[str, dict[str, Call]] = {}
    for call in calls:
        assert isinstance(call.param, TorchCall)
        found.setdefault(base_name(call.param.func), {}).setdefault(call.key(), call)
    return {name: list(calls.values()) for name, calls in sorted(found.items())}
