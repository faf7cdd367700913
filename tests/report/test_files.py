"""What a report writes beside its page: figures and traces."""

from __future__ import annotations

import builtins
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dtorch.errors import DtorchError
from dtorch.report import extra
from dtorch.report.trace import save_trace
from tests.report import sample


def test_figures_are_written(data: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from dtorch.report.figures import save_png

    written = save_png(data, tmp_path / "made")
    assert [path.name for path in written] == ["roofline.png", "bytes.png", "memory.png", "modules.png"]
    for path in written:
        content = path.read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = (int.from_bytes(content[start : start + 4]) for start in (16, 20))
        assert width > 1000
        assert height > 500
        assert len(content) > 20_000


def test_a_figure_shows_every_point_and_no_formula(data: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from dtorch.report import roofline
    from dtorch.report.figures import draw_roofline

    axes = Figure().subplots()
    assert draw_roofline(data, axes)
    bottom, top = axes.get_ylim()
    left, right = axes.get_xlim()
    for point in roofline.points(data):
        assert left < point.x < right
        assert bottom < point.rate < top
        assert point.measured_rate is None or bottom < point.measured_rate < top
    texts = {text.get_text() for text in axes.texts}
    assert {"bf16 989 TFLOP/s", "ridge 295 FLOP/B"} <= texts


def test_a_name_with_dollars_is_text(data: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from dtorch.report.figures import save_png

    named = [{**operator, "module": r"a$\frac{$"} for operator in data["operators"]]
    assert len(save_png({**data, "operators": named, "title": "$x"}, tmp_path)) == 4


def test_nothing_to_draw_writes_nothing(data: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from dtorch.report.figures import save_png

    assert save_png({**data, "operators": [], "memory": []}, tmp_path) == []


def test_a_trace_holds_streams_slices_and_memory(data: dict[str, Any], tmp_path: Path) -> None:
    save_trace(data, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"predicted, h100-sxm", "measured", "compute", "communicate"}
    slices = [event for event in events if event["ph"] == "X"]
    predicted = [event for event in slices if event["pid"] == 1]
    assert len(predicted) == sum(bool(operator["time_s"]) for operator in data["operators"])
    last = max(event["ts"] + event["dur"] for event in predicted)
    assert last == pytest.approx(data["total"]["time_s"] * 1e6)
    counters = [event for event in events if event["ph"] == "C"]
    assert [event["args"] for event in counters] == [step["bytes"] for step in data["memory"]]
    # Slices of one thread do not overlap, or a viewer would nest them.
    for thread in {(event["pid"], event["tid"]) for event in slices}:
        mine = sorted((e["ts"], e["dur"]) for e in slices if (e["pid"], e["tid"]) == thread)
        pairs = pairwise(mine)
        assert all(start + length <= later + 1e-6 for (start, length), (later, _) in pairs)


def test_a_trace_without_measured_times_has_no_such_process() -> None:
    from dtorch.report.trace import trace

    events = trace(sample.report(measured=False))["traceEvents"]
    assert {event["pid"] for event in events} == {1}


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DtorchError, match=r'pip install "dtorch-mesh\[report\]"'):
        extra.need("plotly_that_is_not_there.offline")


def test_the_tables_need_no_extra(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        assert name.partition(".")[0] not in {"plotly", "matplotlib"}
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    from dtorch.report import terminal
    from dtorch.report.trace import trace

    assert terminal.report_tables(data)
    assert trace(data)
