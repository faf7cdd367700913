"""A long training loop keeps nothing: objects, bytes of tensors, plans and memory stay what they were.

DTORCH_CASES=34 pytest tests/plan/test_leaks.py -s      # 10,000 steps; prints what it counted
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

import dtorch
from dtorch import Replicate, Shard
from tests.support import cases

WARM = 50
STEPS = cases(300)
MAX_GROWTH = 8 * 2**20


class Count(NamedTuple):
    """What a process holds.

    Attributes:
        objects: that the garbage collector knows.
        tensors: their number.
        nbytes: of the storages behind them.
        plans: held, made so far, and sequences interpreted so far.
        rss: bytes of memory in use.
    """

    objects: int
    tensors: int
    nbytes: int
    plans: tuple[int, int, int]
    rss: int


def count() -> Count:
    """Count, after what is unreachable has gone."""
    gc.collect()
    objects = gc.get_objects()
    tensors = [t for t in objects if issubclass(type(t), torch.Tensor)]
    storages = {
        s.data_ptr(): s.nbytes() for t in tensors if type(t) is torch.Tensor for s in [t.untyped_storage()]
    }
    stats = dtorch.plan_stats()
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    return Count(
        len(objects), len(tensors), sum(storages.values()), (stats.plans, stats.made, stats.interpreted), rss
    )


def training() -> Callable[[], None]:
    """A step of a small model on a 2 x 2 mesh: dropout, AdamW, a schedule, and the loss looked at."""
    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Dropout(0.1), nn.Linear(10, 3))
    model = dtorch.parallelize(model, mesh, {"0.*": {"tp": Shard(0)}, "3.weight": {"tp": Shard(1)}})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    generator = torch.Generator().manual_seed(0)
    losses: list[float] = []

    def step() -> None:
        x = torch.randn(5, 6, generator=generator)
        y = torch.randint(3, (5,), generator=generator)
        batch = [dtorch.Tensor(t, mesh, [Shard(0), Replicate()]) for t in (x, y)]
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        losses[:-10] = []

    return step


def alone(module: str) -> str:
    """What a module's `measure` prints in a process of its own, where nothing else comes and goes."""
    root = Path(__file__).resolve().parents[2]
    code = f"from {module} import measure; measure()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_training_keeps_nothing() -> None:
    print(alone("tests.plan.test_leaks"))


def measure() -> None:
    """Train, and compare what is held after warming up with what is held at the end."""
    torch.set_num_threads(1)
    step = training()
    for _ in range(WARM):
        step()
    before = count()
    for _ in range(STEPS):
        step()
    after = count()
    print(f"\n{STEPS} steps\n{before}\n{after}\nRSS grew by {(after.rss - before.rss) / 2**20:.2f} MiB")
    assert after.plans == before.plans
    assert after.tensors == before.tensors
    assert after.nbytes == before.nbytes
    assert after.objects - before.objects <= 10  # the interpreter's own
    assert after.rss - before.rss <= MAX_GROWTH


def test_a_step_of_training_makes_no_new_plan_after_the_third() -> None:
    step = training()
    for _ in range(3):
        step()
    made = dtorch.plan_stats().made, dtorch.plan_stats().interpreted
    for _ in range(5):
        step()
    now = dtorch.plan_stats()
    assert (now.made, now.interpreted) == made
