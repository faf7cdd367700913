"""How long a priced program takes: the roofline of a device, and a schedule on two streams.

A kernel has channels, and its time is that of the slowest (F FLOPs, B bytes touched, on the device that has
most of each):

    compute         a + F / (e_c P)         P the peak of the dtype
    memory          a + B / (e_m W)         W the bandwidth of memory
    launch          k t                     k kernels, t between two launches
    communication   a + hops l + S / (e_l L)    S bytes received, L bandwidth of the slowest link crossed

So efficiency depends on size: with a fixed cost a, half the rate is reached at the size whose time is a. The
theoretical roof has e = 1 and no fixed costs. The achievable one has the fractions below.

Of a calibrated machine the time of a call is read off the calls that were measured there (`calibration.py`).

Communication runs on a stream of its own, beside computation that does not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dtorch.errors import DeviceError
from dtorch.mesh import DeviceMesh
from dtorch.op.priced import WITHIN
from dtorch.perf.calibration import Calibration, describe
from dtorch.perf.device import CALIBRATED, Device, Link, calibration_path
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

SOURCES = ("theoretical", "achievable", "calibrated")


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
        calibration: what was measured on the machine, in whose place then nothing else counts.
    """

    device: Device
    source: str
    compute: float = 1.0
    memory: float = 1.0
    link: float = 1.0
    kernel_s: float = 0.0
    launch_s: float = 0.0
    latency: bool = False
    calibration: Calibration | None = None


def roof_of(device: Device, source: str) -> Roof:
    """The roof of a device by its data sheet, "theoretical", or by what is reached of it.

    What is reached was measured on a machine that is calibrated; of others it is a fraction, "achievable".

    Raises:
        DeviceError: none of these, or "calibrated" of another device than this machine.
    """
    if check_source(source) == "theoretical":
        return Roof(device, source)
    if device.name in CALIBRATED:
        return Roof(device, "calibrated", calibration=Calibration.load(calibration_path(device.name)))
    if source == "calibrated":
        raise DeviceError(
            f"calibrated, by `dtorch calibrate`, are {', '.join(CALIBRATED)}; {device.name} is described"
        )
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


def channels(entry: Entry, roof: Roof, mesh: DeviceMesh, cold: float = 0.0) -> dict[str, float]:
    """Seconds of each channel of an entry; none for one that launches nothing.

    A conversion only communicates; an operator that combines statistics, or fetches a halo, has all channels.

    Args:
        entry, roof, mesh: which call, on what.
        cold: the share of what it touches that is in no cache; only a calibrated roof knows of caches.
    """
    facts, device = entry.facts, roof.device
    if roof.calibration is not None:
        return _measured(entry, roof.calibration, cold)
    found: dict[str, float] = {}
    if entry.communication is not None:
        found["communication"] = roof.kernel_s + _exchange(entry, roof, mesh)
    if not facts.kernels or _only_sends(entry):
        return found
    if facts.flops_max_device:
        peak = device.peak(facts.dtype, entry.imprecise)
        found["compute"] = roof.kernel_s + facts.flops_max_device / (roof.compute * peak)
    found["memory"] = roof.kernel_s + facts.traffic_bytes_max_device / (roof.memory * device.bandwidth)
    if roof.launch_s:
        found["launch"] = facts.kernels * roof.launch_s
    return found


def _only_sends(entry: Entry) -> bool:
    return entry.communication is not None and entry.communication.kind not in WITHIN


def _measured(entry: Entry, machine: Calibration, cold: float) -> dict[str, float]:
    facts = entry.facts
    found: dict[str, float] = {}
    if entry.communication is not None:
        found["communication"] = machine.send_seconds(facts.sent_bytes_max_device)
    if not facts.kernels or _only_sends(entry):
        return found
    nbytes = facts.traffic_bytes_max_device
    time = machine.seconds(
        facts.torch_op.rpartition(".")[0] or facts.torch_op,
        describe(facts.dtype),
        [tensor.shape for tensor in facts.inputs],
        facts.flops_max_device,
        nbytes,
        int(cold * nbytes),
    )
    found["compute" if facts.flops_max_device else "memory"] = time
    found["launch"] = machine.fixed_s
    return found


class _Caches:
    """Which storages were touched within the last so many bytes, and so are still in a cache."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.clock = 0
        self.touched: dict[int, int] = {}

    def cold_share(self, entry: Entry) -> float:
        """The share of an entry's storages that are in no cache; from then on they are."""
        storages = {*entry.reads, *entry.writes}
        old = [s for s in storages if self.clock - self.touched.get(s, -self.nbytes) >= self.nbytes]
        self.clock += entry.facts.traffic_bytes_max_device
        self.touched.update(dict.fromkeys(storages, self.clock))
        return len(old) / len(storages) if storages else 0.0


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
    caches = _Caches(roof.calibration.cache_bytes if roof.calibration is not None else 0)
    found = []
    for entry in entries:
        each = channels(entry, roof, mesh, caches.cold_share(entry))
        stream = "communicate" if _only_sends(entry) else "compute"
        bound = max(each, key=lambda name: each[name]) if each else None
        sent = each.pop("communication", 0.0)  # what an operator itself sends is waited for
        time = sent + max(each.values(), default=0.0)
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
