"""What this machine was measured to do, as a value that prices read.

A calibration is a list of measured calls, grouped by torch operator: the features of the call and its rate.
The time of a call that was not measured is read off its neighbours:

    products, convolutions, attention     features (m, n, k), (channels, pixels, ...): the FLOP rate,
    weighted by
                                          the inverse squared distance of the logarithms of the features
    everything else                       feature bytes: time along a line in logarithms between the two sizes
                                          around it; below the smallest size its time, above the largest its
                                          rate

An operator that was not measured takes the times of `aten.add` at the same bytes. A call whose operands were
not touched lately pays for reading them from memory; how long ago is "lately" is the size of the cache.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from dtorch.errors import ModelError
from dtorch.perf.features import Shapes, features_of

VERSION = 1
GENERIC = "aten.add"
_NEIGHBOURS = 4


class Point(msgspec.Struct, frozen=True):
    """One measured call.

    Args:
        features: positive numbers that describe its size.
        work: FLOPs, or bytes where the operator has none.
        seconds: the median time of the call.
    """

    features: tuple[float, ...]
    work: float
    seconds: float


class Machine(msgspec.Struct, frozen=True):
    """What was measured: processor, threads, torch, when, and how much memory there is."""

    processor: str
    threads: int
    torch: str
    date: str
    memory_bytes: int = 0
    device: str = "cpu"


class Calibration(msgspec.Struct, frozen=True, dict=True):
    """All that was measured on one machine.

    Args:
        machine: which machine, with which torch.
        peaks: largest FLOP/s seen, by dtype ("float32").
        bandwidths: (bytes of the working set, bytes/s) of one read and one write.
        fixed_s, element_s: cost of one call, `a + b n` seconds on n float32 elements.
        points: measured calls by "operator dtype", e.g. "aten.mm float32".
        sent: (bytes moved, seconds) of a redistribution between virtual devices.
        cache_bytes: the working set up to which bandwidth is that of the caches.
        version: of this format.
    """

    machine: Machine
    peaks: dict[str, float]
    bandwidths: tuple[tuple[int, float], ...]
    fixed_s: float
    element_s: float
    points: dict[str, tuple[Point, ...]]
    sent: tuple[tuple[int, float], ...]
    cache_bytes: int
    version: int = VERSION

    def seconds(
        self, operator: str, dtype: str, shapes: Shapes, flops: int | None, nbytes: int, cold_bytes: int = 0
    ) -> float:
        """The time of one call.

        Args:
            operator: torch's name without overload, "aten.mm".
            dtype: of its first floating-point operand, "float32".
            shapes: of its tensor operands.
            flops: as priced; None where it has none.
            nbytes: bytes it touches.
            cold_bytes: those of them that are no longer in a cache.
        """
        points = self.points.get(f"{operator} {dtype}") or self.points.get(f"{operator} float32")
        features = features_of(operator, shapes)
        if not points or (features is None) != (len(points[0].features) == 1):
            points, features = self.points[f"{GENERIC} float32"], None
        if features is None:
            # A working set beyond the caches was measured cold already.
            cold_bytes = 0 if nbytes >= self.cache_bytes else cold_bytes
            return _along_line(points, float(max(nbytes, 1))) + self._cold(cold_bytes)
        least = min(point.seconds for point in points)
        return max((flops or 0) / _near(points, features), least) + self._cold(cold_bytes)

    def send_seconds(self, nbytes: int) -> float:
        """The time in which a redistribution moves so many bytes between devices of this machine."""
        return _along_line(
            tuple(Point((size,), size, time) for size, time in self.sent), float(max(nbytes, 1))
        )

    def bandwidth(self, nbytes: float) -> float:
        """Bytes/s for a working set of so many bytes."""
        points = tuple(Point((size,), size, size / speed) for size, speed in self.bandwidths)
        return nbytes / _along_line(points, float(nbytes))

    @cached_property
    def off_chip(self) -> float:
        """Bytes/s of the largest working set."""
        return max(self.bandwidths)[1]

    def _cold(self, nbytes: int) -> float:
        """What it takes longer to read from memory than from a cache."""
        best = max(speed for _, speed in self.bandwidths)
        return nbytes * (1 / self.off_chip - 1 / best)

    def save(self, path: str | Path) -> None:
        """Writes it as JSON; folders are made."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Reads what `save` wrote.

        Raises:
            ModelError: no such file, damaged, or of another version; the text says to calibrate again.
        """
        try:
            found = msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ModelError(f"calibration {path}: {error}; make one by `dtorch calibrate`") from error
        if found.version != VERSION:
            raise ModelError(
                f"calibration {path} is of version {found.version}, this dtorch reads {VERSION}; "
                "make one by `dtorch calibrate`"
            )
        return found


def _along_line(points: Sequence[Point], size: float) -> float:
    """Seconds at `size` on the broken line through the points, in logarithms."""
    ordered = sorted(points, key=lambda point: point.work)
    place = bisect_left([point.work for point in ordered], size)
    if place == 0:
        return ordered[0].seconds
    if place == len(ordered):
        return ordered[-1].seconds * size / ordered[-1].work
    low, high = ordered[place - 1], ordered[place]
    part = math.log(size / low.work) / math.log(high.work / low.work)
    return low.seconds * (high.seconds / low.seconds) ** part


def _near(points: Sequence[Point], features: Sequence[float]) -> float:
    """Work per second at `features`, from the nearest measured calls."""
    wanted = [math.log(max(value, 1.0)) for value in features]
    rated = []
    for point in points:
        distance = sum((math.log(max(a, 1.0)) - b) ** 2 for a, b in zip(point.features, wanted))
        rated.append((distance, math.log(point.work / point.seconds)))
    rated.sort()
    weights = [(1 / (distance + 1e-3), rate) for distance, rate in rated[:_NEIGHBOURS]]
    total = sum(weight for weight, _ in weights)
    return math.exp(sum(weight * rate for weight, rate in weights) / total)


def describe(value: Any) -> str:
    """A dtype as calibrations name it: "float32"."""
    return str(value).removeprefix("torch.")
