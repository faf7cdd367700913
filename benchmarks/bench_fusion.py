"""Regions fused and unfused, and whether the price told beforehand what fusing saves.

Every program of the set runs under "fast", its regions compiled, and under "off", in turn, 7 times. For the
rank correlation all regions are compiled, also those that the price refuses; only those that it fuses may not
be slower than unfused beyond the spread of the repeats. What the compiled tier refuses is left out.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

from benchmarks.harness import Row, timed

REPEATS = 7
CHAINS = ((2, 1 << 14), (4, 1 << 17), (8, 1 << 11), (8, 1 << 16), (8, 1 << 20), (8, 1 << 22), (2, 1 << 21))


class Case(NamedTuple):
    """A program, and the plain tensors that it is given."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]


class Measured(NamedTuple):
    """A program with its regions fused and unfused; seconds.

    Attributes:
        predicted: saving by the price.
        by_price: whether the price fuses its regions.
        fused, unfused: a sample of each repeat.
    """

    name: str
    predicted: float
    by_price: bool
    fused: list[float]
    unfused: list[float]

    @property
    def saved(self) -> float:
        """What fusing saves, by the medians."""
        return statistics.median(self.unfused) - statistics.median(self.fused)

    @property
    def is_slower(self) -> bool:
        """Whether fused is slower by more than both spread."""
        spread = statistics.pstdev(self.fused) + statistics.pstdev(self.unfused)
        return self.saved < -spread


def chain(steps: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """So many affine steps."""

    def run(h: torch.Tensor) -> torch.Tensor:
        for _ in range(steps):
            h = h * 1.01 + 0.01
        return h

    return run


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm as models write it."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def softmax(x: torch.Tensor) -> torch.Tensor:
    """A scaled softmax and what follows it."""
    return torch.softmax(x * 0.125, -1) * 2.0


def epilogue(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GELU behind a product."""
    return torch.nn.functional.gelu(x @ w + b) * 1.5


def adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One step of AdamW, out of place."""
    m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    return p * 0.999 - m / (v.sqrt() + 1e-8) * 0.003, m, v


def cases() -> Iterator[Case]:
    """The set."""
    for steps, count in CHAINS:
        yield Case(f"chain of {steps}, {count:,}", chain(steps), (torch.rand(count),))
    for rows in (256, 4096):
        yield Case(f"RMSNorm, {rows} x 1024", rms_norm, (torch.rand(rows, 1024), torch.rand(1024)))
        yield Case(f"softmax, {rows} x 1024", softmax, (torch.rand(rows, 1024),))
    small, wide = (torch.rand(256, 256), torch.rand(256, 1024)), torch.rand(1024)
    yield Case("GELU epilogue, 256 x 1024", epilogue, (*small, wide))
    for count in (1 << 12, 1 << 18, 1 << 21):
        yield Case(f"AdamW, {count:,}", adamw, tuple(torch.rand(count) for _ in range(4)))


@cache
def measured() -> tuple[Measured, ...]:
    """The whole set, compiled and measured."""
    return tuple(found for case in cases() if (found := _measured(case)) is not None)


def _measured(case: Case) -> Measured | None:
    import dtorch
    from dtorch.plan.cache import watched
    from dtorch.plan.fuse import price

    given = [dtorch.Tensor(tensor) for tensor in case.inputs]

    def run() -> None:
        held = case.function(*given)
        given[0].graph.sync()
        del held

    def plan() -> Any:
        with watched() as plans:
            run()
        return plans[-1]

    decide, price.pays = price.pays, lambda unfused, fused: True
    try:
        with dtorch.optimize("fast"):
            run()
            waiting = plan().waiting
            waiting.start()
            regions = [region for call in waiting.calls for region in call.regions.values()]
            for region in regions:
                region.wait(240)
            if any(region.state != "compiled" for region in regions):
                print(f"{case.name}: {', '.join(region.why() for region in regions)}")
                return None
            found = [call.candidate for call in waiting.calls]
            run()
            assert plan().rewritten.fused
    finally:
        price.pays = decide
    samples: dict[str, list[float]] = {"fast": [], "off": []}
    calls = max(1, int(0.02e9 / sum(c.unfused_ns for c in found)))
    for repeat in range(REPEATS + 1):
        for mode in ("fast", "off") if repeat % 2 else ("off", "fast"):
            with dtorch.optimize(mode):
                run()
                sample = timed(run, calls)()
            if repeat:
                samples[mode].append(sample)
    by_price = all(decide(c.unfused_ns, c.fused_ns) for c in found)
    predicted = sum(c.saving_ns for c in found) / 1e9
    return Measured(case.name, predicted, by_price, samples["fast"], samples["off"])


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's, of values without ties."""
    place = [{value: rank for rank, value in enumerate(sorted(side))} for side in (a, b)]
    gaps = sum((place[0][x] - place[1][y]) ** 2 for x, y in zip(a, b, strict=True))
    return 1 - 6 * gaps / (len(a) * (len(a) ** 2 - 1))


def rows() -> Iterator[Row]:
    """Three rows over the whole set."""
    with torch.no_grad():
        yield Row(
            name="fused regions, rank correlation of the price's saving",
            against="measured saving",
            budget=0.2,
            ours=lambda: rank_correlation([m.predicted for m in measured()], [m.saved for m in measured()]),
            theirs=lambda: 1.0,
            compare="error",
            unit="1",
            repeats=1,
            warmups=0,
        )
        yield Row(
            name="fused regions that are slower than unfused beyond the spread",
            against="none",
            budget=0,
            ours=lambda: float(sum(m.is_slower for m in measured() if m.by_price)),
            theirs=None,
            compare="absolute",
            unit="1",
            repeats=1,
            warmups=0,
        )
        yield Row(
            name="fused regions, slowest of the set",
            against="unfused",
            budget=1.0,
            ours=lambda: statistics.median(_worst().fused),
            theirs=lambda: statistics.median(_worst().unfused),
            repeats=1,
            warmups=0,
        )


def _worst() -> Measured:
    """The program that fusing helps least, of those that the price fuses."""
    return max(
        (m for m in measured() if m.by_price),
        key=lambda m: statistics.median(m.fused) / statistics.median(m.unfused),
    )


if __name__ == "__main__":
    with torch.no_grad():
        for m in measured():
            print(
                f"{m.name:28} predicted {1e6 * m.predicted:9.1f} us, saved {1e6 * m.saved:9.1f} us,"
                f" unfused {1e6 * statistics.median(m.unfused):9.1f} us, fused"
                f" {1e6 * statistics.median(m.fused):9.1f} us"
                f" {'' if m.by_price else '(refused by price)'} {'SLOWER' if m.is_slower else ''}"
            )
