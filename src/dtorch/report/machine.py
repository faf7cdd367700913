"""What a calibration found, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from dtorch.perf.calibration import Calibration
from dtorch.report.extra import need
from dtorch.report.quantity import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CONTRACTIONS = ("mm", "convolution", "convolution_backward", "_scaled_dot_product_flash_attention_for_cpu")
_PASSES = ("add", "exp", "gelu", "_softmax", "native_layer_norm", "sum")


def machine_table(found: Calibration) -> Table:
    """Peaks, bandwidths, the cost of a call, moves between devices."""
    table = Table(title=f"{_title(found)}, torch {found.machine.torch}", title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    for dtype, peak in found.peaks.items():
        table.add_row(f"largest rate of a product, {dtype}", quantity(peak, "FLOP/s"))
    best = max(speed for _, speed in found.bandwidths)
    table.add_row("bandwidth within the caches", quantity(best, "B/s"))
    table.add_row("bandwidth of memory", quantity(found.off_chip, "B/s"))
    table.add_row("rho, the one over the other", f"{best / found.off_chip:.2f}")
    table.add_row("working sets up to this size are in the caches", quantity(found.cache_bytes, "B"))
    table.add_row("fixed cost of a call, a", f"{1e6 * found.fixed_s:.2f} us")
    table.add_row("cost of an element, b", f"{1e12 * found.element_s:.1f} ps")
    table.add_row("half of a call is fixed at n* elements", f"{found.fixed_s / found.element_s:,.0f}")
    size, time = found.sent[-1]
    table.add_row("moves between virtual devices", quantity(size / time, "B/s"))
    table.add_row("operators measured against size", str(len(found.points)))
    return table


def _title(found: Calibration) -> str:
    machine = found.machine
    threads = "one thread" if machine.threads == 1 else f"{machine.threads} threads"
    return f"{machine.processor}, {threads}, {machine.date}"


def save_machine_png(found: Calibration, path: str | Path) -> Path:
    """Four panels: bandwidth over working sets, rates of contractions, operators over bytes, moves.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    need("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained", dpi=110)
    figure.suptitle(_title(found), fontsize=11)
    (bandwidth, rates), (passes, moves) = figure.subplots(2, 2)
    _line(bandwidth, "working set, bytes", "read and written, GB/s")
    sizes, speeds = zip(*found.bandwidths, strict=True)
    bandwidth.plot(sizes, [speed / 1e9 for speed in speeds], "o-", color="#30638e")
    bandwidth.axvline(found.cache_bytes, ls=":", color="#6b6b6b", lw=1)
    _line(rates, "FLOPs of a call", "GFLOP/s")
    for name in _CONTRACTIONS:
        points = found.points.get(f"aten.{name} float32", ())
        rates.plot(
            [p.work for p in points],
            [p.work / p.seconds / 1e9 for p in points],
            "o",
            ms=4,
            label=name.strip("_"),
        )
    _line(passes, "bytes touched", "us")
    for name in _PASSES:
        points = found.points.get(f"aten.{name} float32", ())
        passes.plot(
            [p.work for p in points], [1e6 * p.seconds for p in points], "o-", ms=3, label=name.strip("_")
        )
    passes.axhline(1e6 * found.fixed_s, ls="--", color="#6b6b6b", lw=1)
    for axes in (rates, passes):
        if axes.lines[1:]:
            axes.legend(frameon=False, fontsize=7)
    _line(moves, "bytes moved between devices", "us")
    moves.plot(
        [size for size, _ in found.sent], [1e6 * time for _, time in found.sent], "o-", color="#2a7f62"
    )
    figure.savefig(path)
    return Path(path)


def _line(axes: Axes, x: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.2)
