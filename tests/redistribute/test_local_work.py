"""Local work sees neither autograd, autocast nor modes, and leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dtorch.redistribute.local_work import LocalWork

_keys = (torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set)


class Refusing(TorchDispatchMode):
    def __torch_dispatch__(self, *args: Any) -> Any:
        raise AssertionError("seen by a dispatch mode")


class RefusingFunctions(TorchFunctionMode):
    def __torch_function__(self, *args: Any) -> Any:
        raise AssertionError("seen by a function mode")


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "a dispatch mode": Refusing,
    "a function mode": RefusingFunctions,
    "a default device": lambda: torch.device("meta"),
    "itself": LocalWork,
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_nothing_around_it_is_seen(around: Callable[[], AbstractContextManager[Any]]) -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    with around():
        before = [str(keys()) for keys in _keys]
        with LocalWork():
            made = torch.mm(weight, torch.ones(2, 2))
            assert not made.requires_grad
            assert (made.dtype, made.device.type) == (torch.float32, "cpu")
        assert [str(keys()) for keys in _keys] == before
    assert made.tolist() == [[2.0, 2.0]] * 2


def test_it_ends_with_an_error() -> None:
    before = [str(keys()) for keys in _keys]
    with pytest.raises(RuntimeError, match="inside"), LocalWork():
        raise RuntimeError("inside")
    assert [str(keys()) for keys in _keys] == before


def test_inside_of_a_transform_a_part_stays_plain() -> None:
    part = torch.ones(3)

    def function(x: torch.Tensor) -> torch.Tensor:
        with LocalWork():
            assert not torch._C._functorch.is_gradtrackingtensor(part * 2)
        return (x * 2).sum()

    assert torch.func.grad(function)(torch.ones(3)).tolist() == [2.0] * 3


def test_conjugates_are_resolved_where_a_dispatch_has_hidden_them() -> None:
    part = torch.tensor([1 + 2j]).conj()
    hide = torch._C._dispatch_tls_set_dispatch_key_excluded
    hide(torch._C.DispatchKey.Conjugate, True)
    try:
        with LocalWork():
            made = part * 1
        assert torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Conjugate)
    finally:
        hide(torch._C.DispatchKey.Conjugate, False)
    assert made.tolist() == [1 - 2j]
