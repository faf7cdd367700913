"""Calls without the outputs that nobody asks for (a backward's `output_mask`) are recorded and replayed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dtorch
from dtorch import Placement, Replicate, Shard
from dtorch.replay import capture

MESH = dtorch.init_device_mesh("cpu", (2,))
CUTS = {"whole": Replicate(), "batch": Shard(0), "height": Shard(2)}


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 2, 1, bias=False),
    )


def norm_first(norm: nn.Module) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(copy.deepcopy(norm), nn.Conv2d(3, 2, 3, bias=False))

    return make


MODELS = {
    "conv": conv_net,
    "batch norm": norm_first(nn.BatchNorm2d(3)),
    "batch norm, eval": norm_first(nn.BatchNorm2d(3).eval()),
    "layer norm": norm_first(nn.LayerNorm([3, 8, 6])),
    "group norm": norm_first(nn.GroupNorm(3, 3)),
    "instance norm": norm_first(nn.InstanceNorm2d(3, affine=True)),
}


def step_of(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.relu(model(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.recorded
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_whose_input_needs_no_gradient(name: str, cut: str) -> None:
    plain = MODELS[name]()
    recorded, replayed = (dtorch.parallelize(copy.deepcopy(plain), MESH, {}) for _ in range(2))
    expected, again = step_of(plain), step_of(recorded)
    captured = capture(step_of(replayed))
    draw = torch.Generator().manual_seed(1)
    for _ in range(8):
        x = torch.randn(4, 3, 8, 6, generator=draw)
        mine = [dtorch.Tensor(x, device_mesh=MESH, placements=[CUTS[cut]]) for _ in range(2)]
        loss = captured(mine[0])
        assert loss.item() == again(mine[1]).item()
        torch.testing.assert_close(loss.to_torch(), expected(x))
    for one, other, right in zip(
        replayed.parameters(), recorded.parameters(), plain.parameters(), strict=True
    ):
        assert torch.equal(one.to_torch(), other.to_torch())
        torch.testing.assert_close(one.detach().to_torch(), right.detach(), rtol=1e-4, atol=1e-5)
    assert captured.stats().replays > 0


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1), Shard(2)], ids=str)
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_what_needs_no_gradient(placement: Placement, channels: int, training: bool) -> None:
    """Channels cut over more devices than there are leave one without any."""
    plain = nn.BatchNorm1d(channels).train(training)
    ours = dtorch.parallelize(copy.deepcopy(plain), MESH, {})
    x = torch.randn(2, channels, 8, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        plain(x).square().sum().backward()
        ours(dtorch.Tensor(x, device_mesh=MESH, placements=[placement])).square().sum().backward()
    for mine, right in zip(ours.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.to_torch(), right.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mask", [[False, True, True], [True, False, True], [False, True, False]], ids=str)
def test_absent_gradients_of_a_convolution_are_none(mask: list[bool]) -> None:
    draw = torch.Generator().manual_seed(0)
    given = [torch.randn(size, generator=draw) for size in ((4, 2, 6, 6), (4, 3, 6, 6), (2, 3, 3, 3))]
    rest = ([2], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
    backward = torch.ops.aten.convolution_backward.default
    right = backward(*given, *rest)
    ours = [dtorch.Tensor(t, device_mesh=MESH, placements=[Replicate()]) for t in given]
    for _ in range(3):
        found = backward(*ours, *rest)
        assert [t is None for t in found] == [not asked for asked in mask]
        for mine, expected in zip(found, right, strict=True):
            assert mine is None or torch.equal(mine.to_torch(), expected)
