"""A long loop of replays keeps nothing: objects, bytes of tensors and memory stay what they were.

DTORCH_CASES=34 pytest tests/replay/test_leaks.py -s      # 10,000 replays; prints what it counted
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import dtorch
from dtorch import Replicate, Shard
from dtorch.replay import Capture, capture
from tests.plan.test_leaks import MAX_GROWTH, alone, count
from tests.support import cases

WARM = 50
REPLAYS = cases(300)

pytestmark = pytest.mark.recorded


def training() -> Capture:
    """A captured step of a small model on a 2 x 2 mesh: AdamW, results, gradients, a number that changes."""
    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 3))
    model = dtorch.parallelize(model, mesh, {"0.*": {"tp": Shard(0)}, "2.weight": {"tp": Shard(1)}})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def step(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        made = model(x * scale + torch.arange(6) / 6)
        loss = made.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), made.detach()[:, :2]

    return capture(step)


def given(number: int) -> tuple[torch.Tensor, float]:
    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    draw = torch.Generator().manual_seed(number % 7)
    return dtorch.Tensor(torch.randn(5, 6, generator=draw), mesh, [Shard(0), Replicate()]), 1.0 + number % 3


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_replays_keep_nothing() -> None:
    print(alone("tests.replay.test_leaks"))


def measure() -> None:
    """Replay, and compare what is held after warming up with what is held at the end."""
    torch.set_num_threads(1)
    step = training()
    for number in range(WARM):
        step(*given(number))
    replays, before = step.stats().replays, count()
    for number in range(REPLAYS):
        step(*given(number))[0].item()
    after = count()
    print(f"\n{REPLAYS} replays\n{before}\n{after}\nRSS grew by {(after.rss - before.rss) / 2**20:.2f} MiB")
    assert step.stats().replays == replays + REPLAYS
    assert after.plans == before.plans
    assert after.tensors == before.tensors
    assert after.nbytes == before.nbytes
    assert after.objects - before.objects <= 10  # the interpreter's own
    assert after.rss - before.rss <= MAX_GROWTH
