"""What training does beside optimizers: clipping, scaling, averages and copies of parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dtorch
from dtorch import Partial, Replicate, Shard
from dtorch.testing import assert_tensor_allclose as close
from dtorch.testing import assert_tensor_equal as equal
from tests.places import (
    R2,
    S0_2,
    SPREAD,
    Place,
    randn,
)


def models(place: Place) -> tuple[nn.Module, nn.Module, torch.Tensor, dtorch.Tensor]:
    """Two equal models, one of them on the mesh with weights laid out as `place` says; a batch."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 7), nn.GELU(), nn.Linear(7, 3))
    spread = dtorch.parallelize(copy.deepcopy(plain), place.mesh, {"*.weight": list(place.placements)})
    x = randn(5, 4)
    return plain, spread, x, place.put(x)


@SPREAD
@pytest.mark.parametrize("kind", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("foreach", [False, True])
def test_clip_grad_norm(place: Place, kind: float, foreach: bool) -> None:
    plain, spread, x, y = models(place)
    plain(x).pow(2).sum().backward()
    spread(y).pow(2).sum().backward()
    wanted = nn.utils.clip_grad_norm_(plain.parameters(), 0.1, norm_type=kind, foreach=foreach)
    found = nn.utils.clip_grad_norm_(spread.parameters(), 0.1, norm_type=kind, foreach=foreach)
    close(found, wanted)
    for a, b in zip(spread.parameters(), plain.parameters(), strict=True):
        close(a.grad, b.grad)
        assert a.grad.placements == a.placements  # type: ignore[union-attr]


def test_norms_of_pending_gradients_are_those_of_the_sum() -> None:
    leaf = dtorch.Tensor(torch.zeros(2), device_mesh=R2.mesh, requires_grad=True)
    parts = [torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1.0])]
    leaf.grad = dtorch.from_local(parts, R2.mesh, [Partial()])
    total = nn.utils.clip_grad_norm_([leaf], 1.0)
    close(total, torch.tensor(5.0))
    close(leaf.grad, torch.tensor([0.6, 0.8]))
    leaf.grad = dtorch.from_local(parts, R2.mesh, [Partial()])
    nn.utils.clip_grad_value_([leaf], 3.5)
    close(leaf.grad, torch.tensor([3.0, 3.5]))


@SPREAD
@pytest.mark.parametrize("overflow", [False, True])
def test_grad_scaler(place: Place, overflow: bool) -> None:
    after = []
    plain, spread, x, y = models(place)
    for model, batch in ((plain, x), (spread, y)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        loss = model(batch).pow(2).sum() * (float("inf") if overflow else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        after.append((scaler.get_scale(), list(model.parameters())))
    assert after[0][0] == after[1][0] == (8.0 if overflow else 16.0)
    for a, b in zip(after[1][1], after[0][1], strict=True):
        close(a, b)


@SPREAD
def test_moving_average_of_a_model(place: Place) -> None:
    plain, spread, x, y = models(place)
    for model, batch in ((plain, x), (spread, y)):
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(batch).pow(2).sum().backward()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.25)
        model.average = average
    for a, b in zip(spread.parameters(), plain.parameters(), strict=True):
        close(a, b)
    for a, b in zip(spread.average.parameters(), plain.average.parameters(), strict=True):
        assert not a.requires_grad
        close(a, b)


def test_a_copied_parameter_has_its_own_storage_gradient_and_hooks() -> None:
    leaf = nn.Parameter(S0_2.put(randn(5, 3)))
    (leaf * leaf).sum().backward()
    other = copy.deepcopy(leaf)
    assert isinstance(other, nn.Parameter)
    assert other.requires_grad
    assert other.placements == leaf.placements
    with torch.no_grad():
        leaf.zero_()
        leaf.grad.zero_()  # type: ignore[union-attr]
    equal(other, randn(5, 3))
    other.grad = None
    (other.redistribute(placements=[Replicate()]) * 3).sum().backward()
    assert other.grad.placements == (Shard(0),)
