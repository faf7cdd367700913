"""Measures this machine: `dtorch calibrate`. Under two minutes; what it finds is a `Calibration`."""

from __future__ import annotations

import datetime
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import dtorch.redistribute as redistribute
from dtorch.errors import DeviceError
from dtorch.layout import Layout
from dtorch.mesh import init_device_mesh
from dtorch.perf import measure, probes
from dtorch.perf.calibration import Calibration, Machine, Point, describe
from dtorch.placement import Replicate, Shard

SENT_SIZES = (4 * measure.KIB, 256 * measure.KIB, 4 * measure.MIB, 32 * measure.MIB)


def calibrate(
    dtypes: tuple[torch.dtype, ...] = (torch.float32,),
    at_least_s: float = 0.01,
    tick: Callable[[str], None] = lambda about: None,
    device: str = "cpu",
) -> Calibration:
    """Measures peaks, bandwidths, the cost of a call, operators against size, moves between virtual devices.

    Args:
        dtypes: for which operators are measured.
        at_least_s: seconds of calls behind each number, at least one call.
        tick: called with what is about to be measured, before each step; there are `steps(dtypes)`.
        device: "cpu" or "cuda".

    Raises:
        DeviceError: there is no such device here.
    """
    check_device(device)
    with torch.device(device):
        return _calibrate(dtypes, at_least_s, tick, device)


def check_device(device: str) -> None:
    """Whether a device, "cpu" or "cuda", is here to be measured.

    Raises:
        DeviceError: it is not.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("calibrate(): torch finds no CUDA device here")


def _calibrate(
    dtypes: tuple[torch.dtype, ...], at_least_s: float, tick: Callable[[str], None], device: str
) -> Calibration:
    points: dict[str, list[Point]] = defaultdict(list)
    for dtype in dtypes:
        for name, make in _GROUPS.items():
            tick(f"{name}, {describe(dtype)}")
            for probe in make(dtype):
                time = measure.seconds(probe.call, at_least_s, torch.get_num_threads())
                key = f"{probe.operator} {describe(dtype)}"
                points[key].append(Point(probe.features, probe.work, time))
    tick("bandwidth")
    bandwidths = tuple((size, measure.bandwidth(size, 1, at_least_s)) for size in measure.WORKING_SETS)
    tick("the cost of a call")
    cost = measure.call_cost(measure.call_points(at_least_s=at_least_s))
    tick("moves between devices")
    sent = tuple((size, _send_seconds(size, at_least_s, device)) for size in SENT_SIZES)
    return Calibration(
        machine=_machine(device),
        peaks={describe(dtype): _peak(points, describe(dtype)) for dtype in dtypes},
        bandwidths=bandwidths,
        fixed_s=cost.fixed_s,
        element_s=cost.element_s,
        points={key: tuple(values) for key, values in points.items()},
        sent=sent,
        cache_bytes=_cache_bytes(bandwidths),
    )


_GROUPS: dict[str, Callable[[torch.dtype], Iterator[probes.Probe]]] = {
    "products": probes.products,
    "convolutions": probes.convolutions,
    "attention": probes.attentions,
    "other operators": probes.passes,
}


def steps(dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> int:
    """How often `calibrate` ticks."""
    return len(dtypes) * len(_GROUPS) + 3


def _peak(points: dict[str, list[Point]], dtype: str) -> float:
    rates = [point.work / point.seconds for point in points[f"aten.mm {dtype}"]]
    return max(rates)


def _cache_bytes(bandwidths: tuple[tuple[int, float], ...]) -> int:
    """The largest working set whose bandwidth is nearer to the best one than to that of memory."""
    best, off_chip = max(speed for _, speed in bandwidths), bandwidths[-1][1]
    return max((size for size, speed in bandwidths if speed > (best * off_chip) ** 0.5), default=0)


def _send_seconds(nbytes: int, at_least_s: float, device: str) -> float:
    """An all-gather over two devices that moves so many bytes; on one GPU, over two that it simulates."""
    several = device == "cpu" or torch.cuda.device_count() > 1
    mesh = init_device_mesh(device, (2,) if several else (1,))
    shape = (2, max(nbytes // 8, 1))
    source = Layout.from_placements(mesh.shape, shape, (Shard(0),))
    target = Layout.from_placements(mesh.shape, shape, (Replicate(),))
    parts = redistribute.split(torch.zeros(shape), source, mesh)
    return measure.seconds(
        lambda: redistribute.execute(parts, source, target, mesh, mesh), at_least_s, torch.get_num_threads()
    )


def _machine(device: str) -> Machine:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    threads, version = torch.get_num_threads(), str(torch.__version__)
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        return Machine(card.name, threads, version, today, card.total_memory, device)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return Machine(_processor(), threads, version, today, memory)


def _processor() -> str:
    """The processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
