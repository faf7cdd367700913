"""The benchmark harness: what it measures, in which order, and that a budget can be missed."""

import importlib
import io
import json
import re
import weakref
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import bench_compile_seconds, bench_models, figures
from benchmarks.bench_fusion import rank_correlation
from benchmarks.harness import Row, chosen, measure, show, steps, value_text
from benchmarks.run import modules, run


def constant(value: float, log: list[str], name: str):
    """A measure that always gives `value` and writes `name` to `log`."""

    def once() -> float:
        log.append(name)
        return value

    return once


@pytest.mark.parametrize(
    ("compare", "budget", "value", "ok"),
    [
        ("ratio", 1.5, 1.5, True),
        ("ratio", 1.4, 1.5, False),
        ("beyond", 1.0, 1.0, True),
        ("beyond", 0.9, 1.0, False),
        ("absolute", 3.0, 3.0, True),
        ("absolute", 2.9, 3.0, False),
    ],
)
def test_a_budget_can_be_kept_and_missed(compare: str, budget: float, value: float, ok: bool) -> None:
    row = Row("r", "it", budget, lambda: 3.0, lambda: 2.0, compare=compare, repeats=3)
    result = measure(row)
    assert (result.value, result.ok) == (value, ok)


def test_sides_take_turns_and_go_first_in_turn() -> None:
    log: list[str] = []
    ticks: list[None] = []
    row = Row("r", "it", 1.0, constant(1, log, "o"), constant(1, log, "t"), repeats=3, warmups=1)
    result = measure(row, lambda: ticks.append(None))
    assert "".join(log) == "ottoott" + "o"
    assert len(result.ours) == len(result.theirs) == 3, "warm-ups are not kept"
    assert len(ticks) == steps(row) == 4


def test_the_median_counts() -> None:
    samples = iter([9.0, 1.0, 2.0])
    result = measure(
        Row("r", "it", 2.0, lambda: next(samples), None, compare="absolute", repeats=3, warmups=0)
    )
    assert result.value == 2.0


def test_a_comparison_needs_two_sides() -> None:
    with pytest.raises(ValueError, match="r: compare='ratio' needs `theirs`"):
        measure(Row("r", "it", 1.0, lambda: 1.0, None, repeats=1))


def test_rows_are_chosen_by_words() -> None:
    rows = [Row(name, "it", 1.0, lambda: 1.0, lambda: 1.0) for name in ("import dtorch", "one add", "one mm")]
    assert [row.name for row in chosen(iter(rows), ["add", "import"])] == ["import dtorch", "one add"]
    assert chosen(iter(rows), []) == rows


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (2.5, "s", "2.5 s"),
        (4.2e-6, "s", "4.2 us"),
        (64 * 2**20, "B", "64 MiB"),
        (None, "s", ""),
        (-0.002, "s", "-2 ms"),
    ],
)
def test_values_are_shown_in_their_unit(value: float | None, unit: str, text: str) -> None:
    assert show(value, unit) == text


@pytest.mark.parametrize("name", modules())
def test_every_module_has_rows(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").rows)


def test_a_row_without_a_budget_is_shown_and_not_judged() -> None:
    result = measure(Row("r", "it", None, lambda: 3.0, lambda: 2.0, repeats=1))
    assert (result.value, result.ok) == (1.5, None)
    assert value_text("ratio", "s", result.budget) == ""


def test_measured_rows_let_go_of_what_they_hold() -> None:
    made = Held()
    alive, seen = weakref.ref(made), []
    rows = [
        Row("first", "it", 1.0, partial(made.measure), None, compare="absolute", repeats=1),
        Row("second", "it", 1.0, lambda: seen.append(alive()) or 0.0, None, compare="absolute", repeats=1),
    ]
    del made
    assert len(run(rows, {}, Console(file=io.StringIO()))) == 2
    assert set(seen) == {None}


class Held:
    def measure(self) -> float:
        return 1.0


def written(folder: Path, date: str, *values: tuple[str, float]) -> None:
    rows = [
        {"name": name, "against": "it", "unit": "s", "compare": "ratio", "ours_median": value,
         "theirs_median": 1.0, "value": value, "budget": None}
        for name, value in values
    ]  # fmt: skip
    (folder / f"{date}.json").write_text(json.dumps({"rows": rows}))


def test_the_newest_figure_of_each_row_is_shown(tmp_path: Path) -> None:
    written(tmp_path, "2026-01-01T000000Z", ("chain", 2.0), ("step", 3.0))
    written(tmp_path, "2026-01-02T000000Z", ("chain", 0.5))
    found = figures.newest(tmp_path)
    assert figures.lines(found, "chain") == ["chain  500 ms  it  1 s  0.50x"]
    assert figures.lines(found, "nothing") == figures.chain_lines(found) == ["not measured yet"]
    assert [row["file"] for row in found.values()] == ["2026-01-02T000000Z.json", "2026-01-01T000000Z.json"]
    before = figures.newest(tmp_path, until="2026-01-01")
    assert figures.lines(before, "chain") == ["chain  2 s  it  1 s  2.00x"]


def test_the_chain_is_shown_size_by_size() -> None:
    sides = [("compiled", "torch eager"), ("compiled", "torch.compile"), ("compiled", "one copy")]
    rows = {
        (f"8-step chain, {size} fp32, {what}", against): {"ours_median": 2e-5, "value": value}
        for size, value in (("512", 0.5), ("2M", 2.0))
        for what, against in [*sides, ("recorded and fused", "torch eager")]
    }
    del rows["8-step chain, 2M fp32, compiled", "one copy"]
    assert [line.split() for line in figures.chain_lines(rows)[1:]] == [
        ["512", "20", "us", "0.50x", "0.50x", "0.50x", "20", "us", "0.50x"]
    ]


def test_decoding_is_shown_in_tokens_per_second() -> None:
    name = "small Llama decoding 32 tokens, static cache, 1 device, compiled and replayed"
    rows = {
        (name, "torch eager"): {"ours_median": 0.064, "theirs_median": 0.1},
        ("small Llama forward", "torch eager"): {"ours_median": 1.0, "theirs_median": 1.0},
    }
    assert [line.split() for line in figures.token_lines(rows)] == [
        ["tokens", "per", "second", "ours", "theirs"],
        ["small", "Llama", "decoding,", "static", "cache,", "1", "device,", "torch", "eager", "500", "320"],
    ]
    assert figures.token_lines({}) == figures.NONE


@pytest.mark.parametrize("family", ["GPT-2", "decoding", "chain", "Llama forward"])
def test_each_family_has_seconds_to_compile_and_a_first_call(family: str) -> None:
    rows = [row.name for row in bench_compile_seconds.rows() if family in row.name]
    assert [re.sub(".*, ([^,]*, [^,]*)$", r"\1", name) for name in rows] == [
        "seconds to compile, cold",
        f"first {'step' if family == 'GPT-2' else 'call'}, cold",
        *([] if family == "GPT-2" else ["seconds to compile, warm", "first call, warm"]),
    ]


def test_training_steps_are_held_against_both_on_one_device_and_two() -> None:
    found = {(row.name.split(", ", 2)[2], row.against) for row in bench_models.rows() if "GPT-2" in row.name}
    cuts = ("1 device, replayed", "2 devices, dp, replayed", "2 devices, tp, replayed")
    assert found == {(cut, against) for cut in cuts for against in ("torch eager", "torch.compile")}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1.0, 2.0, 3.0], [10.0, 20.0, 21.0], 1.0),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], -1.0),
        ([1.0, 1.0, 3.0], [1.0, 2.0, 9.0], 3**0.5 / 2),  # ranks 1.5, 1.5, 3 and 1, 2, 3
    ],
)
def test_rank_correlation(a: list[float], b: list[float], expected: float) -> None:
    assert rank_correlation(a, b) == pytest.approx(expected)
