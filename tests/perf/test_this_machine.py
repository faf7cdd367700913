"""Prices on the machine that was calibrated: its times are those that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dtorch.errors import DeviceError
from dtorch.perf.calibration import Calibration, Machine, Point
from dtorch.perf.device import THIS_MACHINE, devices, find_device
from dtorch.perf.roofline import roof_of
from dtorch.report.price import price

MIB = 1024**2
MEASURED = Calibration(
    machine=Machine("a processor", 1, "2.13.0", "2026-01-01", memory_bytes=2**33),
    peaks={"float32": 1e11},
    bandwidths=((1 * MIB, 100e9), (8 * MIB, 100e9), (32 * MIB, 20e9)),
    fixed_s=1e-6,
    element_s=1e-10,
    points={
        "aten.mm float32": (Point((1, 64, 64, 64), 2 * 64**3, 3e-3),),
        "aten.relu float32": (Point((64.0,), 64, 2e-6), Point((32768.0,), 32768, 5e-3)),
        "aten.add float32": (Point((64.0,), 64, 1e-6), Point((32768.0,), 32768, 1e-3)),
    },
    sent=((1000, 1e-5), (1_000_000, 1e-3)),
    cache_bytes=8 * MIB,
)


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    MEASURED.save(tmp_path / "dtorch" / "this-machine.json")


@pytest.mark.usefixtures("calibrated")
def test_this_machine_is_a_device() -> None:
    device = find_device(THIS_MACHINE)
    assert (device.fp32, device.bandwidth, device.capacity) == (1e11, 20e9, 2**33)
    assert "a processor" in device.source
    assert roof_of(device, "achievable").source == "calibrated"
    assert roof_of(device, "theoretical").calibration is None


@pytest.mark.usefixtures("calibrated")
def test_times_are_those_measured() -> None:
    report = price(lambda: (torch.empty(64, 64) @ torch.empty(64, 64)).relu(), device=THIS_MACHINE)
    times = {
        entry.facts.kind: timed.time_s for entry, timed in zip(report.entries, report.timed, strict=True)
    }
    # Both factors are read from memory, and what the product wrote is still in the caches.
    cold = 2 * 4 * 64**2 * (1 / 20e9 - 1 / 100e9)
    assert times["Matmul"] == pytest.approx(3e-3, abs=2 * cold)
    assert times["ReLU"] == pytest.approx(5e-3, abs=cold)
    assert report.to_dict()["device"]["source"] == "calibrated"


def test_without_a_calibration_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert THIS_MACHINE not in devices()
    with pytest.raises(
        DeviceError, match=f"{THIS_MACHINE} has not been measured yet: run `dtorch calibrate`"
    ):
        find_device(THIS_MACHINE)
    with pytest.raises(DeviceError, match="dtorch calibrate"):
        roof_of(find_device("h100-sxm"), "calibrated")
