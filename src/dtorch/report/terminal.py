"""Tables for the terminal, 100 columns wide: what ran, what it cost, what was sent, where tensors live."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from rich.table import Table

from dtorch.graph.logical_graph import LogicalGraph, communication_of

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: float | None, unit: str = "") -> str:
    """12.3 MB, with decimal prefixes; a dash for None."""
    if value is None:
        return "-"
    for scale, prefix in _UNITS:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()


@dataclass
class _Row:
    count: int = 0
    flops: int = 0
    has_flops: bool = False
    bytes: int = 0
    known: bool = True
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def operators_table(graph: LogicalGraph, title: str = "Operators") -> Table:
    """One row per kind of operator: uses, FLOPs, bytes touched, and what it made devices send.

    Conversions that dtorch chose are entered at the operator that needed them and marked implicit.
    """
    rows: dict[str, _Row] = defaultdict(_Row)
    prices: dict[int, tuple] = {}
    for node in graph:
        row = rows[node.operator.kind_name()]
        price = prices.setdefault(id(node.operator), (node.operator, node.operator.price()))[1]
        row.count += 1
        row.flops += price.flops or 0
        row.has_flops |= price.flops is not None
        row.bytes += price.traffic_bytes or 0
        row.known &= price.known
        sent = communication_of(node)
        if sent is not None:
            implicit = ", implicit" if sent.implicit else ""
            row.sent[f"{sent.kind}@{sent.axes}{implicit}"] += sent.bytes
    table = Table(title=title, title_justify="left")
    table.add_column("operator")
    for heading in ("uses", "FLOPs", "bytes"):
        table.add_column(heading, justify="right")
    table.add_column("communication: kind@axis, bytes", max_width=48)
    for name, row in sorted(rows.items(), key=lambda item: (-item[1].flops, -item[1].bytes)):
        flops = quantity(row.flops) if row.has_flops else ("-" if row.known else "?")
        sent_text = "\n".join(f"{what} {quantity(size, 'B')}" for what, size in sorted(row.sent.items()))
        table.add_row(name, str(row.count), flops, quantity(row.bytes, "B"), sent_text)
    return table


def communication_table(graph: LogicalGraph, title: str = "Communication") -> Table:
    """One row per kind, axis and cause."""
    counts: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for sent in graph.communications():
        chosen = (
            "implicit" if sent.implicit else "of the operator" if sent.kind == "statistics" else "asked for"
        )
        entry = counts[sent.kind, sent.axes, chosen, sent.cause or "gradient or user"]
        entry[0] += 1
        entry[1] += sent.bytes
    table = Table(title=title, title_justify="left")
    for heading in ("kind", "axis", "chosen", "for"):
        table.add_column(heading)
    table.add_column("times", justify="right")
    table.add_column("bytes", justify="right")
    for key, (times, size) in sorted(counts.items(), key=lambda item: -item[1][1]):
        table.add_row(*key, str(times), quantity(size, "B"))
    return table


def tensors_table(tensors: Iterable[tuple[str, torch.Tensor]], title: str = "Where tensors live") -> Table:
    """One row per tensor: shape, placements by axis name, bytes of the whole and of the largest device."""
    table = Table(title=title, title_justify="left")
    for heading in ("tensor", "shape", "placements"):
        table.add_column(heading)
    table.add_column("bytes", justify="right")
    table.add_column("largest device", justify="right")
    for name, tensor in tensors:
        spec = tensor._operand.spec  # type: ignore[attr-defined]
        names = spec.mesh.dim_names or tuple(map(str, range(spec.mesh.ndim)))
        places = ", ".join(f"{axis}: {_short(p)}" for axis, p in zip(names, spec.placements, strict=True))
        largest = max(spec.local_nbytes(coord) for coord in spec.mesh.coords)
        table.add_row(name, str(list(spec.shape)), places, quantity(spec.nbytes, "B"), quantity(largest, "B"))
    return table


def _short(placement: object) -> str:
    return str(placement).removesuffix("()")


def differences_table(rows: Iterable[tuple[str, float, float]], title: str = "Against plain torch") -> Table:
    """Name, greatest difference, bound; ok or TOO LARGE."""
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for heading in ("difference", "bound", ""):
        table.add_column(heading, justify="right")
    for name, difference, bound in rows:
        table.add_row(name, f"{difference:.2e}", f"{bound:.0e}", "ok" if difference <= bound else "TOO LARGE")
    return table
