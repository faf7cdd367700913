"""What a benchmark module yields, and how it is measured.

A module `bench_*.py` has `rows()`, a generator of `Row`. A row names two things to measure, ours and what it
is held against, and the budget. The two are measured in turn, ours first in one repeat and second in the
next, so that a slow spell of the machine falls on both; what counts is the median of each side.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Measure = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the budget table.

    `ours` and `theirs` do the work once and return what they measured, in `unit` ("s", "B", or "1" for none).
    The value held against `budget` is, by `compare`:

        ratio     ours / theirs
        beyond    ours - theirs, in `unit`
        error     |ours / theirs - 1|
        absolute  ours, in `unit`; `theirs` is None

    A budget of None: the row is measured for the picture, and held against nothing.
    """

    name: str
    against: str
    budget: float | None
    ours: Measure
    theirs: Measure | None
    compare: Literal["ratio", "beyond", "error", "absolute"] = "ratio"
    unit: Literal["s", "B", "1"] = "s"
    repeats: int = 15
    warmups: int = 2


@dataclass(frozen=True, slots=True)
class Result:
    """A measured row: every sample in the order taken, the medians, and the value held against the budget."""

    name: str
    against: str
    compare: str
    unit: str
    budget: float | None
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    ours_median: float
    theirs_median: float | None
    value: float
    ok: bool | None


def timed(function: Callable[[], object], calls: int = 1) -> Measure:
    """A measure of the seconds one call of `function` takes, the mean over `calls` calls."""

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    return measure


def ran(tensor: Any) -> Any:
    """The tensor, once what was recorded before it has run; other tensors than ours have run already."""
    graph = getattr(tensor, "graph", None)
    if graph is not None:
        graph.sync()
    return tensor


def measure(row: Row, tick: Callable[[], None] = lambda: None) -> Result:
    """Measures `row`; `tick` is called after each of `steps(row)` steps."""
    ours: list[float] = []
    theirs: list[float] = []
    sides = [(row.ours, ours)] + ([(row.theirs, theirs)] if row.theirs else [])
    for repeat in range(row.warmups + row.repeats):
        for side, samples in sides if repeat % 2 == 0 else reversed(sides):
            sample = side()
            if repeat >= row.warmups:
                samples.append(sample)
        tick()
    return judge(row, ours, theirs)


def steps(row: Row) -> int:
    """How often `measure` ticks."""
    return row.warmups + row.repeats


def judge(row: Row, ours: list[float], theirs: list[float]) -> Result:
    """The result that these samples give."""
    ours_median = statistics.median(ours)
    theirs_median = statistics.median(theirs) if theirs else None
    value = ours_median
    if row.compare != "absolute":
        if theirs_median is None:
            raise ValueError(f"{row.name}: compare={row.compare!r} needs `theirs`")
        value = _held(row.compare, ours_median, theirs_median)
    return Result(
        name=row.name,
        against=row.against,
        compare=row.compare,
        unit=row.unit,
        budget=row.budget,
        ours=tuple(ours),
        theirs=tuple(theirs),
        ours_median=ours_median,
        theirs_median=theirs_median,
        value=value,
        ok=None if row.budget is None else value <= row.budget,
    )


def _held(compare: str, ours: float, theirs: float) -> float:
    if compare == "beyond":
        return ours - theirs
    ratio = ours / theirs if theirs else float("inf")
    return ratio if compare == "ratio" else abs(ratio - 1)


def show(value: float | None, unit: str) -> str:
    """`value` for a person: 0.0123 s is "12.3 ms", 67108864 B is "64.0 MiB"."""
    if value is None:
        return ""
    scales = {
        "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
        "1": ((1.0, ""),),
        "B": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    }[unit]
    scale, name = next((pair for pair in scales if abs(value) >= pair[0]), scales[-1])
    return f"{value / scale:.3g} {name}".rstrip()


def value_text(compare: str, unit: str, value: float | None) -> str:
    """A row's value or budget: as a ratio, in per cent, or with its unit; nothing for no budget."""
    if value is None:
        return ""
    if compare == "error":
        return f"{100 * value:.1f} %"
    return f"{value:.2f}x" if compare == "ratio" else show(value, unit)


def chosen(rows: Iterator[Row], words: list[str]) -> list[Row]:
    """The rows whose name holds one of `words`; all, without words."""
    return [row for row in rows if not words or any(word in row.name for word in words)]
