"""Times measured on this machine: one call, and the bandwidth of a read and a write.

Timing itself is torch.utils.benchmark's: it repeats a call until a block is long enough to be read off the
clock, and gives the median of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
from torch.utils.benchmark import Timer

from dtorch.errors import ModelError
from dtorch.perf.fusion import CallCost, fit_call_cost

KIB, MIB = 1024, 1024**2
WORKING_SETS = (32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB, 8 * MIB, 32 * MIB, 128 * MIB)
ON_CHIP_AT_MOST, OFF_CHIP_AT_LEAST = 8 * MIB, 32 * MIB
CALL_SIZES = (1, 8, 64, 512, 4096, 16384, 65536, 262144, 1048576)
FIT_AT_MOST = 16384


def seconds(function: Callable[[], object], at_least_s: float = 0.05, threads: int = 1) -> float:
    """Median seconds of a call of `function`, from at least `at_least_s` seconds of calls."""
    timer = Timer("function()", globals={"function": function}, num_threads=threads)
    return timer.blocked_autorange(min_run_time=at_least_s).median


def bandwidth(nbytes: int, stride: int = 1, at_least_s: float = 0.05) -> float:
    """Bytes per second of `y = x + 1`: `nbytes` are read, as many are written.

    Args:
        nbytes: bytes of float32 that x spans in memory; y spans as many.
        stride: every `stride`-th element is used, and only used bytes are counted.
    """
    x = torch.ones(max(nbytes // 4, stride))[::stride]
    y = torch.empty(x.numel() * stride)[::stride]
    return 2 * 4 * x.numel() / seconds(partial(torch.add, x, 1.0, out=y), at_least_s)


def rho(points: Sequence[tuple[int, float]]) -> float:
    """On-chip over off-chip bandwidth: the median up to 8 MiB over the median from 32 MiB.

    Args:
        points: (bytes of the working set, bytes per second).

    Raises:
        ModelError: no point on one of the two sides.
    """
    on_chip = [speed for size, speed in points if size <= ON_CHIP_AT_MOST]
    off_chip = [speed for size, speed in points if size >= OFF_CHIP_AT_LEAST]
    if not on_chip or not off_chip:
        raise ModelError("rho needs working sets of at most 8 MiB and of at least 32 MiB")
    return median(on_chip) / median(off_chip)


def call_points(
    sizes: Sequence[int] = CALL_SIZES, at_least_s: float = 0.05, rounds: int = 3
) -> list[tuple[int, float]]:
    """(elements, seconds) of one `torch.add(x, 1, out=y)` in float32: the least of some rounds.

    What disturbs a call only makes it longer, so the least is what the call costs.
    """
    calls = []
    for size in sizes:
        x, y = torch.ones(size), torch.empty(size)
        calls.append(partial(torch.add, x, 1.0, out=y))
    taken = [[seconds(call, at_least_s / rounds) for call in calls] for _ in range(rounds)]
    return list(zip(sizes, map(min, zip(*taken, strict=True)), strict=True))


def call_cost(points: Sequence[tuple[int, float]]) -> CallCost:
    """The line through those points that have at most 16,384 elements, so that caches do not bend it."""
    return fit_call_cost([(size, time) for size, time in points if size <= FIT_AT_MOST])
