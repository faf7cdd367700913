"""docs/coverage.md out of the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dtorch.report.quantity import quantity
from tests.coverage.database import CANNOT, ELIGIBILITY, KINDS
from tests.coverage.records import Record


def summary(records: Iterable[Record]) -> list[str]:
    """The totals, as lines."""
    records = list(records)
    tried = [r for r in records if r.ineligible is None]
    floats = [r for r in tried if r.kind == "float32"]
    cases, backwards = sum(r.cases.total() for r in tried), sum(r.backwards for r in tried)
    failed = sum((r.failed for r in tried), Counter())
    cut, whole, missed = (sum(getattr(r, name) for r in tried) for name in ("cut", "whole", "missed"))
    return [
        f"{len(floats)} entries of {len({r.name for r in records})} are eligible in float32, "
        f"{sum(r.backwards > 0 for r in floats)} with a backward; "
        f"{len({r.name for r in tried})} in some kind of dtype",
        f"{cases} cases forward, {failed['forward']} differ, {sum(r.listed for r in tried)} cannot work",
        f"{backwards} cases backward, {failed['backward']} differ",
        f"{cut} cases that are right have a cut tensor: outputs all whole in {_percent(whole, cut)}, "
        f"although they could have stayed cut in {_percent(missed, cut)}",
    ]


def page(records: Iterable[Record]) -> str:
    """The whole page."""
    records = sorted(records, key=lambda r: (r.name, list(KINDS).index(r.kind)))
    tried = [r for r in records if r.ineligible is None]
    names = sorted({r.name for r in records})
    by_name = {name: [r for r in tried if r.name == name] for name in names}
    lines = [
        "# Operators of PyTorch's database",
        "",
        "Written by `make coverage`, which tries every entry of `op_db` (`torch.testing`) forward and",
        "backward, as function, method, in-place and with `out=`, on meshes [1], [4] and [2, 2], every",
        "tensor cut along its first dim, its last, whole, or placed by chance, and compares with plain",
        "torch: on one device bit for bit, on several within rounding (`tests/coverage/reference.py`).",
        "",
        *(f"- {line}" for line in summary(records)),
        "",
        f"In words, {ELIGIBILITY}.",
        "The predicate is `refused` in `tests/coverage/database.py`, and `reference` in `reference.py`.",
        "",
        "Columns: cases tried in each kind of dtype; what differs; of the right cases with a cut tensor,",
        "those with a cut output, and those whose outputs are whole although a trial on the shards finds",
        "them cut (missed); what was communicated, in how many cases, and the bytes that all devices",
        "received in these cases together.",
        "",
        "| operator | " + " | ".join(KINDS) + " | differs | stays cut | missed | communicated |",
        "|" + "---|" * (len(KINDS) + 5),
        *(_row(name, found) for name, found in by_name.items() if found),
        "",
        "## Cannot work",
        "",
        *_listed(),
        "",
        "## Not eligible",
        "",
        "| operator | why |",
        "|---|---|",
        *_ineligible(names, by_name, records),
    ]
    faults = [f"- `{r.name}` {r.kind}: {text}" for r in tried for text in r.faults]
    return "\n".join([*lines, *(["", "## Differs", "", *faults] if faults else [])]) + "\n"


def _row(name: str, records: Sequence[Record]) -> str:
    kinds = {r.kind: str(r.cases.total()) for r in records}
    failed = sum((r.failed for r in records), Counter())
    cut, whole, missed = (sum(getattr(r, what) for r in records) for what in ("cut", "whole", "missed"))
    sent, received = (sum((getattr(r, what) for r in records), Counter()) for what in ("sent", "sent_bytes"))
    cells = [
        f"`{name}`",
        *(kinds.get(kind, "") for kind in KINDS),
        str(failed.total() or ""),
        f"{cut - whole} of {cut}" if cut else "",
        str(missed or ""),
        ", ".join(f"{kind} {count}{_size(received[kind])}" for kind, count in sorted(sent.items())),
    ]
    return "| " + " | ".join(cells) + " |"


def _size(received: int) -> str:
    """Bytes in brackets; nothing where a record of an earlier version does not tell."""
    return f" ({quantity(received, 'B')})" if received else ""


def _listed() -> list[str]:
    forms = {name: f" ({cannot.form})" if cannot.form else "" for name, cannot in CANNOT.items()}
    return [f"- `{name}`{forms[name]}: {CANNOT[name].why}." for name in sorted(CANNOT)]


def _ineligible(
    names: Sequence[str], by_name: dict[str, list[Record]], records: Sequence[Record]
) -> list[str]:
    why: dict[str, list[str]] = {name: [] for name in names if not by_name[name]}
    for record in records:
        if record.name in why and record.ineligible not in why[record.name]:
            why[record.name].append(str(record.ineligible))
    return [f"| `{name}` | {'; '.join(reasons).replace('|', '/')} |" for name, reasons in why.items()]


def _percent(part: int, total: int) -> str:
    return f"{part} ({100 * part / total:.1f} %)" if total else "0"
