"""Try PyTorch's operator database on meshes, and write docs/coverage.md.

    python -m tests.coverage [--folder F] [--shard I/N] [--again] [name ...]

Results go into a folder, one line for each entry and kind of dtype; a run goes on where the last one stopped.
Several processes may each take a shard; whoever reports merges their files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.coverage import report
from tests.coverage.database import ELIGIBILITY, KINDS, database, name_of
from tests.coverage.examine import examine
from tests.coverage.records import Record, append, load

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "coverage.md"

SAMPLES = {"float32": 6}
"""Samples tried for one entry in a kind of dtype; 3 in the others."""


def main() -> None:
    """Try what is not in the folder yet, then write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("names", nargs="*", help="entries of the database; default: all")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "coverage", help="of the results")
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth entry, from I")
    parser.add_argument("--samples", type=int, help="of an entry in one kind; default 6 in float32, 3 else")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), help="of dtype")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="try what is in the folder already, too")
    parser.add_argument("--failed", action="store_true", help="try again what failed")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the report goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shard, shards = map(int, options.shard.split("/"))
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / f"{shard}-of-{shards}.jsonl"
    done = load(options.folder)
    if options.failed:
        done = {key: record for key, record in done.items() if record.status != "fails"}
    print(ELIGIBILITY, flush=True)
    chosen = [op for op in database() if not options.names or {name_of(op), op.name} & set(options.names)]
    todo = [(op, kind) for op in chosen[shard::shards] for kind in options.kinds]
    todo = [(op, kind) for op, kind in todo if options.again or (name_of(op), kind) not in done]
    now = file.with_suffix(".now")
    if now.exists():
        # A process died here, for want of memory or in a kernel: that is a fault too.
        record = Record(*now.read_text().split("\t"))
        record.add_fault("forward", "the process died")
        append(file, record)
        todo = [(op, kind) for op, kind in todo if (name_of(op), kind) != (record.name, record.kind)]
    for op, kind in _shown(todo):
        now.write_text(f"{name_of(op)}\t{kind}")
        record = examine(op, kind, options.samples or SAMPLES.get(kind, 3), options.seed)
        append(file, record)
        if record.status == "fails":
            print(f"{record.name} {kind}: {dict(record.failed)}", *record.faults, sep="\n    ", flush=True)
    now.unlink(missing_ok=True)
    records = load(options.folder)
    options.page.write_text(report.page(records.values()))
    print(*report.summary(records.values()), sep="\n")
    sys.exit(any(record.status == "fails" for record in records.values()))


def _shown(todo: list[tuple[Any, str]]) -> Iterator[tuple[Any, str]]:
    """The same, with a bar on the terminal."""
    columns = TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(todo))
        for op, kind in todo:
            bar.update(task, description=f"{name_of(op)} {kind}")
            yield op, kind
            bar.advance(task)


if __name__ == "__main__":
    main()
