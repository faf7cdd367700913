"""Tables of a report: they fit 100 columns and say what the report says."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from dtorch.report import terminal, views
from dtorch.report.quantity import quantity
from tests.report import sample


def printed(renderable: Any, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(renderable)
    return console.file.getvalue()


def test_tables_fit_a_hundred_columns_and_cut_no_number(data: dict[str, Any]) -> None:
    text = printed(terminal.report_tables(data))
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for row in views.by_kind(data):
        assert row.name in text
        assert quantity(row.time, "s") in text or not row.time


def test_the_summary_says_the_totals(data: dict[str, Any]) -> None:
    text = printed(terminal.summary_table(data))
    for value, unit in (
        ("flops", ""),
        ("communication_bytes", "B"),
        ("peak_memory_bytes", "B"),
        ("time_s", "s"),
    ):
        assert quantity(data["total"][value], unit) in text
    assert "dp=2 x tp=8; h100-sxm, theoretical roofs" in text


def test_measured_times_stand_beside_predicted_ones(data: dict[str, Any]) -> None:
    measured = views.measured(data)
    assert measured == sum(operator["measured_s"] or 0.0 for operator in data["operators"])
    text = printed(terminal.report_tables(data))
    assert quantity(measured, "s") in text
    assert "received" not in text[text.index("Operators by kind") : text.index("Time by module")]
    assert "measured" not in printed(terminal.report_tables(sample.report(measured=False)))


def test_unknown_prices_come_last(data: dict[str, Any]) -> None:
    text = printed(terminal.report_tables(data))
    assert text.index("Unknown prices") > text.index("Communication, received")
    assert "General(<b>nonzero</b>)" in text
    assert "Unknown prices" not in printed(terminal.report_tables(sample.report(unknown=False)))


def test_names_are_no_markup(data: dict[str, Any]) -> None:
    named = [{**operator, "module": "[bold]a[/bold][/]:smile:"} for operator in data["operators"][:3]]
    unknown = [{"describe": "General([red]x[/])", "count": 1}]
    text = printed(terminal.report_tables({**data, "operators": named, "unknown": unknown, "title": "[/b]"}))
    assert "[bold]a[/bold][/]:smile:" in text
    assert "General([red]x[/])" in text


def test_many_groups_end_in_one_row_of_the_rest(data: dict[str, Any]) -> None:
    kinds = [{**operator, "kind": f"Kind{number}"} for number, operator in enumerate(data["operators"][:60])]
    rows = views.by_kind({**data, "operators": kinds})
    text = printed(terminal.groups_table(rows, "Operators", "operator", ("uses", "time")))
    assert "40 others" in text


def test_without_a_device_nothing_has_a_time(data: dict[str, Any]) -> None:
    operators = [
        {**operator, "time_s": None, "start_s": None, "bound": None} for operator in data["operators"]
    ]
    total = {**data["total"], "time_s": None}
    text = printed(terminal.report_tables({**data, "device": None, "operators": operators, "total": total}))
    assert "no device, so no times" in text
    assert "Matmul" in text


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        ({"shape": [2, 8], "dim_names": ["dp", "tp"]}, "dp=2 x tp=8"),
        ({"shape": [4], "dim_names": None}, "4"),
        ({"shape": [4, 2], "dim_names": ["0", "1"]}, "4 x 2"),
        ({"shape": [1], "dim_names": ["device"]}, "one device"),
    ],
)
def test_a_mesh_in_words(mesh: dict[str, Any], text: str) -> None:
    assert terminal.mesh_text(mesh) == text
