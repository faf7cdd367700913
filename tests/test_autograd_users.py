"""What users hang on autograd: writes into views, hooks, recomputation, own functions, anomaly mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtorch
from dtorch import Replicate
from dtorch.testing import assert_tensor_allclose as close
from dtorch.testing import assert_tensor_equal as equal
from tests.places import (
    PLACES,
    S0_2,
    SPREAD,
    Place,
    randn,
    same_gradients,
)

# -- views and writes ----------------------------------------------------------------------------------------


def _rows(y: torch.Tensor, x: torch.Tensor) -> None:
    y[1:3].mul_(3)


def _one_row(y: torch.Tensor, x: torch.Tensor) -> None:
    y[1] = x[0] * 2


def _flat(y: torch.Tensor, x: torch.Tensor) -> None:
    y.view(-1)[4:9].exp_()


def _column(y: torch.Tensor, x: torch.Tensor) -> None:
    y[:, 1] += x[:, 0]


def _transposed(y: torch.Tensor, x: torch.Tensor) -> None:
    y.t()[1:].copy_(x.t()[1:].sin())


def _diagonal(y: torch.Tensor, x: torch.Tensor) -> None:
    y.diagonal().mul_(x.sum())


def _masked(y: torch.Tensor, x: torch.Tensor) -> None:
    y.masked_fill_(x > 0, 3.0)


def _view_of_view(y: torch.Tensor, x: torch.Tensor) -> None:
    y[1:][:, :2][1].fill_(2.0)
    y[2:4].view(2, 3).t()[0].mul_(x[0, 0])


WRITES = (_rows, _one_row, _flat, _column, _transposed, _diagonal, _masked, _view_of_view)


@PLACES
@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__.strip("_"))
def test_gradients_through_writes_into_views(place: Place, write: Callable[..., None]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        write(y, x)
        return y * y

    same_gradients(place, function, randn(5, 3))


@PLACES
def test_a_view_taken_before_the_write_has_the_writes_gradient(place: Place) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        early = y[1:4]
        y.mul_(x)
        return early * y[:3]

    same_gradients(place, function, randn(5, 3))


# -- hooks ---------------------------------------------------------------------------------------------------


@SPREAD
def test_tensor_hooks_see_and_change_gradients(place: Place) -> None:
    seen: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> None:
        handle = x.register_hook(lambda grad: grad * 2)
        y = x.sin()
        y.register_hook(seen.append)
        y.retain_grad()
        (y * y).sum().backward()
        handle.remove()
        seen.append(y.grad)  # type: ignore[arg-type]

    same_gradients(place, function, randn(5, 3))
    close(seen[2], seen[0])
    close(seen[3], seen[1])


@SPREAD
def test_post_accumulate_hooks_see_the_finished_gradient(place: Place) -> None:
    leaf = place.put(randn(5, 3), requires_grad=True)
    seen = []
    leaf.register_post_accumulate_grad_hook(lambda p: seen.append((p.grad.placements, p.grad.to_torch())))
    (leaf.redistribute(placements=[Replicate()] * len(place.mesh_shape)) * 3).sum().backward()
    assert seen[0][0] == leaf.placements
    equal(seen[0][1], torch.full((5, 3), 3.0))


@SPREAD
def test_module_hooks(place: Place) -> None:
    results = []
    for leaf in (randn(5, 4).requires_grad_(), place.put(randn(5, 4), requires_grad=True)):
        torch.manual_seed(0)
        module: nn.Module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
        if isinstance(leaf, dtorch.Tensor):
            module = dtorch.parallelize(module, place.mesh, {})
        seen: list[torch.Tensor] = []
        module[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        module[1].register_forward_hook(lambda m, args, out: out + args[0])
        module[1].register_full_backward_hook(lambda m, gin, gout, seen=seen: seen.extend((*gin, *gout)))
        module[2].register_full_backward_pre_hook(lambda m, gout: (gout[0] * 3,))
        module(leaf).sum().backward()
        results.append([*seen, leaf.grad, *[p.grad for p in module.parameters()]])
    assert len(results[0]) == len(results[1]) == 7
    for a, b in zip(*results, strict=True):
        close(b, a)


def test_saved_tensor_hooks_see_distributed_tensors() -> None:
    packed: list[Any] = []

    def function(x: torch.Tensor) -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t * 1, lambda t: t * 1):
            y = (x.sin() * x).sum()
        y.backward()

    same_gradients(S0_2, function, randn(5, 3))
    assert any(isinstance(t, dtorch.Tensor) for t in packed)


# -- recomputation, functions, modes -------------------------------------------------------------------------


@SPREAD
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_draws_the_same_dropout_again(place: Place, reentrant: bool) -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(torch.nn.functional.linear(x, w).tanh(), 0.4)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)
        y = checkpoint(block, x, w, use_reentrant=reentrant)
        return checkpoint(block, y, w, use_reentrant=reentrant) * y

    same_gradients(place, function, randn(5, 4), randn(4, 4, seed=1))


class Scaled(torch.autograd.Function):
    """x * w, with a gradient of w that is twice the true one, so that it is seen to be used."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, power: int) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.power = power
        return x * w**power

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, w = ctx.saved_tensors
        return grad * w**ctx.power, 2 * grad * x * w, None


class Doubled(torch.autograd.Function):
    """In place, times two."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


@PLACES
def test_functions_of_users(place: Place) -> None:
    same_gradients(
        place, lambda x, w: Doubled.apply(Scaled.apply(x, w, 2).sin()), randn(5, 3), randn(5, 3, seed=1)
    )


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")  # meant to be
def test_anomaly_mode_changes_nothing() -> None:
    with torch.autograd.detect_anomaly():
        same_gradients(S0_2, lambda x: x.sin() * x, randn(5, 3))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")
@pytest.mark.filterwarnings("ignore:Error detected in SqrtBackward0:UserWarning")  # what is looked for
def test_anomaly_mode_finds_nan() -> None:
    with torch.autograd.detect_anomaly():
        leaf = S0_2.put(torch.tensor([[0.0], [1.0], [-1.0]]), requires_grad=True)
        loss = leaf.sqrt().sum()
        with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values"):
            loss.backward()
