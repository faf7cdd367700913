"""Peak memory, ours beside torch eager: each in a process of its own, what its memory grows by at most.

The kernel counts resident pages, which sees whatever holds memory: values, parts, copies on the way. Before
counting, each side runs its work once on a few bytes, so that imports and code are not counted. glibc is told
to give blocks back at once, or what is freed would count as held.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.harness import Measure, Row, ran
from benchmarks.machine import peak_bytes

ROOT = Path(__file__).parent.parent
LINKS = 24
CHAIN_BYTES, LAYER_BYTES, NUM_LAYERS = 32 * 2**20, 2 * 2**20, 32
SMALL = 1024


def rows() -> Iterator[Row]:
    yield Row(
        name=f"peak memory, chain of {LINKS} adds, 1 device",
        against="torch eager",
        budget=1.05,
        ours=_in_a_process("chain", "ours"),
        theirs=_in_a_process("chain", "theirs"),
        unit="B",
        repeats=3,
        warmups=0,
    )
    yield Row(
        name="peak memory, training with replicated parameters, 4 virtual devices",
        against="torch eager",
        budget=1.1,
        ours=_in_a_process("training", "ours"),
        theirs=_in_a_process("training", "theirs"),
        unit="B",
        repeats=3,
        warmups=0,
    )


def chain(side: str, scale: int) -> None:
    """h <- h + x, over and over."""
    import dtorch

    x = torch.full((CHAIN_BYTES // 4 // scale,), 1.0)
    if side == "ours":
        x = dtorch.Tensor(x, device_mesh=dtorch.DeviceMesh("cpu", [0]))
    with torch.no_grad():
        h = x
        for _ in range(LINKS):
            h = h + x
        ran(h)


def training(side: str, scale: int) -> None:
    """Two steps of SGD on square linear layers, the batch cut over the devices.

    Each layer's gradient is an addend on every device until it is reduced, so the layers are many.
    """
    import dtorch
    from dtorch import Shard

    size = int((LAYER_BYTES // 4 // scale) ** 0.5)
    model: torch.nn.Module = torch.nn.Sequential(
        *(torch.nn.Linear(size, size, bias=False) for _ in range(NUM_LAYERS))
    )
    x = torch.randn(32, size)
    if side == "ours":
        mesh = dtorch.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        model = dtorch.parallelize(model, mesh, {})
        x = dtorch.Tensor(x, device_mesh=mesh, placements=[Shard(0)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        ran(next(model.parameters()))


def _in_a_process(work: str, side: str) -> Measure:
    code = f"from benchmarks import bench_memory as b; print(b.growth(b.{work}, {side!r}))"
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])

    def measure() -> float:
        command = [sys.executable, "-c", code]
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return float(printed.stdout)

    return measure


def growth(work: Callable[[str, int], None], side: str) -> int:
    """Bytes by which the peak of this process grows while it does the work."""
    torch.set_num_threads(1)
    for _ in range(3):  # for ours once at once, once interpreted, once by a plan
        work(side, SMALL)
    before = peak_bytes()
    work(side, 1)
    return peak_bytes() - before
