"""Measure every budget, show the table, keep the numbers.

    make bench                         every row
    make bench ARGS="redistribute"     rows whose name holds the word
    make bench ARGS="--list"           what there is
    make bench ARGS="--quick"          each row once, kept nowhere: whether all can be measured

Each `bench_*.py` here has `rows()`, see harness.py. Results go to `benchmarks/results/DATE.json` (--no-save
keeps none). Exit status 1 if a row could not be measured; a missed budget is shown, and no error.
"""

import argparse
import dataclasses
import datetime
import gc
import importlib
import json
import sys
import time
import traceback
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import machine
from benchmarks.harness import Result, Row, chosen, measure, show, steps, value_text

HERE = Path(__file__).parent
RESULTS = HERE / "results"
VERDICTS = {True: "[green]ok[/]", False: "[bold red]missed[/]", None: ""}


def modules() -> list[str]:
    """The benchmark modules, by name."""
    return sorted(path.stem for path in HERE.glob("bench_*.py"))


def discover(words: list[str], failures: dict[str, str]) -> list[Row]:
    """The rows asked for; a module that fails to give its rows is put into `failures`."""
    rows: list[Row] = []
    for name in modules():
        try:
            rows += chosen(importlib.import_module(f"benchmarks.{name}").rows(), words)
        except Exception:  # one broken module must not cost the others' numbers
            failures[name] = traceback.format_exc()
    return rows


def run(rows: list[Row], failures: dict[str, str], console: Console) -> list[Result]:
    """Measures `rows` under a progress bar and empties the list; a row that raises is put into `failures`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    results = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(map(steps, rows)))
        while rows:  # a row that has been measured lets go of its models
            row = rows.pop(0)
            gc.collect()
            progress.update(task, description=row.name)
            try:
                results.append(measure(row, lambda: progress.advance(task)))
            except Exception:  # as above
                failures[row.name] = traceback.format_exc()
    return results


def table(results: list[Result]) -> Table:
    """The budget table."""
    drawn = Table("what", "ours", "against", "theirs", "value", "budget", "", title="budgets, medians")
    for result in results:
        drawn.add_row(
            result.name,
            show(result.ours_median, result.unit),
            result.against,
            show(result.theirs_median, result.unit),
            value_text(result.compare, result.unit, result.value),
            value_text(result.compare, result.unit, result.budget),
            VERDICTS[result.ok],
        )
    return drawn


def save(results: list[Result], seconds: float) -> Path:
    """Writes the results, dated, with what they were measured on and how long it took."""
    now = datetime.datetime.now(datetime.UTC)
    path = RESULTS / f"{now:%Y-%m-%dT%H%M%SZ}.json"
    content = {
        "date": now.isoformat(timespec="seconds"),
        "machine": machine.machine(),
        "versions": machine.versions(),
        "commit": machine.commit(HERE.parent),
        "seconds": round(seconds),
        "rows": [dataclasses.asdict(result) for result in results],
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure the budgets.")
    parser.add_argument("words", nargs="*", help="only rows whose name holds one of these")
    parser.add_argument("--list", action="store_true", help="list the rows, measure nothing")
    parser.add_argument("--no-save", action="store_true", help="write no result file")
    parser.add_argument("--quick", action="store_true", help="measure each row once; write no result file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()

    failures: dict[str, str] = {}
    rows = discover(options.words, failures)
    if options.quick:
        rows = [dataclasses.replace(row, repeats=1, warmups=0) for row in rows]
    if options.list:
        for row in rows:
            console.print(f"{row.name}  [dim]against {row.against}[/]")
    else:
        start = time.perf_counter()
        results = run(rows, failures, console)
        seconds = time.perf_counter() - start
        console.print(table(results))
        console.print(f"{len(results)} rows in {seconds / 60:.1f} minutes")
        if results and not (options.no_save or options.quick):
            console.print(f"written to {save(results, seconds).relative_to(HERE.parent)}")
    for name, text in failures.items():
        console.print(f"[bold red]{name} could not be measured[/]\n{text}", highlight=False)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
