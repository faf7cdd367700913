"""Both sides of the rows on compiled code: ours captured and compiled, and torch.compile's.

A side is made at its first measure, so that naming the rows compiles nothing. Code that Inductor has on disk
is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.harness import Measure, timed

if TYPE_CHECKING:
    from dtorch.plan.fuse.region import FusedCall


def lazily(make: Callable[[], Callable[[], object]], calls: int = 1) -> Measure:
    """As `timed`, of a function that is made when it is first measured."""
    made: list[Measure] = []

    def measure() -> float:
        if not made:
            made.append(timed(make(), calls))
        return made[0]()

    return measure


def captured(function: Callable[..., Any], mode: str, *args: Any) -> Callable[..., Any]:
    """A function's replays, compiled if a mode admits it; these arguments are recorded."""
    import dtorch

    step = dtorch.capture(function)
    step.capture(*args)
    step(*args)
    with dtorch.optimize(mode):
        step.instantiate()

    def run(*args: Any) -> Any:
        with dtorch.optimize(mode):
            return step(*args)

    return run


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """By torch.compile, sizes as constants; what it had compiled is forgotten, since it keeps 8 of a kind."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def fuse(run: Callable[[], object]) -> list[FusedCall]:
    """Have the regions that the last plan of a program waits for compiled at once, and give them.

    Raises:
        RuntimeError: one could not be compiled.
    """
    from dtorch.plan.cache import watched

    run()
    with watched() as plans:
        run()
    waiting = plans[-1].waiting
    if waiting is None:
        return []
    waiting.start()
    for call in waiting.calls:
        for region in call.regions.values():
            if not region.wait(240):
                raise RuntimeError(f"{region.name}: {region.why()}")
    run()
    return waiting.calls


@contextmanager
def all_fused() -> Iterator[None]:
    """Under "fast"; every region is to be fused, and to take its product in, whatever the price."""
    import dtorch
    from dtorch.plan.fuse import price

    decide, price.pays = price.pays, lambda unfused, fused: True
    try:
        with dtorch.optimize("fast"):
            yield
    finally:
        price.pays = decide
