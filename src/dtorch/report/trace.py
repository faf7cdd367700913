"""The timelines of a report in Chrome's trace format, which Perfetto (ui.perfetto.dev) shows too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtorch.report import views

# Processes of the trace: predicted streams and memory in one, measured times in the other.
_PREDICTED, _MEASURED = 1, 2


def save_trace(data: views.Data, path: str | Path) -> None:
    """Write the trace of a report as JSON."""
    Path(path).write_text(json.dumps(trace(data), allow_nan=False), encoding="utf-8")


def trace(data: views.Data) -> dict[str, Any]:
    """Streams as threads, operators as slices, memory as a counter; microseconds."""
    events = [*_threads(data), *_slices(data), *_memory(data)]
    return {
        "displayTimeUnit": "ns",
        "otherData": {name: data[name] for name in ("title", "dtorch", "torch", "date")},
        "traceEvents": events,
    }


def _numbers(data: views.Data) -> dict[str, tuple[int, int]]:
    """Stream -> process and thread; the measured ones are a process of their own."""
    streams = dict.fromkeys(segment.stream for segment in views.timeline(data, limit=None))
    return {
        name: (_MEASURED if name == "measured" else _PREDICTED, number)
        for number, name in enumerate(sorted(streams), 1)
    }


def _threads(data: views.Data) -> Iterator[dict[str, Any]]:
    numbers = _numbers(data)
    device = data["device"]["name"] if data["device"] else "no device"
    for process, name in ((_PREDICTED, f"predicted, {device}"), (_MEASURED, "measured")):
        if any(process == one for one, _ in numbers.values()):
            yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for stream, (process, thread) in numbers.items():
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": stream}}


def _slices(data: views.Data) -> Iterator[dict[str, Any]]:
    numbers = _numbers(data)
    by_index = {operator["index"]: operator for operator in data["operators"]}
    shown = ("describe", "module", "phase", "source", "flops_max_device", "traffic_bytes_max_device")
    for segment in views.timeline(data, limit=None):
        operator = by_index[segment.first]
        process, thread = numbers[segment.stream]
        args = {name: operator[name] for name in (*shown, "sent_bytes_max_device", "bound")}
        yield {
            "ph": "X",
            "name": segment.label,
            "cat": operator["phase"],
            "pid": process,
            "tid": thread,
            "ts": segment.start * 1e6,
            "dur": segment.time * 1e6,
            "args": args,
        }


def _memory(data: views.Data) -> Iterator[dict[str, Any]]:
    for step in data["memory"]:
        if step["t_s"] is not None:
            yield {
                "ph": "C",
                "name": "memory",
                "pid": _PREDICTED,
                "ts": step["t_s"] * 1e6,
                "args": step["bytes"],
            }
