"""The newest figure of each row, from the dated files: what the pages print.

python -m benchmarks.figures GPT-2 Llama     rows whose name holds one of the words
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import show, value_text

RESULTS = Path(__file__).parent / "results"
NONE = ["not measured yet"]
Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def newest(folder: Path = RESULTS, until: str = "") -> Rows:
    """Each row by (name, against), as the last file that holds it has it, with the file's name.

    Args:
        folder: of the files.
        until: the last day that counts, as 2026-11-30; by default all do.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        if until and path.name[: len(until)] > until:
            continue
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            found[row["name"], row["against"]] = {**row, "file": path.name}
    return found


def lines(rows: Rows, *words: str) -> list[str]:
    """A line a row: what, ours, against what, theirs, value, budget if there is one."""
    cells = [
        (
            name,
            show(row["ours_median"], row["unit"]),
            against,
            show(row["theirs_median"], row["unit"]),
            value_text(row["compare"], row["unit"], row["value"]),
            value_text(row["compare"], row["unit"], row["budget"]),
        )
        for (name, against), row in rows.items()
        if any(word in name for word in words)
    ]
    if not cells:
        return NONE
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def token_lines(rows: Rows) -> list[str]:
    """Decoding: a line for each row that has been measured, in tokens per second; more is faster."""
    found = [f"{'tokens per second':<66} {'ours':>6} {'theirs':>6}"]
    for (name, against), row in rows.items():
        tokens = re.search(r"decoding (\d+) tokens", name)
        if tokens:
            ours, theirs = (int(tokens[1]) / row[side] for side in ("ours_median", "theirs_median"))
            what = re.sub(r" \d+ tokens|, compiled and replayed", "", name)
            found.append(f"{what + ', ' + against:<66} {ours:>6.0f} {theirs:>6.0f}")
    return found if len(found) > 1 else NONE


def chain_lines(rows: Rows) -> list[str]:
    """The element-wise chain: a line for each size that has been measured."""
    from benchmarks.bench_chain import SIZES, STEPS

    found = [
        f"{'floats':>6} {'compiled':>9} {'eager':>7} {'compile':>8} {'copy':>6} {'recorded':>9} {'eager':>7}"
    ]
    for size in SIZES:
        name = f"{STEPS}-step chain, {size} fp32"
        keys = [(f"{name}, compiled", against) for against in ("torch eager", "torch.compile", "one copy")]
        keys.append((f"{name}, recorded and fused", "torch eager"))
        if all(key in rows for key in keys):
            eager, compiled, copy, fused = (f"{rows[key]['value']:.2f}x" for key in keys)
            times = [show(rows[key]["ours_median"], "s") for key in (keys[0], keys[-1])]
            found.append(
                f"{size:>6} {times[0]:>9} {eager:>7} {compiled:>8} {copy:>6} {times[1]:>9} {fused:>7}"
            )
    return found if len(found) > 1 else NONE


if __name__ == "__main__":
    print(*lines(newest(), *(sys.argv[1:] or [""])), sep="\n")
