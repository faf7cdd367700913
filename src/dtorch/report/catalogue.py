"""Tables of what dtorch knows: devices, and operator types with their rules."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group as Stack
from rich.text import Text

from dtorch.op.operator import Operator
from dtorch.op.registry import torch_operators
from dtorch.perf.device import Device
from dtorch.report.quantity import quantity
from dtorch.report.terminal import new_table

_NOTE = (
    "A rule names the dims of each tensor, any of which may be cut over a mesh axis. A dim with ! may not "
    "be, one with ~ may, at the price of a small reduction. Where words stand, the rule depends on the call, "
    "and the module named tells it. Element-wise operators that are not listed are "
    "of type BroadcastBinary or BaseMath; all others run on whole tensors, as General."
)

_PEAKS = ("fp32", "tf32", "bf16", "fp16", "fp8")


def devices_table(devices: Iterable[Device]) -> Stack:
    """One row per device: dense peaks in TFLOP/s, bandwidth, capacity, the link to its like and its rate."""
    found = new_table("Devices", ("device",), (*_PEAKS, "memory/s", "memory", "link/s"))
    found.columns[0].no_wrap = True
    found.padding = (0, 1, 0, 0)
    found.add_column("link", no_wrap=True)
    found.box = box.SIMPLE_HEAD  # eleven columns leave no room for lines between them
    for device in devices:
        peaks = (device.peaks.get(name) for name in _PEAKS)
        rates = ("-" if peak is None else f"{peak / 1e12:.4g}" for peak in peaks)
        sizes = (device.bandwidth, device.capacity, device.link.bandwidth)
        found.add_row(
            Text(device.name), *rates, *(quantity(size, "B") for size in sizes), Text(device.link.name)
        )
    return Stack(found, "Dense peaks in TFLOP/s, from data sheets; a link's rate is that of one direction.")


def operators_table(word: str = "") -> Stack:
    """One row per type and rule: the torch operators it serves and its dims line.

    Args:
        word: only types and torch operators that contain it; case does not matter.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for name, cls in sorted(torch_operators().items(), key=lambda item: (item[1].type, item[0])):
        if word.lower() in f"{cls.type} {name}".lower():
            rows.setdefault((cls.type, _rule(cls, name)), []).append(name.removeprefix("aten."))
    if not rows:
        return Stack(
            Text(f"No operator type and no torch operator with rules of its own contains {word!r}."),
            Text(_NOTE),
        )
    title = "Operator types" + (f" with {word!r}" if word else "")
    found = new_table(title, ("type", "torch operators, aten.", "rule"), ())
    before = ""
    for (kind, rule), names in rows.items():
        found.add_row(Text("" if kind == before else kind), Text(", ".join(names)), Text(rule))
        before = kind
    return Stack(found, Text(_NOTE))


def _rule(cls: type[Operator], name: str) -> str:
    """The dims line of a torch operator; where a class makes it from the call, where that is told."""
    dims = cls.rules.get(name)
    if dims is not None:
        return dims.line
    words = (cls.__doc__ or "").strip().partition("\n")[0].removesuffix(".")
    return f"{words}: see {cls.__module__}"
