"""How long a priced program takes: the roofline of a device, and a schedule on two streams.

A kernel has channels, and its time is that of the slowest (F FLOPs, B bytes touched, on the device that has
most of each):

    compute         a + F / (e_c P)         P the peak of the dtype
    memory          a + B / (e_m W)         W the bandwidth of memory
    launch          k t                     k kernels, t between two launches
    communication   a + hops l + S / (e_l L)    S bytes received, L bandwidth of the slowest link crossed

So efficiency depends on size: with a fixed cost a, half the rate is reached at the size whose time is a. The
theoretical roof has e = 1 and no fixed costs. The achievable one has the fractions below.

Communication runs on a stream of its own, beside computation that does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dtorch.errors import DeviceError
from dtorch.mesh import DeviceMesh
from dtorch.perf.device import Device, Link
from dtorch.perf.ledger import Entry

MATMUL_FRACTION = 0.8
"""Of the peak, reached by large products, where no measured figure is known (`Device.achievable_matmul`): the
median of the A100, H100 and B200 figures."""
MEMORY_FRACTION = 0.9
"""Of the bandwidth of memory, reached by large copies. Assumed; data sheets give the rate of the pins."""
LINK_FRACTION = 0.8
"""Of a link, reached by large collectives. Assumed; protocol and chunking take the rest."""
KERNEL_S = 2e-6
"""Fixed cost of a kernel on the device. Assumed."""
LAUNCH_S = 3e-6
"""Between two launches by the host, the figure of the launch model in docs (published, article on graphs)."""
HOP_S = {"nvlink": 1e-6, "infinity-fabric": 1e-6}
"""Latency of one step of a ring. Assumed."""
NETWORK_HOP_S = 4e-6
"""The same across a network or PCI Express. Assumed."""

SOURCES = ("theoretical", "achievable")


@dataclass(frozen=True, slots=True)
class Roof:
    """What bounds kernels on a device.

    Attributes:
        device: whose peaks count.
        source: "theoretical", "achievable" or "calibrated".
        compute, memory, link: fractions of peak, bandwidth and link that large kernels reach.
        kernel_s: fixed cost of a kernel, in s.
        launch_s: between two launches, in s.
        latency: whether a step of a collective has one.
    """

    device: Device
    source: str
    compute: float = 1.0
    memory: float = 1.0
    link: float = 1.0
    kernel_s: float = 0.0
    launch_s: float = 0.0
    latency: bool = False


def roof_of(device: Device, source: str) -> Roof:
    """The roof of a device by its data sheet, "theoretical", or by what is reached of it, "achievable".

    Raises:
        DeviceError: neither of the two.
    """
    if source == "theoretical":
        return Roof(device, source)
    if source != "achievable":
        raise DeviceError(f"no roof {source!r}; there are {', '.join(SOURCES)}")
    known = device.achievable_matmul and device.bf16
    fraction = device.achievable_matmul / device.bf16 if known else MATMUL_FRACTION  # type: ignore[operator]
    return Roof(device, source, fraction, MEMORY_FRACTION, LINK_FRACTION, KERNEL_S, LAUNCH_S, True)


class Timed(NamedTuple):
    """When an entry runs.

    Attributes:
        time_s: how long.
        start_s: from when.
        stream: "compute" or "communicate".
        bound: "compute", "memory", "communication", "launch"; None for what takes no time.
    """

    time_s: float
    start_s: float
    stream: str
    bound: str | None


def channels(entry: Entry, roof: Roof, mesh: DeviceMesh) -> dict[str, float]:
    """Seconds of each channel of an entry; none for one that launches nothing."""
    facts, device = entry.facts, roof.device
    if entry.communication is not None:
        return {"communication": roof.kernel_s + _exchange(entry, roof, mesh)}
    if not facts.kernels:
        return {}
    found = {}
    if facts.flops_max_device:
        peak = device.peak(facts.dtype, entry.imprecise)
        found["compute"] = roof.kernel_s + facts.flops_max_device / (roof.compute * peak)
    found["memory"] = roof.kernel_s + facts.traffic_bytes_max_device / (roof.memory * device.bandwidth)
    if roof.launch_s:
        found["launch"] = facts.kernels * roof.launch_s
    return found


def _exchange(entry: Entry, roof: Roof, mesh: DeviceMesh) -> float:
    links = links_over(mesh, entry.comm_axes)
    slowest = min(links, key=lambda link: link.bandwidth)
    time = entry.facts.sent_bytes_max_device / (roof.link * slowest.bandwidth)
    if not roof.latency:
        return time
    size = 1
    for axis in entry.comm_axes or range(mesh.ndim):
        size *= mesh.shape[axis]
    rounds = 2 if "all_reduce" in entry.communication.kind else 1  # type: ignore[union-attr]
    hop = max(HOP_S.get(link.name, NETWORK_HOP_S) for link in links)
    return time + rounds * (size - 1) * hop


def links_over(mesh: DeviceMesh, axes: Sequence[int]) -> Sequence[Link]:
    """The links that an exchange over some axes of a described mesh crosses; over none, all."""
    described = mesh.description
    assert described is not None
    chosen = [described.links[axis] for axis in axes] if axes else list(described.links)
    return chosen or [described.device.link]


def schedule(entries: Iterable[Entry], roof: Roof, mesh: DeviceMesh) -> list[Timed]:
    """When each entry runs: in program order on its stream, and not before what it reads is there."""
    free = {"compute": 0.0, "communicate": 0.0}
    ready: dict[int, float] = {}
    found = []
    for entry in entries:
        each = channels(entry, roof, mesh)
        stream = "communicate" if entry.communication is not None else "compute"
        bound = max(each, key=lambda name: each[name]) if each else None
        time = each[bound] if bound is not None else 0.0
        touched = (*entry.reads, *entry.writes)
        start = max([free[stream], *(ready.get(number, 0.0) for number in touched)])
        if bound is not None:
            free[stream] = start + time
        for number in entry.writes:
            ready[number] = start + time
        found.append(Timed(time, start, stream, bound))
    return found


def end_of(timed: Iterable[Timed]) -> float:
    """When the last entry ends, in s."""
    return max((t.start_s + t.time_s for t in timed), default=0.0)


def check_source(source: str) -> str:
    """The name of a roof, if there is one of that name.

    Raises:
        DeviceError: there is none.
    """
    if source not in SOURCES:
        raise DeviceError(f"no roof {source!r}; there are {', '.join(SOURCES)}")
    return source
