"""[B] and [D]: the two properties of this machine that decide what fusing is worth."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from dtorch.lab.result import Column, Result, Table
from dtorch.lab.settings import Settings
from dtorch.perf import measure
from dtorch.perf.fusion import chain_speedup

_KIB = 1024


def bandwidths(settings: Settings, before: Mapping[str, Result]) -> Result:
    """[B] Bandwidth of one read and one write against the working set, and rho."""
    dense = [(size, measure.bandwidth(size, 1, settings.seconds_each)) for size in settings.working_sets]
    strided = [
        (size, measure.bandwidth(size, settings.stride, settings.seconds_each))
        for size in settings.working_sets
    ]
    ratio, strided_ratio = measure.rho(dense), measure.rho(strided)
    rows = tuple(
        {"kib": size / _KIB, "dense": fast / 1e9, "strided": slow / 1e9}
        for (size, fast), (_, slow) in zip(dense, strided)
    )
    table = Table(
        "Bandwidth of y = x + 1",
        (
            Column("kib", "working set", "KiB", "given"),
            Column("dense", "every element", "GB/s"),
            Column("strided", f"one in {settings.stride}", "GB/s"),
        ),
        rows,
    )
    off_chip = [speed for size, speed in dense if size >= measure.OFF_CHIP_AT_LEAST]
    predicted = chain_speedup(settings.steps, ratio)
    return Result(
        "B",
        "Bandwidth and working set",
        (table,),
        (
            f"rho is {ratio:.2f} here: keeping a chain of {settings.steps} steps on the chip is worth "
            f"{predicted:.2f}x at most, not {settings.steps}x.",
            f"Of one element in {settings.stride}, rho {'falls' if strided_ratio < ratio else 'rises'} to "
            f"{strided_ratio:.2f}.",
        ),
        {
            "rho": ratio,
            "strided_rho": strided_ratio,
            "off_chip": sorted(off_chip)[len(off_chip) // 2],
        },
    )


def calls(settings: Settings, before: Mapping[str, Result]) -> Result:
    """[D] One call against its size: a, b_el and n*, for torch and, where it is installed, numpy."""
    points = measure.call_points(settings.call_sizes, settings.seconds_each)
    cost = measure.call_cost(points)
    numpy_times = _numpy_times(settings)
    rows = tuple(
        {
            "n": size,
            "torch": 1e6 * time,
            "numpy": numpy_times.get(size),
            "model": 1e6 * cost(size),
            "share": 100 * cost.fixed_share(size),
        }
        for size, time in points
    )
    table = Table(
        "One addition into an existing tensor",
        (
            Column("n", "elements", tag="given"),
            Column("torch", "torch", "us"),
            Column("numpy", "numpy", "us"),
            Column("model", "a + b n", "us", "modelled"),
            Column("share", "of which fixed", "%", "modelled"),
        ),
        rows,
    )
    return Result(
        "D",
        "The floor of a call",
        (table,),
        (
            f"A call costs {1e6 * cost.fixed_s:.2f} us before it touches an element and "
            f"{1e12 * cost.element_s:.0f} us per million elements.",
            f"Below {cost.half_n:,.0f} elements ({4 * cost.half_n / _KIB:,.0f} KiB of float32) more than "
            "half of a call is that fixed part.",
        ),
        {"fixed_s": cost.fixed_s, "element_s": cost.element_s, "half_n": cost.half_n},
    )


def _numpy_times(settings: Settings) -> dict[int, float]:
    """Microseconds by size; numpy calls the same loop with less around it, which is what is compared."""
    try:
        import numpy
    except ImportError:
        return {}
    times: dict[int, float] = {}
    for size in settings.call_sizes:
        x: Any = torch.ones(size).numpy()
        y: Any = numpy.empty_like(x)
        times[size] = 1e6 * measure.seconds(partial(numpy.add, x, 1.0, out=y), settings.seconds_each)
    return times
