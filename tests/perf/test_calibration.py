"""Calibration: how times are read off measured points, how it is kept, that this machine can be measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dtorch.errors import ModelError
from dtorch.perf import measure, probes
from dtorch.perf.calibrate import calibrate, steps
from dtorch.perf.calibration import Calibration, Machine, Point
from dtorch.perf.features import features_of

MIB = 1024**2
GIVEN = Calibration(
    machine=Machine("a processor", 1, "2.13.0", "2026-01-01"),
    peaks={"float32": 1e11},
    bandwidths=((1 * MIB, 100e9), (8 * MIB, 100e9), (32 * MIB, 20e9)),
    fixed_s=1e-6,
    element_s=1e-10,
    points={
        "aten.mm float32": (
            Point((1, 100, 100, 100), 2e6, 2e-5),
            Point((1, 1000, 1000, 1000), 2e9, 2e-2),
            Point((1, 1, 1000, 1000), 2e6, 2e-4),
        ),
        "aten.exp float32": (Point((100.0,), 100, 2e-6), Point((10_000.0,), 10_000, 2e-5)),
        "aten.add float32": (Point((100.0,), 100, 2e-6), Point((1e6,), 1e6, 1e-4)),
    },
    sent=((1000, 1e-5), (1_000_000, 1e-3)),
    cache_bytes=8_000_000,
)


def test_a_measured_product_takes_what_was_measured() -> None:
    time = GIVEN.seconds("aten.mm", "float32", [(1000, 1000), (1000, 1000)], 2 * 10**9, 12 * 10**6)
    assert time == pytest.approx(2e-2, rel=0.01)


def test_a_product_of_one_row_is_no_square() -> None:
    row = GIVEN.seconds("aten.mm", "float32", [(1, 900), (900, 1100)], 2 * 900 * 1100, 4 * 900 * 1100)
    assert row == pytest.approx(2e-4, rel=0.2)


@pytest.mark.parametrize(
    ("nbytes", "seconds"), {10: 2e-6, 100: 2e-6, 1000: 6.32e-6, 10_000: 2e-5, 10**6: 2e-3}.items()
)
def test_others_go_by_bytes(nbytes: int, seconds: float) -> None:
    assert GIVEN.seconds("aten.exp", "float32", [(1,)], None, nbytes) == pytest.approx(seconds, rel=1e-2)


def test_what_was_not_measured_takes_the_time_of_an_addition() -> None:
    assert GIVEN.seconds("aten.erfinv", "float32", [(1,)], None, 10**6) == pytest.approx(1e-4)
    assert GIVEN.seconds("aten.exp", "bfloat16", [(1,)], None, 10_000) == pytest.approx(2e-5)
    assert GIVEN.seconds(
        "aten.convolution", "float32", [(1, 3, 8, 8), (4, 3, 3, 3)], 10, 10**6
    ) == pytest.approx(1e-4)


def test_bytes_that_left_the_cache_are_read_from_memory() -> None:
    hot = GIVEN.seconds("aten.add", "float32", [(1,)], None, MIB)
    cold = GIVEN.seconds("aten.add", "float32", [(1,)], None, MIB, cold_bytes=MIB)
    assert cold - hot == pytest.approx(MIB / 20e9 - MIB / 100e9)


def test_a_working_set_beyond_the_cache_was_measured_cold() -> None:
    size = 64 * MIB
    assert GIVEN.seconds("aten.add", "float32", [(1,)], None, size) == GIVEN.seconds(
        "aten.add", "float32", [(1,)], None, size, cold_bytes=size
    )


def test_moves_between_devices() -> None:
    assert GIVEN.send_seconds(10**7) == pytest.approx(1e-2)


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "calibration.json"
    GIVEN.save(path)
    assert Calibration.load(path) == GIVEN


@pytest.mark.parametrize(
    "change",
    [("{", "["), ('"version": 1', '"version": 2'), ('"cache_bytes": 8', '"cache_bytes": 1.5, "more": 8')],
)
def test_a_damaged_or_newer_file_says_to_calibrate_again(change: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    GIVEN.save(path)
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ModelError, match="dtorch calibrate"):
        Calibration.load(path)
    with pytest.raises(ModelError, match="dtorch calibrate"):
        Calibration.load(tmp_path / "none.json")


def test_features_of_contractions() -> None:
    assert features_of("aten.addmm", [(7,), (3, 5), (5, 7)]) == (1, 3, 7, 5)
    assert features_of("aten.bmm", [(2, 3, 5), (2, 5, 7)]) == (2, 3, 7, 5)
    assert features_of("aten.linear", [(2, 3, 5), (7, 5), (7,)]) == (1, 6, 7, 5)
    assert features_of("aten.convolution", [(2, 8, 5, 6), (4, 2, 3, 3)]) == (4, 2, 60, 9, 4)
    assert features_of("aten.exp", [(2, 3)]) is None


def test_every_probe_runs_and_has_work() -> None:
    # Small ones only: the others differ by their sizes.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "PRODUCTS", ((4, 4, 4),))
        patch.setattr(probes, "BATCHED", ((2, 4, 4, 4),))
        patch.setattr(probes, "CONVOLUTIONS", ((1, 4, 4, 8, 3, 1, 4),))
        patch.setattr(probes, "ATTENTIONS", ((2, 4, 4, 8),))
        patch.setattr(probes, "SIZES", (64, 4096))
        told: list[str] = []

        def once(function, at_least_s=0.0, threads=1):
            function()
            return 1e-6 * (1 + len(told))

        patch.setattr(measure, "seconds", once)
        patch.setattr(measure, "call_points", lambda **options: [(1, 1e-6), (2, 2e-6)])
        patch.setattr(measure, "call_cost", lambda points: measure.fit_call_cost([(1, 2e-6), (2, 3e-6)]))
        found = calibrate(tick=told.append)
    assert len(told) == steps()
    assert all(point.work > 0 for points in found.points.values() for point in points)
    assert found.machine.threads == torch.get_num_threads()
    assert found.seconds("aten.gelu", "float32", [(8,)], None, 64) > 0
