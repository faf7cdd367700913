"""A calibration as a table within a hundred columns, and as a picture."""

from pathlib import Path

import pytest
from rich.console import Console

from dtorch.perf.calibration import Calibration, Machine, Point
from dtorch.report.machine import machine_table, save_machine_png

FOUND = Calibration(
    machine=Machine("a processor", 2, "2.13.0", "2026-01-01"),
    peaks={"float32": 1.5e11},
    bandwidths=((2**20, 100e9), (2**25, 20e9)),
    fixed_s=1e-6,
    element_s=1e-10,
    points={"aten.mm float32": (Point((1, 8, 8, 8), 1024, 1e-6),)},
    sent=((1000, 1e-6), (10_000, 1e-5)),
    cache_bytes=2**20,
)


def test_table() -> None:
    console = Console(width=100, record=True)
    console.print(machine_table(FOUND))
    text = console.export_text()
    assert "a processor, 2 threads" in text
    for value in ("150 GFLOP/s", "100 GB/s", "20 GB/s", "5.00", "1.00 us", "10,000", "1 GB/s"):
        assert value in text


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra report")
    path = save_machine_png(FOUND, tmp_path / "machine.png")
    assert path.read_bytes().startswith(b"\x89PNG")
