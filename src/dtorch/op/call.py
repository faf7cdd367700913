"""Calling a torch operator: on meta tensors, to learn what comes out, and on local tensors, fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch

from dtorch.op.binding import bare
from dtorch.op.param import Slot, fill, holds_slot
from dtorch.redistribute.local_work import LocalWork
from dtorch.spec import Spec


class OutputMeta(NamedTuple):
    """What is known of an output before it is computed."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0


class MetaFailed(Exception):
    """torch refused a call on meta tensors: it is illegal, or torch's meta kernel is missing or too strict.

    Attributes:
        error: what torch raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def run_on_meta(func: Any, args: tuple, kwargs: dict, specs: Sequence[Spec | None]) -> Any:
    """Call a torch operator on meta tensors of the given global shapes and strides.

    Where all are empty it is called on empty tensors: that costs nothing, and some meta kernels have strides
    of their own for those.

    Raises:
        MetaFailed: torch raised something, for illegal shapes, dtypes or arguments, or having no meta kernel.
    """
    given = [spec for spec in specs if spec is not None]
    if given and all(0 in spec.shape and spec.mesh.device_type == "cpu" for spec in given):
        with suppress(Exception):
            return _run_empty(func, args, kwargs, specs)
    tensors = [None if spec is None else _meta(spec) for spec in specs]
    kwargs = dict(kwargs)
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("meta")
    try:
        with torch._C._DisableTorchDispatch():  # a mode that is open around the call has no part in this
            return func(*fill(args, tensors), **fill(kwargs, tensors))
    except Exception as error:
        raise MetaFailed(error) from error


def _run_empty(func: Any, args: tuple, kwargs: dict, specs: Sequence[Spec | None]) -> Any:
    """The call on tensors that hold nothing."""
    tensors = [
        None if spec is None else torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="cpu")
        for spec in specs
    ]
    with LocalWork():
        return func(*fill(args, tensors), **fill(kwargs, tensors))


def _meta(spec: Spec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")


def flatten(result: Any) -> list[Any]:
    """The outputs of a torch call as a flat list: tensors, None, or plain values."""
    if isinstance(result, (tuple, list)):
        return [item for part in result for item in flatten(part)]
    return [result]


def metas(result: Any) -> list[OutputMeta | None]:
    """Shape, stride and dtype of each output; None for those that are no tensors."""
    return [meta_of(item) if isinstance(item, torch.Tensor) else None for item in flatten(result)]


def meta_of(tensor: torch.Tensor) -> OutputMeta:
    """Shape, stride, dtype and offset of one tensor; tensors without strides count as contiguous."""
    if tensor.layout is not torch.strided:
        return OutputMeta(tuple(tensor.shape), (), tensor.dtype)
    return OutputMeta(tuple(tensor.shape), tensor.stride(), tensor.dtype, int(tensor.storage_offset()))


def compile_call(func: Any, args: tuple, kwargs: dict) -> Callable[[Sequence[Any]], Any]:
    """A function of the local inputs that calls `func`, every slot filled.

    Filling nested arguments costs microseconds; generated code costs none.
    """
    constants: list[Any] = []

    def constant(value: Any) -> str:
        constants.append(value)
        return f"c[{len(constants) - 1}]"

    return _factory(arguments_text(args, kwargs, lambda index: f"i[{index}]", constant))(
        bare(func), constants
    )


@cache
def _factory(arguments: str) -> Callable[[Any, list[Any]], Callable[[Sequence[Any]], Any]]:
    return eval(f"lambda f, c: lambda i: f({arguments})")  # only slots and constant numbers are in the text


def arguments_text(
    args: tuple, kwargs: dict, slot: Callable[[int], str], constant: Callable[[Any], str]
) -> str:
    """The arguments of a call as source text.

    Args:
        args, kwargs: with slots for tensors.
        slot: the text for an input, by its number.
        constant: the text for any other value.
    """

    texts = [_text(value, slot, constant) for value in args]
    texts += [f"{name}={_text(value, slot, constant)}" for name, value in kwargs.items()]
    return ", ".join(texts)


def _text(value: Any, slot: Callable[[int], str], constant: Callable[[Any], str]) -> str:
    """One argument; no inner function, since one that calls itself holds `constant`, and values behind it."""
    if type(value) is Slot:
        return slot(value.index)
    if type(value) in (list, tuple) and holds_slot(value):
        inner = "".join(f"{_text(item, slot, constant)}, " for item in value)
        return f"[{inner}]" if type(value) is list else f"({inner})"
    return constant(value)
