"""The five figures: traffic, scores, forms of a chain, the floor of a call, launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.figure import Figure

from dtorch.lab.result import Result
from dtorch.lab.settings import Settings
from dtorch.lab.timelines import model

BEFORE, AFTER, LIMIT, OTHER = "#d1495b", "#2a7f62", "#6b6b6b", "#30638e"
SHOWN_KERNELS = 12


def save_figures(results: Mapping[str, Result], settings: Settings, folder: Path) -> dict[str, Path]:
    """Draws each figure whose experiments were run; its path by title."""
    paths = {}
    for number, (title, (needs, draw)) in enumerate(FIGURES.items(), 1):
        if all(letter in results for letter in needs):
            figure = Figure(figsize=(10, 3.8), layout="constrained", dpi=110)
            figure.suptitle(title, fontsize=11)
            draw(figure, results, settings)
            paths[title] = folder / f"{number}_{title.partition(':')[0].lower().replace(' ', '_')}.png"
            figure.savefig(paths[title])
    return paths


def _traffic(figure: Figure, results: Mapping[str, Result], settings: Settings) -> None:
    axes = figure.subplots()
    rows = results["A"].tables[0].rows
    for place, row in enumerate(rows):
        axes.barh(place + 0.2, row["unfused"], 0.38, color=BEFORE, label="unfused" if not place else None)
        axes.barh(place - 0.2, row["fused"], 0.38, color=AFTER, label="fused" if not place else None)
        axes.text(row["unfused"] * 1.05, place + 0.2, f"{row['unfused']:,.1f} MiB", va="center", fontsize=8)
        axes.text(
            row["fused"] * 1.05,
            place - 0.2,
            f"{row['fused']:,.1f} MiB, {row['ratio']:g}x less",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    _logarithmic(axes, x="MiB moved (modelled)")
    axes.set_xlim(right=max(row["unfused"] for row in rows) * 8)
    axes.legend(loc="lower right", frameon=False)


def _scores(figure: Figure, results: Mapping[str, Result], settings: Settings) -> None:
    left, right = figure.subplots(1, 2)
    scores, causal = results["A"].tables[1], results["A"].tables[2]
    tokens, times = scores.column("tokens"), scores.column("blow_up")
    left.plot(tokens, times, "o-", color=BEFORE)
    for x, y in zip(tokens, times):
        left.annotate(f"{y:g}x", (x, y), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=8)
    left.set_xscale("log", base=2)
    left.set_yscale("log", base=2)
    left.set_xticks(tokens, [f"{count:,}" for count in tokens])
    left.set_xlabel("tokens")
    left.set_ylabel("scores / input (modelled)")
    blocks = [f"{block}" for block in causal.column("block")]
    right.bar(blocks, causal.column("kept"), color=AFTER)
    for place, kept in enumerate(causal.column("kept")):
        right.text(place, kept + 1, f"{kept:.1f} %", ha="center", fontsize=8)
    right.axhline(100, color=LIMIT, ls="--", lw=1)
    right.set_ylim(0, 110)
    right.set_xlabel("block, tokens")
    right.set_ylabel("work left under a causal mask, %")


def _forms(figure: Figure, results: Mapping[str, Result], settings: Settings) -> None:
    left, right = figure.subplots(1, 2)
    table, tiles = results["C"].tables
    sizes = table.column("n")
    drawn = {
        "unfused": (BEFORE, "unfused"),
        "merged": (AFTER, "merged by algebra"),
        "fused": (OTHER, "fused by the compiler"),
        "copy": (LIMIT, "one copy"),
    }
    for key, (color, label) in drawn.items():
        if None not in table.column(key):
            left.plot(sizes, table.column(key), "o-", color=color, label=label, ms=4)
            if key in ("merged", "fused"):
                faster = [a / b for a, b in zip(table.column("unfused"), table.column(key))]
                right.plot(sizes, faster, "o-", color=color, label=label, ms=4)
    for key, color in (("unfused_floor", BEFORE), ("merged_floor", AFTER)):
        left.axhline(table.rows[0][key], color=color, ls="--", lw=1)
    _logarithmic(left, x="elements", y="us (measured; dashed: floors of the calls)")
    left.legend(frameon=False, fontsize=8)
    right.axhline(settings.steps, color=LIMIT, ls=":", lw=1, label=f"ratio of bytes, K = {settings.steps}")
    predicted, largest = results["C"].values["predicted"], results["C"].values["largest"]
    right.axhline(predicted, color=LIMIT, ls="--", lw=1, label=f"foretold from rho, {predicted:.2f}x")
    right.plot(
        [largest] * len(tiles.rows), tiles.column("speedup"), "D", color="black", label="in tiles", ms=4
    )
    _logarithmic(right, x="elements", y="faster than unfused, x")
    right.legend(frameon=False, fontsize=8)


def _floor(figure: Figure, results: Mapping[str, Result], settings: Settings) -> None:
    left, right = figure.subplots(1, 2)
    table, values = results["D"].tables[0], results["D"].values
    sizes = table.column("n")
    left.plot(sizes, table.column("torch"), "o-", color=OTHER, label="torch", ms=4)
    if None not in table.column("numpy"):
        left.plot(sizes, table.column("numpy"), "s-", color=AFTER, label="numpy", ms=4)
    left.axhline(1e6 * values["fixed_s"], color=BEFORE, ls="--", lw=1, label="a (fitted)")
    left.axvline(values["half_n"], color=LIMIT, ls=":", lw=1, label=f"n* = {values['half_n']:,.0f}")
    _logarithmic(left, x="elements", y="us per call (measured)")
    left.legend(frameon=False, fontsize=8)
    right.plot(sizes, table.column("share"), "o-", color=BEFORE, ms=4)
    right.axvline(values["half_n"], color=LIMIT, ls=":", lw=1)
    right.set_xscale("log")
    right.set_xlabel("elements")
    right.set_ylabel("fixed part of a chain, % (modelled)")


def _launches(figure: Figure, results: Mapping[str, Result], settings: Settings) -> None:
    left, right = figure.subplots(1, 2)
    launches, given = model(settings), settings.launch
    executions = [given.execution_us] * min(SHOWN_KERNELS, given.kernels)
    for place, line in ((1, launches.eager(executions)), (0, launches.replay(executions))):
        sent = sorted(set(line.launched))
        left.broken_barh(
            [(end - given.launch_us, given.launch_us) for end in sent],
            (place + 0.05, 0.3),
            facecolor=OTHER,
            edgecolor="white",
            lw=0.5,
        )
        spans = [(start, end - start) for start, end in zip(line.started, line.ended)]
        left.broken_barh(spans, (place - 0.35, 0.3), facecolor=AFTER, edgecolor="white", lw=0.5)
    left.set_yticks([0, 1], ["replayed", "one by one"])
    left.set_xlabel(f"us, first {len(executions)} kernels (blue: host launches, green: device executes)")
    table, limit = results["F2"].tables[0], results["F2"].values["break_even"]
    right.plot(table.column("execution"), table.column("speedup"), "o-", color=AFTER, ms=4)
    right.axhline(1, color=LIMIT, lw=1)
    right.axvline(given.launch_us, color=BEFORE, ls="--", lw=1, label=f"a launch, {given.launch_us:g} us")
    if limit is not None:
        right.axvline(limit, color=OTHER, ls=":", lw=1, label=f"break-even, {limit:.2f} us")
    right.set_xscale("log")
    right.set_xlabel("one kernel, us")
    right.set_ylabel("speed-up of replaying, x (modelled)")
    right.legend(frameon=False, fontsize=8)


def _logarithmic(axes: Any, x: str, y: str = "") -> None:
    axes.set_xscale("log")
    axes.set_xlabel(x)
    if y:
        axes.set_yscale("log")
        axes.set_ylabel(y)


Draw = Callable[[Figure, Mapping[str, Result], Settings], None]
FIGURES: dict[str, tuple[tuple[str, ...], Draw]] = {
    "Traffic: bytes before and after fusing": (("A",), _traffic),
    "Scores: how they outgrow their input, and what a causal mask skips": (("A",), _scores),
    "Chain: one chain in four forms": (("C",), _forms),
    "Floor: what a call costs, however small": (("D",), _floor),
    "Launches: one by one, or replayed": (("F1", "F2"), _launches),
}
