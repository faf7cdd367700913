"""Rates of regions, read off a calibration."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtorch.perf import rates
from dtorch.perf.calibration import Calibration, Machine, Point
from dtorch.plan.fuse.rates import ASSUMED

MACHINE = Calibration(
    machine=Machine("a processor", 1, "2.13", "2026-01-01"),
    peaks={},
    bandwidths=((2**20, 4e10), (2**24, 3e10), (2**30, 1e10)),
    fixed_s=2e-6,
    element_s=1e-10,
    points={"aten.exp float32": (Point((8000.0,), 8000.0, 3e-6), Point((8e6,), 8e6, 1.002e-3))},
    sent=(),
    cache_bytes=2**24,
)


def test_whole_numbers_of_a_calibration() -> None:
    found = rates.rates_of(MACHINE)
    assert (found.call_ns, found.chip, found.memory, found.cache_bytes) == (2000, 40_000, 10_000, 2**24)
    assert found.rho == 4.0
    assert found.element_ps["aten.exp"] == 1000
    assert found.element_ps["aten.tanh"] == ASSUMED.element_ps["aten.tanh"]


def test_read_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "this.json"
    monkeypatch.setattr(rates, "calibration_path", lambda: path)
    assert rates.measured() is None
    MACHINE.save(path)
    assert rates.measured() == rates.rates_of(MACHINE)
    path.write_text("{}")
    rates._read.cache_clear()
    assert rates.measured() is None
