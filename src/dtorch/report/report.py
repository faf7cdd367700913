"""What a priced program costs: the numbers, as attributes and as one dict."""

from __future__ import annotations

import datetime
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dtorch.mesh import DeviceMesh
from dtorch.perf.ledger import Entry, TensorFacts
from dtorch.perf.memory import Memory
from dtorch.perf.roofline import Roof, Timed, end_of
from dtorch.report.figures import save_png
from dtorch.report.html import save_html
from dtorch.report.terminal import report_tables
from dtorch.report.trace import save_trace
from dtorch.version import __version__

VERSION = 1
MAX_HOLDERS = 200
"""What holds memory at the peak is listed up to this many lines in `to_dict()`."""


@dataclass(frozen=True, eq=False)
class Report:
    """The price of a program, as `dtorch.price` gives it. FLOPs, bytes and seconds, SI units.

    Attributes:
        title: what was priced.
        mesh: the described devices.
        roof: what bounds kernels on them; None where no device was named, and nothing has a time then.
        entries: one per call, in program order.
        timed: when each entry runs; empty without a roof.
        memory: bytes by category over time.
        date: when it was made, ISO.
        measured: seconds that entries took, by index, where they have been measured.
    """

    title: str
    mesh: DeviceMesh
    roof: Roof | None
    entries: tuple[Entry, ...]
    timed: tuple[Timed, ...]
    memory: Memory
    date: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    measured: Mapping[int, float] = field(default_factory=dict)

    # -- totals ---------------------------------------------------------------------------------------------

    @property
    def flops(self) -> int:
        """FLOPs of all devices together, each once: those of the global operators."""
        return sum(entry.facts.flops or 0 for entry in self.entries)

    @property
    def flops_max_device(self) -> int:
        """FLOPs of the device that does most."""
        return sum(entry.facts.flops_max_device or 0 for entry in self.entries)

    @property
    def recomputed_flops(self) -> int:
        """FLOPs that backward kernels of attention spend again on scores; no part of `flops`."""
        return sum(entry.facts.recomputed_flops for entry in self.entries)

    @property
    def bandwidth_bytes(self) -> int:
        """Bytes of the operands of what memory bounds."""
        return sum(entry.facts.bandwidth_bytes or 0 for entry in self.entries)

    @property
    def traffic_bytes(self) -> int:
        """Bytes really touched, over the global operands."""
        return sum(entry.facts.traffic_bytes for entry in self.entries)

    @property
    def communication_bytes(self) -> int:
        """Bytes received from other devices, by all together."""
        return sum(entry.facts.sent_bytes for entry in self.entries)

    @property
    def communication_bytes_max_device(self) -> int:
        """The same, for the device that receives most."""
        return sum(entry.facts.sent_bytes_max_device for entry in self.entries)

    @property
    def time(self) -> float | None:
        """Predicted seconds from the first call to the end of the last; None without a device."""
        return end_of(self.timed) if self.roof is not None else None

    @property
    def peak_memory(self) -> int:
        """Largest number of bytes alive at once on the device that holds most."""
        return self.memory.peak

    @property
    def kernels(self) -> int:
        """Kernels that each device launches."""
        return sum(entry.facts.kernels for entry in self.entries)

    @property
    def operators(self) -> tuple[Entry, ...]:
        """One entry per call."""
        return self.entries

    @property
    def unknown(self) -> dict[str, int]:
        """Operators whose price is unknown, by description, and how often each is called."""
        found: dict[str, int] = {}
        for entry in self.entries:
            if not entry.facts.known:
                found[entry.facts.describe] = found.get(entry.facts.describe, 0) + 1
        return found

    # -- groups ---------------------------------------------------------------------------------------------

    def by_module(self) -> dict[str, dict[str, float]]:
        """Sums for each module, what is called inside it included; "" is everything.

        Returns:
            Path of the module -> flops, flops_max_device, traffic_bytes, communication_bytes, kernels, and
            time_s, the seconds of its entries added up.
        """
        return self._sums(lambda entry: _prefixes(entry.module))

    def by_phase(self) -> dict[str, dict[str, float]]:
        """The same sums for forward, backward, optimizer and other, those that occur."""
        return self._sums(lambda entry: (entry.phase,))

    def _sums(self, names_of: Any) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for number, entry in enumerate(self.entries):
            facts = entry.facts
            values = {
                "flops": facts.flops or 0,
                "flops_max_device": facts.flops_max_device or 0,
                "traffic_bytes": facts.traffic_bytes,
                "communication_bytes": facts.sent_bytes,
                "kernels": facts.kernels,
                "time_s": self.timed[number].time_s if self.timed else 0.0,
            }
            for name in names_of(entry):
                sums = found.setdefault(name, dict.fromkeys(values, 0))
                for key, value in values.items():
                    sums[key] += value
        return found

    def diff(self, other: Report) -> dict[str, dict[str, Any]]:
        """What differs from another report.

        Returns:
            "total", "kinds" and "modules": name -> {"this", "other", "difference"}; of totals each figure, of
            kinds the number of calls, of modules the seconds, or FLOPs where nothing has a time.
        """
        mine, theirs = self.to_dict()["total"], other.to_dict()["total"]
        figure = "time_s" if self.roof is not None and other.roof is not None else "flops"
        return {
            "total": _differences(mine, theirs),
            "kinds": _differences(self._kinds(), other._kinds()),
            "modules": _differences(
                {name: sums[figure] for name, sums in self.by_module().items()},
                {name: sums[figure] for name, sums in other.by_module().items()},
            ),
        }

    def _kinds(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in self.entries:
            found[entry.facts.kind] = found.get(entry.facts.kind, 0) + 1
        return found

    # -- to look at -----------------------------------------------------------------------------------------

    def __rich__(self) -> Any:
        """The tables of the report, for a terminal of 100 columns or more."""
        return report_tables(self.to_dict())

    def __str__(self) -> str:
        text = io.StringIO()
        Console(width=100, file=text, color_system=None).print(self)
        return text.getvalue().rstrip("\n")

    def save_html(self, path: str | Path) -> None:
        """Write the report as one page for a browser; it asks for no network.

        Raises:
            DtorchError: plotly is not installed (extra `report`).
        """
        save_html(self.to_dict(), path)

    def save_png(self, folder: str | Path) -> list[Path]:
        """Write roofline.png, bytes.png, memory.png and modules.png; returns those that were written.

        Raises:
            DtorchError: matplotlib is not installed (extra `report`).
        """
        return save_png(self.to_dict(), folder)

    def save_trace(self, path: str | Path) -> None:
        """Write the timelines, predicted and where there are any measured ones, for Perfetto or Chrome."""
        save_trace(self.to_dict(), path)

    # -- as a dict ------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain values that JSON can hold; the schema is versioned."""
        return {
            "version": VERSION,
            "title": self.title,
            "dtorch": __version__,
            "torch": torch.__version__,
            "date": self.date,
            "device": _device(self.roof),
            "mesh": _mesh(self.mesh),
            "total": {
                "flops": self.flops,
                "flops_max_device": self.flops_max_device,
                "recomputed_flops": self.recomputed_flops,
                "bandwidth_bytes": self.bandwidth_bytes,
                "traffic_bytes": self.traffic_bytes,
                "communication_bytes": self.communication_bytes,
                "communication_bytes_max_device": self.communication_bytes_max_device,
                "time_s": self.time,
                "peak_memory_bytes": self.peak_memory,
                "kernels": self.kernels,
                "unknown": sum(self.unknown.values()),
            },
            "operators": [self._operator(number) for number in range(len(self.entries))],
            "memory": [
                {
                    "index": index,
                    "t_s": self.timed[index].start_s if self.timed else None,
                    "bytes": dict(step),
                }
                for index, step in enumerate(self.memory.steps)
            ],
            "memory_peak_holders": [
                {
                    "what": holder.what,
                    "category": holder.category,
                    "module": holder.module,
                    "bytes": holder.nbytes,
                }
                for holder in self.memory.holders[:MAX_HOLDERS]
            ],
            "unknown": [{"describe": name, "count": count} for name, count in self.unknown.items()],
        }

    def _peak(self, entry: Entry) -> str | None:
        """Which of the device's peaks bounds the arithmetic of an entry; None without either."""
        if self.roof is None or not entry.facts.flops_max_device:
            return None
        return self.roof.device.peak_name(entry.facts.dtype, entry.imprecise)

    def _operator(self, number: int) -> dict[str, Any]:
        entry = self.entries[number]
        facts, sent = entry.facts, entry.communication
        timed = self.timed[number] if self.timed else Timed(0.0, 0.0, "compute", None)
        has_time = self.roof is not None
        return {
            "index": entry.index,
            "kind": facts.kind,
            "torch_op": facts.torch_op,
            "describe": facts.describe,
            "module": entry.module,
            "phase": entry.phase,
            "source": entry.source,
            "inputs": list(map(_tensor, facts.inputs)),
            "outputs": list(map(_tensor, facts.outputs)),
            "flops": facts.flops,
            "flops_max_device": facts.flops_max_device,
            "traffic_bytes": facts.traffic_bytes,
            "traffic_bytes_max_device": facts.traffic_bytes_max_device,
            "bandwidth_bytes": facts.bandwidth_bytes,
            "sent_bytes": facts.sent_bytes,
            "sent_bytes_max_device": facts.sent_bytes_max_device,
            "communication": None
            if sent is None
            else {"kind": sent.kind, "axes": sent.axes, "implicit": sent.implicit, "cause": sent.cause},
            "known": facts.known,
            "peak": self._peak(entry),
            "bound": timed.bound,
            "time_s": timed.time_s if has_time else None,
            "start_s": timed.start_s if has_time else None,
            "stream": timed.stream,
            "measured_s": self.measured.get(number),
            "kernels": facts.kernels,
        }


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name in {**mine, **theirs}:
        one, two = mine.get(name), theirs.get(name)
        if one != two:
            difference = None if one is None or two is None else one - two
            found[name] = {"this": one, "other": two, "difference": difference}
    return found


def _prefixes(path: str) -> list[str]:
    """The path, every path above it, and ""."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts) + 1)]


def _tensor(facts: TensorFacts) -> dict[str, Any]:
    return {"shape": list(facts.shape), "dtype": facts.dtype, "placements": list(facts.placements)}


def _device(roof: Roof | None) -> dict[str, Any] | None:
    if roof is None:
        return None
    device = roof.device
    return {
        "name": device.name,
        "peaks": {name: roof.compute * value for name, value in device.peaks.items()},
        "bandwidth": roof.memory * device.bandwidth,
        "capacity": device.capacity,
        "link": roof.link * device.link.bandwidth,
        "source": roof.source,
    }


def _mesh(mesh: DeviceMesh) -> dict[str, Any]:
    description = mesh.description
    return {
        "shape": list(mesh.shape),
        "dim_names": list(mesh.dim_names or map(str, range(mesh.ndim))),
        "axis_links": [link.name for link in description.links] if description is not None else [],
    }
