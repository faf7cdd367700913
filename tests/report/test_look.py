"""A report of a program that was priced: what is printed and written of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import dtorch
from dtorch.report.quantity import quantity
from tests.report import sample


@pytest.fixture(scope="module")
def priced() -> dtorch.Report:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    mesh = dtorch.described_mesh("h100-sxm", (2,), mesh_dim_names=("tp",))
    plan = {"0.*": {"tp": dtorch.Shard(0)}, "2.weight": {"tp": dtorch.Shard(1)}}
    x = torch.randn(32, 64)
    return dtorch.price(model, x, mesh=mesh, plan=plan, backward=True, optimizer="sgd", title="a small model")


def test_it_prints_its_tables(priced: dtorch.Report) -> None:
    text = str(priced)
    assert text.startswith("a small model")
    assert max(map(len, text.splitlines())) <= 100
    for value in (quantity(priced.flops), quantity(priced.time, "s"), "tp=2; h100-sxm, achievable roofs"):
        assert value in text


def test_the_sample_has_the_fields_of_a_report(priced: dtorch.Report) -> None:
    """Pages and figures are tested with the sample: it must look like what a report gives."""
    given, made = priced.to_dict(), sample.report()
    assert made.keys() == given.keys()
    for name in ("device", "mesh", "total"):
        assert made[name].keys() == given[name].keys(), name
    for name in ("operators", "memory", "memory_peak_holders"):
        assert made[name][0].keys() == given[name][0].keys(), name
    assert made["operators"][0]["inputs"][0].keys() == given["operators"][0]["inputs"][0].keys()
    sent = [next(o["communication"] for o in one["operators"] if o["communication"]) for one in (given, made)]
    assert sent[0].keys() == sent[1].keys()


def test_it_writes_figures_and_a_trace(priced: dtorch.Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert [path.stem for path in priced.save_png(tmp_path)] == ["roofline", "bytes", "memory", "modules"]
    priced.save_trace(tmp_path / "trace.json")
    slices = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == sum(timed.time_s > 0 for timed in priced.timed)


def test_its_page_opens(priced: dtorch.Report, show: Any, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    priced.save_html(tmp_path / "page.html")
    shown = show((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert shown.text("#title") == "a small model"
    assert shown.text("#count").startswith(f"{len(priced.operators)} of {len(priced.operators)} operators")
    assert shown.page.locator("#roofline-figure .points path").count() > 0
