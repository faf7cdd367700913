"""Tables for the terminal, 100 columns wide: what ran, what it cost, what was sent, where tensors live.

The first four show a recorded graph or tensors that are there; `report_tables` shows the dict of a report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from dtorch.graph.logical_graph import LogicalGraph, communication_of
from dtorch.report import roofline, views
from dtorch.report.quantity import quantity, share


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
    table = new_table(title, ("operator",), ("uses", "FLOPs", "bytes"))
    table.add_column("communication: kind@axis, bytes", max_width=48)
    for name, row in sorted(rows.items(), key=lambda item: (-item[1].flops, -item[1].bytes)):
        flops = _flops(row)
        sent_text = "\n".join(f"{what} {quantity(size, 'B')}" for what, size in sorted(row.sent.items()))
        table.add_row(name, str(row.count), flops, quantity(row.bytes, "B"), sent_text)
    return table


def communication_table(graph: LogicalGraph, title: str = "Communication") -> Table:
    """One row per kind, axis and cause; bytes received by all devices together."""
    counts: dict[tuple[str, str, str, str], views.Exchange] = {}
    for sent in graph.communications():
        key = views.exchange_key(sent.kind, sent.axes, sent.implicit, sent.cause)
        entry = counts.setdefault(key, views.Exchange(*key))
        entry.times += 1
        entry.bytes += sent.bytes
    return exchanges_table(sorted(counts.values(), key=lambda entry: -entry.bytes), title)


def exchanges_table(rows: Iterable[views.Exchange], title: str, whole: float | None = None) -> Table:
    """One row per exchange; with the seconds of all operators, their time and share too."""
    table = new_table(title, ("kind", "axis", "chosen", "for"), ("times", "bytes"))
    for heading in ("time", "share") if whole else ():
        table.add_column(heading, justify="right")
    for row in rows:
        timed = (quantity(row.time, "s"), share(row.time, whole)) if whole else ()
        what = (row.kind, row.axes, row.chosen, row.cause)
        table.add_row(*what, str(row.times), quantity(row.bytes, "B"), *timed)
    return table


def new_table(title: str, left: Iterable[str], right: Iterable[str]) -> Table:
    """An empty table, its title over its left edge; columns of text, then of numbers."""
    table = Table(title=Text(title), title_justify="left")
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def tensors_table(tensors: Iterable[tuple[str, torch.Tensor]], title: str = "Where tensors live") -> Table:
    """One row per tensor: shape, placements by axis name, bytes of the whole and of the largest device."""
    table = new_table(title, ("tensor", "shape", "placements"), ("bytes", "largest device"))
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
    table = new_table(title, ("what",), ("difference", "bound", ""))
    for name, difference, bound in rows:
        table.add_row(name, f"{difference:.2e}", f"{bound:.0e}", "ok" if difference <= bound else "TOO LARGE")
    return table


# ---- of a report

# Rows a table of a report shows; the rest becomes one row.
_ROWS = 20


def report_tables(data: views.Data) -> Stack:
    """The tables of a report: summary, kinds, modules, communication, unknown prices; empty ones left out."""
    # A hundred columns have no room for one more.
    measured = views.measured(data) is not None
    kinds = ("uses", "FLOPs", "bytes", *(("time", "measured") if measured else ("received", "time")), "share")
    modules = ("FLOPs", *(("time", "measured") if measured else ("bytes", "time")), "share")
    found = [
        summary_table(data),
        groups_table(views.by_kind(data), "Operators by kind, of the busiest device", "operator", kinds),
        groups_table(views.by_module(data), "Time by module, of the busiest device", "module", modules),
    ]
    sent = views.exchanges(data)
    if sent:
        title = "Communication, received by the busiest device"
        found.append(exchanges_table(sent, title, sum(views.by_bound(data).values())))
    if data["unknown"]:
        found.append(unknown_table(data))
    return Stack(*found)


def summary_table(data: views.Data) -> Table:
    """One row per figure, of the whole program and of the device that has most."""
    total, device, mesh = data["total"], data["device"], data["mesh"]
    table = new_table(data["title"], ("",), ("whole program", "busiest device"))
    table.add_row("FLOPs", quantity(total["flops"]), quantity(total["flops_max_device"]))
    if total["recomputed_flops"]:
        table.add_row("  beside them, scores again", quantity(total["recomputed_flops"]), "")
    moved = sum(operator["traffic_bytes_max_device"] or 0 for operator in data["operators"])
    table.add_row("bytes moved", quantity(total["traffic_bytes"], "B"), quantity(moved, "B"))
    sent = total["communication_bytes"], total["communication_bytes_max_device"]
    table.add_row("bytes received", *(quantity(value, "B") for value in sent))
    table.add_row("kernels", "", f"{total['kernels']:,}")
    table.add_row("peak memory", "", quantity(total["peak_memory_bytes"], "B"))
    if device:
        table.add_row(
            "  of its capacity", "", share(total["peak_memory_bytes"] or 0, device["capacity"] or 0)
        )
    table.add_row("time", "", quantity(total["time_s"], "s"))
    measured = views.measured(data)
    if measured is not None:
        table.add_row("time measured, in sum", "", quantity(measured, "s"))
    used = roofline.utilisation(data)
    if used is not None:
        table.add_row(f"  of the {roofline.roofs(data)[0].name} roof", "", share(used, 1.0))
    bounds = views.by_bound(data)
    for name, seconds in bounds.items():
        table.add_row(f"  bound by {name}", "", share(seconds, sum(bounds.values())))
    table.add_row("operators", f"{len(data['operators']):,}", "")
    table.add_row("  of unknown price", f"{total['unknown']:,}", "")
    table.caption = f"{mesh_text(mesh)}; {device_text(device)}"
    table.caption_justify = "left"
    return table


def mesh_text(mesh: views.Entry) -> str:
    """A mesh in words: dp=2 x tp=8, or 2 x 8 without names."""
    if all(size == 1 for size in mesh["shape"]):
        return "one device"
    names = mesh["dim_names"] or [""] * len(mesh["shape"])
    # Axes without names are numbered.
    sizes = zip(names, mesh["shape"], strict=True)
    return " x ".join(str(size) if not name or name.isdigit() else f"{name}={size}" for name, size in sizes)


def device_text(device: views.Entry | None) -> str:
    """A device in words, and which roofs are meant."""
    return "no device, so no times" if device is None else f"{device['name']}, {device['source']} roofs"


def groups_table(rows: list[views.Group], title: str, heading: str, columns: tuple[str, ...]) -> Table:
    """One row per group, with the columns asked for, and what bounds most of its time.

    Columns are uses, FLOPs, bytes, received, time, measured, share.
    """
    whole = sum(row.time for row in rows)
    table = new_table(title, (heading,), columns)
    table.add_column("bound")
    shown = rows if len(rows) <= _ROWS + 1 else rows[:_ROWS]
    rest = rows[len(shown) :]
    for row in (*shown, *([views.merged(rest, f"{len(rest)} others")] if rest else [])):
        cells = {
            "uses": str(row.uses),
            "FLOPs": _flops(row),
            "bytes": quantity(row.traffic, "B"),
            "received": quantity(row.sent or None, "B"),
            "time": quantity(row.time or None, "s"),
            "measured": quantity(row.measured or None, "s"),
            "share": share(row.time, whole),
        }
        table.add_row(Text(row.name), *(cells[name] for name in columns), row.bound or "-")
    return table


def _flops(row: views.Group | _Row) -> str:
    return quantity(row.flops) if row.has_flops else "-" if row.known else "?"


def unknown_table(data: views.Data) -> Table:
    """Operators whose price, or part of it, nobody could work out: they count 0 FLOPs above."""
    table = new_table("Unknown prices: these count no FLOPs above", ("operator",), ("times",))
    for entry in data["unknown"]:
        table.add_row(Text(entry["describe"]), str(entry["count"]))
    return table
