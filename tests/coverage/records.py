"""What was found, one record for each entry and kind of dtype, in files of one JSON line each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAX_FAULTS = 4
"""Texts of faults kept for one record."""


@dataclass
class Record:
    """An entry of the database in one kind of dtype.

    Attributes:
        name: of the entry.
        kind: of dtype.
        ineligible: why nothing was tried; else None.
        reasons: why samples or forms were not tried -> how many.
        cases: form -> cases tried.
        listed: cases that cannot work, by the list of reasons.
        faults: cases of the forward, of the backward, that differ: texts, and in `failed` their numbers.
        failed: "forward", "backward" -> cases.
        backwards: cases with a backward.
        cut: cases that are right and have a cut tensor and a tensor among the outputs.
        whole: of these, those whose outputs are all whole.
        missed: of these, those that could have stayed cut.
        sent: kind of exchange -> cases that needed it.
        sent_bytes: kind of exchange -> bytes received in all these cases, by all devices together.
        seconds: spent.
    """

    name: str
    kind: str
    ineligible: str | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    listed: int = 0
    faults: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    backwards: int = 0
    cut: int = 0
    whole: int = 0
    missed: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """pass, listed, fails or ineligible."""
        if self.ineligible is not None:
            return "ineligible"
        return "fails" if self.failed else "listed" if self.listed else "pass"

    def add_fault(self, where: str, text: str) -> None:
        """Count a case that differs and keep the first few texts."""
        self.failed[where] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(text[:600])


def append(path: Path, record: Record) -> None:
    """Add a record to a file, at once on disk whole."""
    with path.open("a") as file:
        file.write(json.dumps(vars(record)) + "\n")


def load(folder: Path) -> dict[tuple[str, str], Record]:
    """All records of the files of a folder; the last of an entry and kind counts."""
    found: dict[tuple[str, str], Record] = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime):
        for record in _read(path.read_text().splitlines()):
            found[record.name, record.kind] = record
    return found


def _read(lines: Iterable[str]) -> Iterator[Record]:
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue  # a run was stopped while it wrote
        names = ("reasons", "cases", "failed", "sent", "sent_bytes")
        counters = {name: Counter(values.get(name, {})) for name in names}
        yield Record(**{**values, **counters})
