"""Capture: what stands around a call belongs to it, and where somebody looks at each call it is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import dtorch
from dtorch import Shard
from dtorch.errors import CaptureError
from dtorch.replay import capture

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

pytestmark = pytest.mark.recorded


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.Tensor.exp else found


class Negated(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return -found if func is torch.ops.aten.exp.default else found


def saved() -> AbstractContextManager[None]:
    return torch.autograd.graph.saved_tensors_hooks(lambda held: held, lambda held: held * 2)


def gradient(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    (found,) = torch.autograd.grad(x.exp().sum(), x)
    return found


@pytest.mark.parametrize("around", [Doubled, Negated, saved])
def test_what_looks_at_calls_sees_them(around: Callable[[], AbstractContextManager[Any]]) -> None:
    captured = capture(gradient)
    x = dtorch.Tensor(torch.ones(4, 2), device_mesh=MESH, placements=[Shard(0)])
    captured.capture(x)
    with around():
        expected, found = gradient(x), captured(x)
        assert captured.why().startswith("called as it is")
        with pytest.raises(CaptureError, match="is open"):
            captured.replay(x)
    assert not torch.equal(expected.to_torch(), gradient(x).to_torch())
    assert torch.equal(found.to_torch(), expected.to_torch())
    captured(x)
    assert captured.why().startswith("replayed")


def test_a_counter_counts_a_captured_function() -> None:
    weight, x = dtorch.ones(3, 5, device_mesh=MESH), dtorch.ones(2, 3, device_mesh=MESH)
    captured = capture(lambda x: x @ weight)
    captured.capture(x)
    with FlopCounterMode(display=False) as counter:
        captured(x)
    assert counter.get_total_flops() == 2 * 2 * 3 * 5


def test_another_type_of_autocast_is_another_recording() -> None:
    weight, x = dtorch.ones(3, 5, device_mesh=MESH), dtorch.ones(2, 3, device_mesh=MESH)
    captured = capture(lambda x: x @ weight)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            for _ in range(4):
                assert captured(x).dtype == dtype
    assert captured(x).dtype == torch.float32


def test_where_tensors_are_made_belongs_to_the_recording() -> None:
    captured = capture(lambda x: x * 2)
    x = dtorch.ones(2, 3, device_mesh=MESH)
    for _ in range(2):
        for _ in range(4):
            captured(x)
        assert captured.why().startswith("replayed")
        with dtorch.device_mesh(MESH):
            for _ in range(4):
                captured(x)
        assert captured.why().startswith("replayed")
        with torch.device("cpu"):
            for _ in range(4):
                captured(x)
        assert captured.why().startswith("replayed")
