"""Judge every placement rule by brute force: `make rules`.

    python -m dtorch.testing.rules [torch operator ...] [--calls N] [--rows N] [--seconds N] [--shard I/N]

Judges every operator that dtorch's samples or PyTorch's database call, on calls of both, on meshes [2],
[3] and [2, 2]. Each operator is judged in a process of its own, since a kernel may die of shards that do
not belong together. Results go into a folder for these settings, one line for each operator; a run goes on
where the last one stopped, `--again` starts anew. Then a table is printed, and written into docs/rules.md
where the folder has all operators.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from dtorch.op import registry
from dtorch.op.operator import Operator
from dtorch.op.param import TorchCall
from dtorch.op.schema import base_name
from dtorch.testing import rules_page
from dtorch.testing.calls import Call
from dtorch.testing.oracle import Finding, judge_call
from dtorch.testing.rules_page import Record
from dtorch.testing.samples import calls_by_operator
from dtorch.testing.samples_database import database_calls

FOLDER = Path("build") / "rules"

STUCK_S = 480
"""A call that takes longer ends its process."""


def own_operators() -> list[str]:
    """Torch operators that have a class of their own; "aten.max.dim" counts as aten.max."""
    return sorted({".".join(name.split(".")[:2]) for name in registry.torch_operators()})


def class_names(calls: Iterable[Call]) -> str:
    """Which classes serve the calls, most frequent first."""
    counts = Counter(call.operator_class.__name__ for call in calls)
    return "/".join(name for name, _ in counts.most_common())


def spaced(calls: Sequence[Call], count: int) -> list[Call]:
    """So many of the calls, evenly spaced; all for 0."""
    count = min(count or len(calls), len(calls))
    return [calls[int(i * len(calls) / count)] for i in range(count)]


def judge_operator(
    name: str,
    calls: Sequence[Call],
    max_rows: int,
    unlisted: bool = True,
    limit_s: float = inf,
    begin: Callable[[], object] = lambda: None,
) -> Record:
    """One record for several calls of an operator.

    Args:
        name: of the torch operator.
        calls: what is judged.
        max_rows: rows of input placements tried for one call on one mesh.
        unlisted: whether to look for missing rules.
        limit_s: after so many seconds no further call is begun.
        begin: called before each call is judged.
    """
    record, start = Record(name, class_names(calls)), time.perf_counter()
    for call in calls:
        if time.perf_counter() - start > limit_s:
            break
        begin()
        # Backward operators are judged by their values; their own gradients are another call.
        backward = not (isinstance(call.param, TorchCall) and "backward" in call.param.op)
        found = judge_call(call, backward=backward, max_rows=max_rows, unlisted=unlisted)
        record.calls += 1
        record.rules += found.listed
        record.tried += found.tried
        record.wrong += [f"{found.call}: {f}" for f in found.wrong]
        for finding in found.missing:
            why = left_out(call, finding, str(found.call))
            if why is None:
                record.missing.append(f"{found.call}: {finding}")
            else:
                record.left_out[why] += 1
    record.seconds = time.perf_counter() - start
    return record


def left_out(call: Call, finding: Finding, text: str) -> str | None:
    """The reason, given where the rule would stand, why a rule that holds is not listed; None without one."""
    cls: type[Operator] = call.operator_class
    name = base_name(call.param.func) if isinstance(call.param, TorchCall) else cls.type
    whole = f"{text}: {finding.rule}"
    reasons = (why for op, part, why in cls.left_out if op in ("", name) and part in whole)
    return next(reasons, None)


def all_calls(count: int) -> dict[str, list[Call]]:
    """Torch operator -> of its calls in dtorch's samples and in the database so many each; 0 for all."""
    own, database = calls_by_operator(), database_calls()
    return {
        name: [*spaced(own.get(name, []), count), *spaced(database.get(name, []), count)]
        for name in sorted({*own, *database})
    }


def in_a_child(name: str, calls: Sequence[Call], max_rows: int, limit_s: float = inf) -> Record:
    """`judge_operator` in a process of its own; one that dies looks for no missing rules the second time."""
    for unlisted in (True, False):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            with suppress(BaseException), os.fdopen(write, "w") as pipe:
                watch = partial(signal.alarm, STUCK_S)
                json.dump(vars(judge_operator(name, calls, max_rows, unlisted, limit_s, watch)), pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        if text:
            return Record.of(json.loads(text))
    record = Record(name, class_names(calls))
    record.wrong.append("the process died, or raised")
    return record


def main() -> None:
    """Judge what the folder does not have yet; print one line for each operator and what is not right."""
    parser = argparse.ArgumentParser(prog="python -m dtorch.testing.rules", description=__doc__)
    parser.add_argument("names", nargs="*", help="torch operators, such as aten.mm; default: all")
    parser.add_argument("--rows", type=int, default=60, help="rows of input placements tried for one call")
    parser.add_argument(
        "--calls", type=int, default=3, help="calls of either source for one operator; 0: all"
    )
    parser.add_argument(
        "--seconds", type=int, default=120, help="after which no further call of an operator is begun; 0: all"
    )
    parser.add_argument("--shard", default="0/1", help="I/N: every Nth operator, from I")
    parser.add_argument("--folder", type=Path, help=f"of the results; default: one in {FOLDER}")
    parser.add_argument("--again", action="store_true", help="judge what is in the folder already, too")
    parser.add_argument("--page", type=Path, default=Path("docs") / "rules.md", help="where the table goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    shard, shards = map(int, options.shard.split("/"))
    calls = all_calls(options.calls)
    unknown = set(options.names) - calls.keys()
    if unknown:
        parser.error(f"no sample calls {', '.join(sorted(unknown))}")
    settings = f"--calls {options.calls} --rows {options.rows} --seconds {options.seconds}"
    folder = options.folder or FOLDER / settings.replace("--", "").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{shard}-of-{shards}.jsonl"
    done = {} if options.again or options.names else rules_page.load(folder)
    names = [name for name in (options.names or list(calls))[shard::shards] if name not in done]
    judged: list[Record] = []
    for name in track(names, console=Console(stderr=True), description="judging"):
        record = in_a_child(name, calls[name], options.rows, options.seconds or inf)
        judged.append(record)
        with file.open("a") as lines:
            lines.write(json.dumps(vars(record)) + "\n")
        print(record.text(), flush=True)
    records = judged if options.names else list(rules_page.load(folder).values())
    print(*rules_page.summary(records), sep="\n")
    if not options.names and calls.keys() <= {record.name for record in records}:
        options.page.write_text(rules_page.page(records, settings), encoding="utf-8")
    sys.exit(any(record.wrong for record in records))


if __name__ == "__main__":
    main()
