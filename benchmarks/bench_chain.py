"""Eight affine steps, `h = h * 1.01 + 0.01`: captured and compiled, or recorded and fused.

Against torch eager, which reads and writes everything 16 times, torch.compile, which does so once as ours
does, and one copy of the tensor, which no loop that reads and writes it can beat. Where a copy takes less
than a call, from 2M downwards, it is shown and is no budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.harness import Row
from benchmarks.sides import captured, compiled, fuse, lazily

STEPS = 8
SIZES = {
    "512": 512,
    "4k": 1 << 12,
    "32k": 1 << 15,
    "256k": 1 << 18,
    "2M": 1 << 21,
    "4M": 4_000_000,
    "16M": 1 << 24,
    "64M": 1 << 26,
}
LARGE = 1 << 21
"""Elements from which on a copy takes longer than what a call costs."""


def rows() -> Iterator[Row]:
    for name, n in SIZES.items():
        yield from _replayed(name, n)
        yield _fused(name, n)
        if n >= LARGE:
            yield _kept(name, n)


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(STEPS):
        x = x * 1.01 + 0.01
    return x


def _replayed(name: str, n: int) -> Iterator[Row]:
    """Compiled under "exact", on one device."""
    budgets = {"torch eager": 1.0, "torch.compile": 1.15, "one copy": 1.15 if n >= LARGE else None}
    for against, budget in budgets.items():
        yield Row(
            name=f"{STEPS}-step chain, {name} fp32, compiled",
            against=against,
            budget=budget,
            ours=lazily(lambda: _ours(n), _calls(n)),
            theirs=lazily(lambda against=against: _theirs(against, n), _calls(n)),
            repeats=_repeats(n),
        )


def _fused(name: str, n: int) -> Row:
    """Called as ever: recorded, its region compiled."""
    return Row(
        name=f"{STEPS}-step chain, {name} fp32, recorded and fused",
        against="torch eager",
        budget=1.0 if n >= LARGE else None,
        ours=lazily(lambda: _recorded(n), _calls(n)),
        theirs=lazily(lambda: _theirs("torch eager", n), _calls(n)),
        repeats=_repeats(n),
    )


def _kept(name: str, n: int) -> Row:
    """What new memory costs a copy: large blocks come from the operating system page by page."""
    return Row(
        name=f"copy of the chain's {name} fp32 into kept memory",
        against="into new memory",
        budget=None,
        ours=lazily(lambda: _copy_into_kept(n)),
        theirs=lazily(lambda: _theirs("one copy", n)),
        repeats=_repeats(n),
    )


def _copy_into_kept(n: int) -> Callable[[], object]:
    x, kept = torch.ones(n), torch.ones(n)
    return lambda: kept.copy_(x)


def _calls(n: int) -> int:
    return max(1, 20_000 // n)


def _repeats(n: int) -> int:
    return 5 if n >= 1 << 24 else 15


def _ours(n: int) -> Callable[[], object]:
    import dtorch

    x = dtorch.ones(n, device_mesh=dtorch.init_device_mesh("cpu", 1))
    run = captured(chain, "exact", x)
    return lambda: run(x)


def _recorded(n: int) -> Callable[[], object]:
    import dtorch

    x = dtorch.ones(n, device_mesh=dtorch.init_device_mesh("cpu", 1))

    def run() -> object:
        y = chain(x)
        x.graph.sync()
        return y

    with dtorch.optimize("exact"):
        fuse(run)
    return run


def _theirs(against: str, n: int) -> Callable[[], object]:
    x = torch.ones(n)
    if against == "one copy":
        return x.clone
    function = compiled(chain) if against == "torch.compile" else chain
    return lambda: function(x)
