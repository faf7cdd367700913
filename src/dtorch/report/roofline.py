"""The roofline of a report: roofs, and alike operators as points below them.

Operators with FLOPs stand by their intensity below the peak of their dtype and the bandwidth of memory; all
others, in a figure of their own, by the bytes they move or receive below the bandwidth of memory or link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dtorch.report.views import Data, Entry


@dataclass(frozen=True)
class Roof:
    """The greatest rate at x: min(peak, x times slope); the two meet at the ridge.

    Attributes:
        name: of the dtype, or "memory" or "link".
        peak: FLOP/s, or bytes/s.
        slope: bytes/s where x is an intensity, FLOPs per byte; None for a flat roof.
    """

    name: str
    peak: float
    slope: float | None = None

    @property
    def ridge(self) -> float | None:
        """Intensity from which an operator is bound by arithmetic, FLOPs per byte; None for a flat roof."""
        return None if self.slope is None else self.peak / self.slope

    def at(self, x: float) -> float:
        """The greatest rate at x."""
        return self.peak if self.slope is None else min(self.peak, x * self.slope)


def roofs(data: Data) -> list[Roof]:
    """The roofs of the dtypes that operators with FLOPs use, the highest first; none without a device."""
    device = data["device"]
    if device is None:
        return []
    names = {operator["peak"] for operator in data["operators"] if operator["flops_max_device"]} - {None}
    found = [Roof(name, device["peaks"][name], device["bandwidth"]) for name in names]
    return sorted(found, key=lambda roof: (-roof.peak, roof.name))


def byte_roofs(data: Data) -> list[Roof]:
    """The flat roofs of memory and, where devices communicate, of the link between them."""
    device = data["device"]
    if device is None:
        return []
    found = [Roof("memory", device["bandwidth"])]
    if device["link"] and any(operator["communication"] for operator in data["operators"]):
        found.append(Roof("link", device["link"]))
    return found


@dataclass
class Point:
    """Alike operators: the same kind, shapes, FLOPs, bytes and time.

    Attributes:
        x: FLOPs per byte, or bytes.
        rate: predicted FLOP/s or bytes/s; `measured_rate`: the best of those measured.
        roof: name of its roof, None without one.
        indices: numbers of the operators; `time`: their predicted seconds together.
        above: whether the measured rate is above the roof, which says that roof or price is wrong.
    """

    x: float
    rate: float
    roof: str | None
    bound: str | None
    indices: list[int]
    time: float = 0.0
    measured_rate: float | None = None
    above: bool = False


# Of an operator: x, what its rate counts, the name of its roof; None if it has no place in a figure.
_Placed = tuple[float, float, str | None] | None


def points(data: Data) -> list[Point]:
    """The operators that have FLOPs, bytes and a time, by intensity; the longest first."""
    return _points(data["operators"], roofs(data), _by_intensity)


def moves(data: Data) -> list[Point]:
    """The operators that have bytes and a time, and no FLOPs, by bytes; the longest first."""
    return _points(data["operators"], byte_roofs(data), _by_bytes)


def _by_intensity(operator: Entry) -> _Placed:
    flops, traffic = operator["flops_max_device"], operator["traffic_bytes_max_device"]
    return (flops / traffic, flops, operator["peak"]) if flops and traffic else None


def _by_bytes(operator: Entry) -> _Placed:
    if _by_intensity(operator) is not None:
        return None
    # An operator may move bytes of its own and send a few: what it waits for counts.
    sends = operator["bound"] == "communication"
    size = operator["sent_bytes_max_device" if sends else "traffic_bytes_max_device"]
    return (size, size, "link" if sends else "memory") if size else None


def _points(
    operators: Iterable[Entry], tops: Iterable[Roof], placed: Callable[[Entry], _Placed]
) -> list[Point]:
    by_name = {roof.name: roof for roof in tops}
    found: dict[tuple[Any, ...], Point] = {}
    for operator in operators:
        place, time, measured = placed(operator), operator["time_s"], operator["measured_s"]
        if place is None or not time:
            continue
        x, amount, name = place
        key = (operator["describe"], operator["phase"], place, time, operator["bound"])
        point = found.setdefault(key, Point(x, amount / time, name, operator["bound"], []))
        point.indices.append(operator["index"])
        point.time += time
        if measured:
            point.measured_rate = max(point.measured_rate or 0.0, amount / measured)
            roof = by_name.get(name or "")
            # A hair of rounding is no finding.
            point.above = roof is not None and point.measured_rate > roof.at(x) * (1 + 1e-9)
    return sorted(found.values(), key=lambda point: -point.time)


def utilisation(data: Data) -> float | None:
    """FLOPs of the busiest device over what its highest used roof allows in the predicted time."""
    tops, time = roofs(data), data["total"]["time_s"]
    if not tops or not time:
        return None
    return data["total"]["flops_max_device"] / time / tops[0].peak
