"""The benchmark harness: what it measures, in which order, and that a budget can be missed."""

import importlib

import pytest

from benchmarks.harness import Row, chosen, measure, show, steps
from benchmarks.run import modules


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
