"""[C] and [F4]: one chain in four forms, and what of its speed-up is fewer calls, what fewer bytes.

unfused   K steps of two calls, every result written to memory
tiled     the same calls on one tile after the other: on the chip if the tile fits
merged    two calls; K affine steps are one affine step, which is algebra and changes FLOPs and rounding
fused     one region, compiled: one loop, the steps in registers
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dtorch.inductor.region import Region
from dtorch.lab.result import Column, Result, Table
from dtorch.lab.settings import Settings
from dtorch.perf import measure
from dtorch.perf.fusion import CallCost, chain_speedup, merged_step

_US = 1e6


def chains(settings: Settings, before: Mapping[str, Result]) -> Result:
    """[C] The forms: times, errors, floors, the prediction, and one copy as the limit of any fusion."""
    rho, fixed_s = before["B"].values["rho"], before["D"].values["fixed_s"]
    regions = [_region(settings, size).start() for size in settings.chain_sizes] if settings.compile else []
    why_not = "" if settings.compile else "the settings say not to"
    why_not = next((region.why() for region in regions if not region.wait()), why_not)
    compiled = regions if not why_not else [None] * len(settings.chain_sizes)
    rows = [
        _forms(settings, size, fixed_s, region)
        for size, region in zip(settings.chain_sizes, compiled, strict=True)
    ]
    largest = max(settings.chain_sizes)
    tiles = [_tile(settings, largest, tile, rows) for tile in settings.tiles if tile <= largest]
    predicted = chain_speedup(settings.steps, rho)
    best = max(tiles, key=lambda row: row["speedup"], default=None)
    last = max(rows, key=lambda row: row["n"])
    said = [
        f"Merged by algebra the chain runs {min(row['merged_speedup'] for row in rows):.2f}x to "
        f"{max(row['merged_speedup'] for row in rows):.2f}x faster; K is {settings.steps}.",
    ]
    if best is not None:
        said.append(
            f"In tiles it runs {best['speedup']:.2f}x as fast at best (tiles of {best['tile']:,} elements); "
            f"rho = {rho:.2f} foretells {predicted:.2f}x. Tiling "
            f"{'pays' if best['speedup'] > 1.05 else 'does not pay'} here."
        )
    if why_not:
        said.append(f"Not fused by the compiler: {why_not}.")
    else:
        said.append(
            f"Fused by the compiler, {largest:,} elements take {last['fused'] / last['copy']:.2f}x the time "
            f"of one copy; unfused they take {last['unfused'] / last['fused']:.2f}x the time of fused."
        )
    return Result(
        "C",
        f"A chain of {settings.steps} steps in four forms",
        (_forms_table(settings, rows), _tiles_table(largest, tiles)),
        tuple(said),
        {"predicted": predicted, "largest": largest},
    )


def shares(settings: Settings, before: Mapping[str, Result]) -> Result:
    """[F4] What part of the merged chain's gain is fewer calls (2Ka to 2a), and what part fewer bytes."""
    cost = CallCost(before["D"].values["fixed_s"], before["D"].values["element_s"])
    steps, rows = settings.steps, []
    for row in before["C"].tables[0].rows:
        n = row["n"]
        rows.append(
            {
                "n": n,
                "unfused": row["unfused"],
                "unfused_model": _US * 2 * steps * cost(n),
                "merged": row["merged"],
                "merged_model": _US * 2 * cost(n),
                "calls": 100 * cost.fixed_share(n),
                "bytes": 100 * (1 - cost.fixed_share(n)),
            }
        )
    first, last = min(rows, key=lambda row: row["n"]), max(rows, key=lambda row: row["n"])
    return Result(
        "F4",
        "Fewer calls or fewer bytes",
        (
            Table(
                "What the speed-up of the merged chain comes from",
                (
                    Column("n", "elements", tag="given"),
                    Column("unfused", "unfused", "us"),
                    Column("unfused_model", "2K(a + b n)", "us", "modelled"),
                    Column("merged", "merged", "us"),
                    Column("merged_model", "2(a + b n)", "us", "modelled"),
                    Column("calls", "fewer calls", "%", "modelled"),
                    Column("bytes", "fewer bytes", "%", "modelled"),
                ),
                tuple(rows),
            ),
        ),
        (
            f"At {first['n']:,} elements {first['calls']:.0f} % of what is gained is fewer calls; at "
            f"{last['n']:,} elements {last['bytes']:.0f} % is fewer bytes.",
            f"The line was fitted to small tensors: at {last['n']:,} elements the unfused chain takes "
            f"{last['unfused'] / last['unfused_model']:.2f}x what it says.",
        ),
    )


def _forms(settings: Settings, size: int, fixed_s: float, fused: Region | None) -> dict[str, Any]:
    x, y, steps = torch.linspace(-1, 1, size), torch.empty(size), settings.steps
    scale, shift = merged_step(steps, settings.scale, settings.shift)
    each = settings.seconds_each

    def unfused() -> torch.Tensor:
        return _steps(x, y, steps, settings.scale, settings.shift)

    def merged() -> torch.Tensor:
        return _steps(x, y, 1, scale, shift)

    expected = unfused().clone()
    error = ((merged() - expected).abs().max() / expected.abs().max()).item()
    times = {"unfused": measure.seconds(unfused, each), "merged": measure.seconds(merged, each)}
    if fused is not None:
        fused([x, y])
        times["fused"] = measure.seconds(lambda: fused([x, y]), each)
    times["copy"] = measure.seconds(lambda: y.copy_(x), each)
    return {
        "n": size,
        **{name: _US * time for name, time in times.items()},
        "fused": _US * times["fused"] if fused is not None else None,
        "merged_speedup": times["unfused"] / times["merged"],
        "error": error,
        "unfused_floor": _US * 2 * steps * fixed_s,
        "merged_floor": _US * 2 * fixed_s,
    }


def _tile(settings: Settings, size: int, tile: int, forms: list[dict[str, Any]]) -> dict[str, Any]:
    x, y = torch.linspace(-1, 1, size), torch.empty(size)
    pairs = list(zip(x.split(tile), y.split(tile)))

    def tiled() -> None:
        for source, target in pairs:
            _steps(source, target, settings.steps, settings.scale, settings.shift)

    time = measure.seconds(tiled, settings.seconds_each)
    unfused = next(row["unfused"] for row in forms if row["n"] == size)
    return {"tile": tile, "time": 1e3 * time, "speedup": unfused / (_US * time)}


def _steps(x: torch.Tensor, y: torch.Tensor, steps: int, scale: float, shift: float) -> torch.Tensor:
    torch.mul(x, scale, out=y)
    torch.add(y, shift, out=y)
    for _ in range(steps - 1):
        torch.mul(y, scale, out=y)
        torch.add(y, shift, out=y)
    return y


def _region(settings: Settings, size: int) -> Region:
    """The chain on tensors of one size, as one region; its second input is given the result."""

    def chain(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        h, y = tensors
        for _ in range(settings.steps):
            h = h * settings.scale + settings.shift
        y.copy_(h)
        return []

    given = [torch.empty(size), torch.empty(size)]
    return Region(chain, given, name=f"the chain of {size:,} elements", mode="fast")


def _forms_table(settings: Settings, rows: list[dict[str, Any]]) -> Table:
    return Table(
        f"h <- {settings.scale} h + {settings.shift}, {settings.steps} times, float32",
        (
            Column("n", "elements", tag="given"),
            Column("unfused", "unfused", "us"),
            Column("merged", "merged", "us"),
            Column("merged_speedup", "faster", "x"),
            Column("error", "relative error", ""),
            Column("fused", "fused", "us"),
            Column("copy", "one copy", "us"),
            Column("unfused_floor", "floor 2Ka", "us", "modelled"),
            Column("merged_floor", "floor 2a", "us", "modelled"),
        ),
        tuple(rows),
    )


def _tiles_table(size: int, rows: list[dict[str, Any]]) -> Table:
    return Table(
        f"In tiles, {size:,} elements",
        (
            Column("tile", "tile", "elements", "given"),
            Column("time", "time", "ms"),
            Column("speedup", "against unfused", "x"),
        ),
        tuple(rows),
    )
