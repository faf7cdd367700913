"""What judging an operator's rules has found, and docs/rules.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dtorch.testing.samples_database import NOT_JUDGED

_TEXT = (
    "For calls of dtorch's own samples and of PyTorch's operator database, each kind of call once.",
    "Placements of the inputs (whole, cut at each dim, pending sums of mixed sign) are tried by brute",
    "force on meshes [2] and [3], pairs of listed rules on [2, 2]; sizes are cut evenly, unevenly, and",
    "into empty shards. Of many rows the listed ones are tried, their neighbours, and a sample. A rule",
    "is *wrong* if value, shape, dtype or a gradient is not plain torch's, on shards or through the",
    "engine; *missing* if it holds and is not listed; *left out* if it holds and the operator's class",
    "says why it is not listed (`left_out`). [How to add an operator](how_to_add_operator.md) judges",
    "one of your own.",
)


@dataclass
class Record:
    """A torch operator before the judge.

    Attributes:
        name, kind: the operator, and the classes that serve its calls.
        calls: judged.
        rules: listed ones on one mesh axis, over all calls.
        tried: rows of input placements tried, over all calls and meshes.
        wrong: listed rules that do not hold, as text.
        missing: rules that hold, are not listed, and have no reason.
        left_out: reason why a rule that holds is not listed -> how often.
        seconds: spent.
    """

    name: str
    kind: str
    calls: int = 0
    rules: int = 0
    tried: int = 0
    wrong: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From the values of its attributes."""
        return cls(**{**values, "left_out": Counter(values["left_out"])})

    def text(self) -> str:
        """One line, and one for each finding."""
        return "\n".join(
            [
                f"{self.name:42} {self.kind[:22]:22} {self.calls:4} calls {self.rules:5} rules "
                f"{self.tried:6} tried {len(self.wrong):3} wrong {len(self.missing):3} missing "
                f"{self.left_out.total():4} left out {self.seconds:6.1f} s",
                *(f"    wrong    {found}" for found in self.wrong),
                *(f"    missing  {found}" for found in self.missing),
            ]
        )


def load(folder: Path) -> dict[str, Record]:
    """All records of the files of a folder; the last of an operator counts."""
    found: dict[str, Record] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = Record.of(json.loads(line))
            except ValueError:
                continue  # a run was stopped while it wrote
            found[record.name] = record
    return found


def summary(records: Iterable[Record]) -> list[str]:
    """The sums, as lines."""
    records = list(records)
    ruled = [record for record in records if record.kind != "General"]
    sums = {
        what: sum(len(n) if isinstance(n := getattr(r, what), list) else n for r in records)
        for what in ("calls", "rules", "tried", "wrong", "missing")
    }
    return [
        f"{len(records)} operators, {len(ruled)} of them with rules, {sums['calls']} calls",
        f"{sums['rules']} rules, {sums['tried']} rows of placements tried",
        f"{sums['wrong']} wrong, {sums['missing']} missing, "
        f"{sum(r.left_out.total() for r in records)} left out for a reason",
    ]


def page(records: Iterable[Record], settings: str) -> str:
    """The whole page.

    Args:
        records: one for each operator.
        settings: options of `make rules` that these were judged with.
    """
    records = sorted(records, key=lambda record: record.name)
    reasons: dict[str, list[str]] = {}
    for record in records:
        for why in record.left_out:
            reasons.setdefault(why, []).append(f"`{record.name.removeprefix('aten.')}`")
    findings = [text for record in records for text in (*record.wrong, *record.missing)]
    return (
        "\n".join(
            [
                "# Placement rules, judged",
                "",
                f'Written by `make rules ARGS="{settings}"`.',
                *_TEXT,
                "",
                *(f"- {line}" for line in summary(records)),
                "",
                "| operator | class | calls | rules | tried | wrong | missing | left out |",
                "|---|---|---|---|---|---|---|---|",
                *map(_row, records),
                "",
                "## Left out",
                "",
                *(f"- {why}: {', '.join(names)}" for why, names in sorted(reasons.items())),
                "",
                "## Not judged",
                "",
                "- operators that draw random numbers: `tests/test_random.py` compares them with torch",
                "- in-place views and uninitialised memory: tests of their own",
                *(f"- `{part}` in the name: {why}" for part, why in NOT_JUDGED.items()),
                *(["", "## Wrong or missing", "", *(f"- {text}" for text in findings)] if findings else []),
            ]
        )
        + "\n"
    )


def _row(record: Record) -> str:
    counts = [record.calls, record.rules, record.tried, len(record.wrong), len(record.missing)]
    counts.append(record.left_out.total())
    cells = [f"`{record.name}`", record.kind, *(str(count or "") for count in counts)]
    return f"| {' | '.join(cells)} |"
