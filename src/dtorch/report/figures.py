"""Figures of a report as PNG files, drawn by matplotlib: rooflines, memory over time, time by module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtorch.report import roofline, views
from dtorch.report.assets import light_colours
from dtorch.report.extra import need
from dtorch.report.quantity import quantity, share

COLOURS = light_colours()
INK, MUTED, LINE, ALARM = (COLOURS[name] for name in ("ink", "muted", "line", "alarm"))
MARKERS = {"compute": "o", "memory": "s", "communication": "D", "launch": "^"}

_STYLE = {
    "font.size": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "legend.frameon": False,
    # Names from the user's code are text, not formulas.
    "text.parse_math": False,
}


def save_png(data: views.Data, folder: str | Path) -> list[Path]:
    """Write roofline.png, bytes.png, memory.png and modules.png, those that there is something to show of.

    Returns:
        The files written.

    Raises:
        DtorchError: matplotlib is not installed.
    """
    matplotlib, figure = need("matplotlib"), need("matplotlib.figure")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, draw, size in (
        ("roofline", draw_roofline, (9, 5.5)),
        ("bytes", draw_moves, (9, 5.5)),
        ("memory", draw_memory, (9, 4.5)),
        ("modules", draw_modules, (9, 5.5)),
    ):
        with matplotlib.rc_context(_STYLE):
            drawn = figure.Figure(figsize=size, dpi=150, layout="constrained")
            if draw(data, drawn.subplots()):
                written.append(target / f"{name}.png")
                drawn.savefig(written[-1])
    return written


def draw_roofline(data: views.Data, axes: Any) -> bool:
    """Draw operators with FLOPs below their roofs; False where there are none with bytes and a time."""
    labels = f"{data['title']}: roofline", "intensity, FLOPs per byte moved", ""
    return _draw_roofs(axes, roofline.roofs(data), roofline.points(data), labels, "FLOP/s")


def draw_moves(data: views.Data, axes: Any) -> bool:
    """Draw all other operators below the roofs of memory and link; False where there are none with a time."""
    labels = f"{data['title']}: operators without FLOPs", "bytes moved or received", "B"
    return _draw_roofs(axes, roofline.byte_roofs(data), roofline.moves(data), labels, "B/s")


def _draw_roofs(
    axes: Any,
    roofs: list[roofline.Roof],
    points: list[roofline.Point],
    labels: tuple[str, str, str],
    unit: str,
) -> bool:
    if not points:
        return False
    known = [point.x for point in points]
    ridges = [roof.ridge for roof in roofs if roof.ridge]
    left, right = min(known + [ridge / 25 for ridge in ridges]) / 4, max(known + ridges) * 30
    title, across, across_unit = labels
    axes.set(xscale="log", yscale="log", xlim=(left, right), title=title, xlabel=across)
    for roof, dash in zip(roofs, ("-", "--", ":", "-.") * len(roofs), strict=False):
        axes.plot([left, roof.ridge or left, right], [roof.at(left), roof.peak, roof.peak], dash, color=MUTED)
        text = f"{roof.name} {quantity(roof.peak, unit)}"
        # Where operators are few: at the right of an intensity, at the left of bytes.
        place, side = ((right, roof.peak), "right") if roof.ridge else ((left, roof.peak), "left")
        axes.annotate(text, place, (6 if side == "left" else 0, 5), textcoords="offset points", ha=side)
        if roof.ridge:
            line = {"arrowstyle": "-", "color": MUTED}
            ridge = f"ridge {quantity(roof.ridge)} FLOP/B"
            axes.annotate(
                ridge,
                (roof.ridge, roof.peak),
                (-46, 18),
                textcoords="offset points",
                ha="right",
                color=MUTED,
                arrowprops=line,
            )
    longest = max(point.time for point in points)
    for bound in views.BOUNDS:
        mine = [point for point in points if point.bound == bound]
        if mine:
            # Markers' areas are their shares of the time, the smallest still to be seen.
            sizes = [max(8.0, 900 * point.time / longest) for point in mine]
            places = [point.x for point in mine], [point.rate for point in mine]
            look = {"color": COLOURS[bound], "marker": MARKERS[bound], "edgecolor": "white", "alpha": 0.75}
            axes.scatter(*places, s=sizes, label=f"bound by {bound}", linewidth=0.6, **look)
    _measured(points, axes)
    axes.set_ylabel("rate of one device")
    _decimal(axes.xaxis, across_unit)
    _decimal(axes.yaxis, unit)
    axes.grid(True)
    _legend(axes)
    return True


def _measured(points: list[roofline.Point], axes: Any) -> None:
    """Crosses of measured rates; those above their roof stand out, and the figure is high enough for them."""
    for above, look in (
        (False, {"marker": "x", "color": INK, "label": "measured"}),
        (True, {"marker": "^", "facecolor": "none", "edgecolor": ALARM, "label": "measured above its roof"}),
    ):
        mine = [point for point in points if point.measured_rate is not None and point.above is above]
        if mine:
            axes.scatter([p.x for p in mine], [p.measured_rate for p in mine], s=70, zorder=3, **look)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 2)


def draw_memory(data: views.Data, axes: Any) -> bool:
    """Draw memory over time, stacked by what holds it; False where nothing is held."""
    steps = data["memory"]
    peak = views.memory_peak(data)
    if not steps or peak is None:
        return False
    timed = data["device"] is not None
    across = [step["t_s"] if timed else step["index"] for step in steps]
    names = [name for name in views.CATEGORIES if any(step["bytes"].get(name) for step in steps)]
    heights = [[step["bytes"].get(name, 0) for step in steps] for name in names]
    colours = [COLOURS[name] for name in names]
    axes.stackplot(across, *heights, labels=names, colors=colours, step="post", linewidth=0)
    held = sum(peak["bytes"].values())
    title = f"{data['title']}: memory, peak {quantity(held, 'B')}"
    capacity = data["device"]["capacity"] if timed else None
    if capacity:
        title += f" of {quantity(capacity, 'B')}"
        # A capacity far above the peak would flatten the figure; the title tells it.
        if capacity < 3 * held:
            axes.axhline(capacity, color=ALARM, linestyle="--", label="capacity")
    axes.set(title=title, xlabel="predicted time" if timed else "operator", xlim=(across[0], across[-1]))
    if timed:
        _decimal(axes.xaxis, "s")
    _decimal(axes.yaxis, "B")
    axes.grid(True, axis="y")
    _legend(axes)
    return True


def draw_modules(data: views.Data, axes: Any) -> bool:
    """Draw time by module as bars, parted by what bounds it; False where nothing has a time."""
    rows = [row for row in views.by_module(data) if row.time][::-1]
    if not rows:
        return False
    whole = sum(row.time for row in rows)
    names = [row.name if len(row.name) <= 44 else f"...{row.name[-41:]}" for row in rows]
    starts = [0.0] * len(rows)
    for bound in views.BOUNDS:
        widths = [row.by_bound.get(bound, 0.0) for row in rows]
        if any(widths):
            axes.barh(range(len(rows)), widths, left=starts, color=COLOURS[bound], label=f"bound by {bound}")
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    for place, row in enumerate(rows):
        text = f"{quantity(row.time, 's')}, {share(row.time, whole)}"
        axes.annotate(text, (row.time, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(range(len(rows)), names)
    axes.set(title=f"{data['title']}: time by module", xlabel="predicted time of the busiest device")
    axes.set_xlim(0, 1.25 * max(row.time for row in rows))
    _decimal(axes.xaxis, "s")
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x")
    _legend(axes)
    return True


def _decimal(axis: Any, unit: str) -> None:
    """Ticks with decimal prefixes."""
    ticker = need("matplotlib.ticker")
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: quantity(value, unit)))
    if axis.get_scale() == "log":
        axis.set_minor_formatter(ticker.NullFormatter())


def _legend(axes: Any) -> None:
    """A legend below the figure, its markers of one size."""
    legend = axes.figure.legend(loc="outside lower center", ncols=6, fontsize=9)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):
            handle.set_sizes([45])
