"""What surrounds a program: autocast, defaults, modes, threads. Calls do there what plain torch would do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dtorch
from dtorch import Partial, Replicate, Shard
from dtorch.creation import default_dtype
from dtorch.testing import assert_tensor_allclose as close
from dtorch.testing import assert_tensor_equal as equal
from tests.places import PLACES, S0_2, S1_2, SPREAD, Place, randn, same_gradients

# -- autocast -----------------------------------------------------------------------------------------------


def _block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = F.linear(x, w, b)
    scores = torch.softmax(y @ y.t(), -1)
    return F.layer_norm(scores @ y, (y.shape[-1],)).float()


@SPREAD
def test_autocast_computes_in_torchs_dtypes(place: Place) -> None:
    x, w, b = randn(5, 4), randn(3, 4, seed=1), randn(3, seed=2)
    calls: list[Callable[..., torch.Tensor]] = [
        lambda x, w, b: F.linear(x, w, b),
        lambda x, w, b: (x @ w.t()).softmax(-1),
        lambda x, w, b: F.linear(x, w) + b,
        lambda x, w, b: torch.cat([x @ w.t(), b[None]]),
        lambda x, w, b: F.mse_loss(x @ w.t(), x[:, :3]),
    ]
    for call in calls:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted = call(x, w, b)
            found = call(place.put(x), place.put(w), place.whole(b))
        assert found.dtype == wanted.dtype
        close(found.float(), wanted.float(), rtol=2e-2, atol=3e-2)
        assert not torch.is_autocast_enabled("cpu")


@SPREAD
def test_backward_runs_outside_autocast(place: Place) -> None:
    x, values = randn(5, 4), (randn(3, 4, seed=1), randn(3, seed=2))
    grads = []
    for spread in (False, True):
        w, b = (place.whole(v) if spread else v.clone() for v in values)
        w.requires_grad_(), b.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = _block(place.put(x) if spread else x, w, b).pow(2).sum()
        loss.backward()
        grads.append([w.grad, b.grad])
    for found, wanted in zip(grads[1], grads[0], strict=True):
        assert found.dtype == torch.float32
        close(found, wanted, rtol=5e-2, atol=0.15)


def test_reading_and_moving_ignore_autocast() -> None:
    x = dtorch.Tensor(randn(5, 4), device_mesh=S0_2.mesh, placements=[Partial()])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        moved = x.redistribute(placements=[Shard(0)])
        assert moved.dtype == x.to_torch().dtype == torch.float32
    close(moved, randn(5, 4))


# -- defaults -----------------------------------------------------------------------------------------------


@PLACES
def test_another_default_dtype_is_obeyed_in_any_order(place: Place) -> None:
    """Also by calls whose recipe was made under the first default."""
    numbers = torch.arange(15).view(5, 3)
    calls: list[Callable[[Any], Any]] = [
        lambda x: x * 1.5,
        lambda x: x / 2,
        lambda x: x.sqrt(),
        lambda x: torch.mean(x * 1.0, dim=0),
        lambda x: torch.full_like(x, 2) + 0.5,
        lambda x: torch.where(x > 2, x, 0.5),
    ]
    for dtype in (torch.float32, torch.float64, torch.float32, torch.bfloat16):
        with default_dtype(dtype):
            for call in calls:
                found, wanted = call(place.put(numbers)), call(numbers)
                assert found.dtype == wanted.dtype
                close(found, wanted)


def _everything(place: Place, value: torch.Tensor) -> list[torch.Tensor]:
    """Creation, calls, writes, a backward, reading, moving and printing."""
    x = place.put(value, requires_grad=True)
    y = x.sin()
    y[1:3] *= 2
    y.view(-1)[0] = 4
    (y.sum(0) * y).mean().backward()
    assert isinstance(x.grad, dtorch.Tensor)
    assert "Tensor" in repr(y)
    moved = y.detach().redistribute(placements=[Replicate()] * len(place.mesh_shape))
    dropped = F.dropout(x.detach(), 0.5)
    return [t.detach().to_torch() for t in (y, x.grad, moved, dropped, y @ y.t(), y[[0, 3]], y.cumsum(0))]


@contextmanager
def _default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
        self.seen.append((func, any(isinstance(x, dtorch.Tensor) for x in tensors)))
        return result


class Passing(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


AROUND: dict[str, Callable[[], Any]] = {
    "device meta": lambda: torch.device("meta"),
    "default device meta": lambda: _default_device("meta"),
    "deterministic": _deterministic,
    "dispatch mode": Counting,
    "function mode": Passing,
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
}


@PLACES
@pytest.mark.parametrize("name", AROUND)
def test_nothing_leaks_in_from_around(place: Place, name: str) -> None:
    torch.manual_seed(3)
    value = randn(5, 3)
    wanted = _everything(place, value)
    torch.manual_seed(3)
    with AROUND[name]():
        found = _everything(place, value)
    for a, b in zip(found, wanted, strict=True):
        assert a.device.type == "cpu"
        equal(a, b)


def test_a_users_dispatch_mode_sees_calls_on_distributed_tensors_only() -> None:
    """Neither the work on local parts nor that of reading and moving is the user's."""
    x = S0_2.put(randn(5, 3))
    with Counting() as mode:
        y = x * 2 + x.sum()
        y.to_torch()
        y.redistribute(placements=[Shard(1)]).add_(1)
        y[0] = 2
    names = [str(func).split(".")[1] for func, _ in mode.seen]
    assert names[:3] == ["mul", "sum", "add"]
    assert not {"as_strided", "empty_permuted", "narrow"} & set(names)


def test_a_users_function_mode_sees_torch_functions() -> None:
    x = S0_2.put(randn(5, 3))
    with Passing() as mode:
        torch.add(x, 1)
    assert torch.add in mode.seen


def test_a_users_mode_may_change_what_a_call_returns() -> None:
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.ops.aten.sin.default else result

    x = S0_2.put(randn(5, 3))
    with Doubling():
        y = x.sin()
    close(y, randn(5, 3).sin() * 2)


def test_deterministic_mode_has_torchs_gradient_of_repeated_indices() -> None:
    with _deterministic():
        same_gradients(S0_2, lambda x: x[torch.tensor([0, 0, 4, 1])].pow(2), randn(5, 3))
        assert torch.empty_like(S0_2.put(randn(5, 3))).to_torch().isnan().all()


# -- inference mode -----------------------------------------------------------------------------------------


def _inside(x: torch.Tensor) -> list[torch.Tensor]:
    view, row, flat, other = x[1:3], x[0], x.view(-1), x.t()
    view.mul_(2)
    x.add_(1)
    row.fill_(3)
    flat[4:7].neg_()
    fresh = x * 2
    fresh[1] = 0
    return [
        x,
        view,
        row,
        flat,
        other,
        fresh,
        F.linear(x, x),
        x.reshape(3, 5),
        x.contiguous(),
        x.to(torch.float64),
    ]


@PLACES
def test_inference_mode_views_and_writes_of_normal_tensors(place: Place) -> None:
    plain, spread = randn(5, 3), place.put(randn(5, 3))
    with torch.inference_mode():
        wanted, found = _inside(plain), _inside(spread)
    for a, b in zip(found, wanted, strict=True):
        close(a, b)
        assert a.is_inference() == b.is_inference()


@PLACES
def test_what_inference_mode_made_of_normal_tensors_can_be_written_after_it(place: Place) -> None:
    def after(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.inference_mode():
            view, row, column = x[1:3], x[0], x[:, 1]
        x.add_(1)
        view.mul_(2)
        row[1:].fill_(7)
        column.neg_()
        return [x, view, row, column]

    for a, b in zip(after(place.put(randn(5, 3))), after(randn(5, 3)), strict=True):
        close(a, b)


def test_tensors_made_in_inference_mode_are_refused_where_torch_refuses_them() -> None:
    leaf = S0_2.put(randn(5, 3), requires_grad=True)
    with torch.inference_mode():
        made = S0_2.put(randn(5, 3)) * 1
    assert made.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        leaf * made
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        made.add_(1)
    assert not (made * 2).is_inference()


@SPREAD
def test_recipes_are_shared_between_modes(place: Place) -> None:
    """The same call under inference_mode, no_grad and grad, in each order, gives the same."""
    x = randn(5, 3)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            close(F.linear(place.put(x), place.put(x)).softmax(-1), (x @ x.t()).softmax(-1))
    same_gradients(place, lambda x: F.linear(x, x).softmax(-1)[0], x)


# -- threads ------------------------------------------------------------------------------------------------


def _in_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


@SPREAD
def test_made_used_and_differentiated_in_different_threads(place: Place) -> None:
    leaf = _in_thread(lambda: place.put(randn(5, 3), requires_grad=True))
    doubled = _in_thread(lambda: leaf * 2)
    loss = _in_thread(lambda: (doubled * place.put(randn(5, 3, seed=1))).sum())
    _in_thread(loss.backward)
    close(leaf.grad, 2 * randn(5, 3, seed=1))
    assert leaf.grad.placements == leaf.placements
    close(_in_thread(doubled.to_torch), 2 * randn(5, 3))


def test_policy_and_no_sync_are_the_graphs_whichever_thread_calls() -> None:
    """A guard holds for the tensors of its graph, also where autograd calls from a thread of its own."""
    weight = S0_2.whole(randn(3, 6), requires_grad=True)
    with weight.graph.no_sync():
        _in_thread(lambda: F.linear(S0_2.put(randn(5, 6)), weight).sin().sum().backward())
        assert weight.grad.placements == [Partial()]  # type: ignore[union-attr]


def test_many_threads_share_one_graph() -> None:
    x = randn(5, 3)
    shared, errors = S0_2.put(x), []
    plain = [F.linear(x * i, x + i).softmax(-1).sum(0) for i in range(12)]

    def work(i: int) -> None:
        try:
            for _ in range(5):
                close(F.linear(shared * i, shared + i).softmax(-1).sum(0), plain[i])
                close(S1_2.put(x) * i, x * i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_two_threads_train_their_own_leaves_at_once() -> None:
    def train(seed: int) -> torch.Tensor:
        w = S0_2.put(randn(3, 4, seed=seed), requires_grad=True)
        for step in range(5):
            F.linear(S0_2.put(randn(5, 4, seed=step)), w).pow(2).mean().backward()
            with torch.no_grad():
                w -= 0.1 * w.grad  # type: ignore[operator]
            w.grad = None
        return w.detach().to_torch()

    alone = [train(seed) for seed in range(4)]
    results: dict[int, torch.Tensor] = {}
    threads = [threading.Thread(target=lambda s=s: results.update({s: train(s)})) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        equal(results[seed], alone[seed])
