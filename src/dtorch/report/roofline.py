"""The roofline of a report: roofs of the dtypes in use, and alike operators as points below them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dtorch.report.views import Data, Entry

# dtype of an operand -> the names a device's table may give its peak, the first that is there counts.
_PEAK_NAMES = {
    "float32": ("float32", "fp32"),
    "float64": ("float64", "fp64"),
    "float16": ("float16", "fp16"),
    "bfloat16": ("bfloat16", "bf16"),
    "float8_e4m3fn": ("float8_e4m3fn", "fp8"),
    "float8_e5m2": ("float8_e5m2", "fp8"),
    "int8": ("int8",),
}


def peak_name(operator: Entry, peaks: Mapping[str, float | None]) -> str | None:
    """The name of the peak that an operator runs under: that of its first operand that has one."""
    for operand in (*operator["inputs"], *operator["outputs"]):
        dtype = operand["dtype"].removeprefix("torch.") if operand else ""
        for name in (*_PEAK_NAMES.get(dtype, (dtype,)), dtype):
            if peaks.get(name):
                return name
    return None


@dataclass(frozen=True)
class Roof:
    """The roof of one dtype: min(peak, intensity x bandwidth); the two meet at the ridge.

    Attributes:
        dtype: name of the peak; `peak` FLOP/s; `ridge` FLOPs per byte.
    """

    dtype: str
    peak: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """Intensity from which an operator is bound by arithmetic, FLOPs per byte."""
        return self.peak / self.bandwidth

    def at(self, intensity: float) -> float:
        """The greatest FLOP/s that an operator of this intensity can have."""
        return min(self.peak, intensity * self.bandwidth)


def roofs(data: Data) -> list[Roof]:
    """The roofs of the dtypes that operators with FLOPs use, the highest first; none without a device."""
    device = data["device"]
    if device is None:
        return []
    names = {peak_name(operator, device["peaks"]) for operator in data["operators"] if operator["flops"]}
    found = [Roof(name, device["peaks"][name], device["bandwidth"]) for name in names if name is not None]
    return sorted(found, key=lambda roof: (-roof.peak, roof.dtype))


@dataclass
class Point:
    """Alike operators in a roofline: the same kind, shapes, FLOPs, bytes and time.

    Attributes:
        intensity: FLOPs per byte; `rate`: predicted FLOP/s; `measured_rate`: FLOP/s, the best of them.
        dtype: name of its roof, None without one.
        indices: numbers of the operators; `time`: their predicted seconds together.
        above: whether the measured rate is above the roof, which says that roof or price is wrong.
    """

    intensity: float
    rate: float
    dtype: str | None
    bound: str | None
    indices: list[int]
    time: float = 0.0
    measured_rate: float | None = None
    above: bool = False


def points(data: Data) -> list[Point]:
    """One point per group of alike operators that have FLOPs, bytes and a time; the longest first."""
    tops = {roof.dtype: roof for roof in roofs(data)}
    peaks = data["device"]["peaks"] if data["device"] else {}
    found: dict[tuple[Any, ...], Point] = {}
    for operator in data["operators"]:
        flops, traffic = operator["flops_max_device"], operator["traffic_bytes_max_device"]
        time, measured = operator["time_s"], operator["measured_s"]
        if not (flops and traffic and time):
            continue
        dtype = peak_name(operator, peaks)
        key = (operator["describe"], operator["phase"], flops, traffic, time, operator["bound"], dtype)
        point = found.setdefault(key, Point(flops / traffic, flops / time, dtype, operator["bound"], []))
        point.indices.append(operator["index"])
        point.time += time
        if measured:
            point.measured_rate = max(point.measured_rate or 0.0, flops / measured)
            roof = tops.get(dtype) if dtype else None
            # A hair of rounding is no finding.
            point.above = roof is not None and point.measured_rate > roof.at(point.intensity) * (1 + 1e-9)
    return sorted(found.values(), key=lambda point: -point.time)


def utilisation(data: Data) -> float | None:
    """FLOPs of the busiest device over what its highest used roof allows in the predicted time."""
    tops, time = roofs(data), data["total"]["time_s"]
    if not tops or not time:
        return None
    return data["total"]["flops_max_device"] / time / tops[0].peak
