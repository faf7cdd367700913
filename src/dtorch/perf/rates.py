"""What regions are priced by, read off this machine's calibration."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from dtorch.errors import ModelError
from dtorch.perf.calibration import Calibration
from dtorch.perf.device import calibration_path
from dtorch.plan.fuse.rates import ASSUMED, Rates

_US = 1_000_000


def measured() -> Rates | None:
    """The rates of this machine, None where `dtorch calibrate` has not been run."""
    path = calibration_path()
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


@lru_cache(maxsize=1)
def _read(path: Path, changed: int) -> Rates | None:
    try:
        return rates_of(Calibration.load(path))
    except ModelError:  # an old or damaged file; prices say so
        return None


def rates_of(machine: Calibration) -> Rates:
    """The rates of a calibrated machine, as whole numbers; rho is on-chip over off-chip bandwidth.

    An element of an operator takes what the largest measured call within the caches took for one.
    """
    chip = max(speed for nbytes, speed in machine.bandwidths if nbytes <= machine.cache_bytes)
    per_element = {}
    for name, points in machine.points.items():
        operator, _, dtype = name.partition(" ")
        inside = [p for p in points if len(p.features) == 1 and p.work <= machine.cache_bytes]
        if dtype == "float32" and operator in ASSUMED.element_ps and inside:
            largest = max(inside, key=lambda p: p.work)
            count = largest.work / (12 if operator == "aten.div" else 8)  # bytes of reads and the write
            per_element[operator] = round(max(largest.seconds - machine.fixed_s, 0) * 1e12 / count)
    return Rates(
        call_ns=round(machine.fixed_s * 1e9),
        chip=max(1, round(chip / _US)),
        memory=max(1, round(machine.off_chip / _US)),
        cache_bytes=machine.cache_bytes,
        flops=max(1, round(machine.peaks.get("float32", ASSUMED.flops * _US) / _US)),
        element_ps={**ASSUMED.element_ps, **per_element},
        compiled_ps=ASSUMED.compiled_ps,
    )
