"""Judge every placement rule by brute force: `make rules`.

    python -m dtorch.testing.rules [torch operator ...] [--rows N] [--calls N] [--all]

Judges the operators that have a class of their own, or those named, on the calls that the samples make, and
prints a table. `--all` adds element-wise operators and those without rules, whose missing rules are worth
writing.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dtorch.op import registry
from dtorch.op.param import TorchCall
from dtorch.testing.calls import Call
from dtorch.testing.oracle import MESHES, Verdict, judge_call
from dtorch.testing.samples import calls_by_operator, samples


def own_operators() -> list[str]:
    """Torch operators that have a class of their own; "aten.max.dim" counts as aten.max."""
    return sorted({".".join(name.split(".")[:2]) for name in registry.torch_operators()})


def class_names(calls: Iterable[Call]) -> str:
    """Which classes serve the calls, most frequent first."""
    counts = Counter(call.operator_class.__name__ for call in calls)
    return "/".join(name for name, _ in counts.most_common())


def judge_operator(calls: Sequence[Call], max_calls: int, **options: Any) -> Verdict:
    """One verdict for several calls of an operator; of many, evenly spaced ones."""
    step = max(1, len(calls) / max_calls)
    chosen = [calls[int(i * step)] for i in range(min(len(calls), max_calls))]
    total = Verdict(f"{len(chosen)} calls")
    for call in chosen:
        # Backward operators are judged by their values; their own gradients are another call.
        backward = not (isinstance(call.param, TorchCall) and "backward" in call.param.op)
        found = judge_call(call, backward=backward, **options)
        total.listed += found.listed
        total.tried += found.tried
        total.wrong += [f._replace(rule=f"{found.call}: {f.rule}") for f in found.wrong]
        total.missing += [f._replace(rule=f"{found.call}: {f.rule}") for f in found.missing]
    return total


def main() -> None:
    """Judge, print one line for each operator and what is wrong or missing, then the sums."""
    parser = argparse.ArgumentParser(prog="python -m dtorch.testing.rules", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="torch operators, such as aten.mm; default: all with a class"
    )
    parser.add_argument("--rows", type=int, default=400, help="rows of input placements tried for one call")
    parser.add_argument("--calls", type=int, default=20, help="calls judged for one operator")
    parser.add_argument("--all", action="store_true", help="operators without a class of their own too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    calls = calls_by_operator()
    names = options.names or (list(calls) if options.all else [n for n in own_operators() if n in calls])
    print(
        f"{len(samples())} samples, {len(names)} torch operators, "
        f"meshes {[list(m) for m in MESHES]} and [2, 2]"
    )
    print(f"{'operator':34} {'class':22} calls  rules  tried  wrong missing  seconds", flush=True)
    sums: Counter[str] = Counter()
    for name in names:
        start = time.perf_counter()
        verdict = judge_operator(calls[name], options.calls, max_rows=options.rows)
        kind, count = class_names(calls[name]), min(len(calls[name]), options.calls)
        print(
            f"{name:34} {kind[:22]:22} {count:5} {verdict.listed:6} {verdict.tried:6} {len(verdict.wrong):6} "
            f"{len(verdict.missing):7} {time.perf_counter() - start:8.1f}"
        )
        for word, findings in (("wrong", verdict.wrong), ("missing", verdict.missing)):
            for finding in findings:
                print(f"    {word:8} {finding}")
        sys.stdout.flush()
        sums += Counter(
            operators=1,
            rules=verdict.listed,
            tried=verdict.tried,
            wrong=len(verdict.wrong),
            missing=len(verdict.missing),
        )
    print(dict(sums))
    sys.exit(bool(sums["wrong"]))


if __name__ == "__main__":
    main()
