"""Regions fused and unfused, and whether the price told beforehand what fusing saves.

Programs run under "fast", their regions compiled, and under "off", in turn, 7 times. Of models each region is
taken by itself, since beside a whole step it is less than the spread: its compiled code, and the plan of its
calls alone, on inputs of its own. For the rank correlation all regions are compiled, also those that the
price refuses; only those that it fuses may not be slower than unfused beyond the spread of the repeats. What
the compiled tier refuses is left out, and named.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from benchmarks import bench_chain, bench_models
from benchmarks.harness import Measure, Row, timed
from benchmarks.sides import all_fused

if TYPE_CHECKING:
    from dtorch.inductor.listing import Meta
    from dtorch.plan.codegen import Plan
    from dtorch.plan.fuse.candidate import Candidate
    from dtorch.plan.fuse.region import FusedCall

REPEATS = 7
SHORT = ((2, 1 << 14), (4, 1 << 17), (2, 1 << 21))
CHAINS = (*SHORT, *((bench_chain.STEPS, count) for count in bench_chain.SIZES.values()))


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


def models() -> Iterator[tuple[str, Callable[[], Callable[[], object]]]]:
    """Models by name, and what makes a run of each, recorded and not captured."""
    yield "Llama, 8 x 64", lambda: bench_models.recorded_forward(8, 64)
    yield "Llama, 1 x 1", lambda: bench_models.recorded_forward(1, 1)
    yield "GPT-2 step", bench_models.recorded_step


@cache
def measured() -> tuple[Measured, ...]:
    """The whole set, compiled and measured."""
    programs = [found for case in cases() if (found := _measured(case)) is not None]
    return (*programs, *(found for name, make in models() for found in _regions(name, make())))


def _compiled(name: str, run: Callable[[], object]) -> Iterator[tuple[Plan, FusedCall]]:
    """The regions of a program that the compiled tier takes, compiled; the others are named."""
    from dtorch.plan.cache import watched

    run()
    with watched() as plans:
        run()
    found = [(plan, call) for plan in plans if plan.waiting is not None for call in plan.waiting.calls]
    for _, call in found:
        call.start()
    for plan, call in found:
        if all(region.wait(240) for region in call.regions.values()):
            yield plan, call
        else:
            print(f"{name}: {call.why()}")


def _measured(case: Case) -> Measured | None:
    """A program, whole."""
    import dtorch

    given = [dtorch.Tensor(tensor) for tensor in case.inputs]

    def run() -> None:
        held = case.function(*given)
        given[0].graph.sync()
        del held

    def under(mode: str) -> Measure:
        def measure() -> float:
            with dtorch.optimize(mode):
                return timed(run, calls)()

        return measure

    with all_fused():
        found = [call.candidate for _, call in _compiled(case.name, run)]
        run()
    if not found:
        return None
    calls = _calls(found)
    return _in_turn(case.name, found, under("fast"), under("off"))


def _regions(name: str, run: Callable[[], object]) -> Iterator[Measured]:
    """Each kind of region of a model, once."""
    seen: set[Any] = set()
    with all_fused():
        found = list(_compiled(name, run))
    for plan, call in found:
        region, candidate = next(iter(call.regions.values())), call.candidate
        if (region.name, region.inputs) in seen:
            continue
        seen.add((region.name, region.inputs))
        given, calls = [_like(meta) for meta in region.inputs], _calls([candidate])
        fused, unfused = timed(partial(region, given), calls), timed(_unfused(plan, candidate, given), calls)
        yield _in_turn(f"{name}, {region.name.lower()}", [candidate], fused, unfused)


def _unfused(plan: Plan, candidate: Candidate, given: Sequence[torch.Tensor]) -> Callable[[], object]:
    """The calls of a region as a plan of their own; what is a number stays one."""
    from dtorch.op.operand import Everywhere
    from dtorch.plan.serialize import from_document, to_document
    from dtorch.plan.structure import Selection
    from dtorch.runtime.runner import LocalRunner

    nodes = Selection(candidate.nodes, candidate.outputs, candidate.inputs)
    alone = from_document(to_document(plan.structure, nodes), LocalRunner().prepare)
    tensors, numbers = iter(given), iter(given[-1].tolist() if None in alone.outside else ())
    parts = [Everywhere(next(numbers)) if spec is None else [next(tensors)] for spec in alone.outside]
    return lambda: alone.run(parts)


def _calls(found: Sequence[Candidate]) -> int:
    """Of one sample, so that it takes some 20 ms."""
    return max(1, int(0.02e9 / sum(c.unfused_ns for c in found)))


def _like(meta: Meta) -> torch.Tensor:
    """A tensor that a region may be given: small positive values, or an index."""
    made = meta.empty()
    return made.uniform_(0.1, 1) if made.is_floating_point() else made.zero_()


def _in_turn(name: str, found: Sequence[Candidate], fused: Measure, unfused: Measure) -> Measured:
    from dtorch.plan.fuse import price

    samples: dict[Measure, list[float]] = {fused: [], unfused: []}
    for repeat in range(REPEATS + 1):
        for side in (fused, unfused) if repeat % 2 else (unfused, fused):
            sample = side()
            if repeat:
                samples[side].append(sample)
    by_price = all(price.pays(c.unfused_ns, c.fused_ns) for c in found)
    predicted = sum(c.saving_ns for c in found) / 1e9
    return Measured(name, predicted, by_price, samples[fused], samples[unfused])


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's; values that tie share their mean rank."""
    return statistics.correlation(_ranks(a), _ranks(b))


def _ranks(values: list[float]) -> list[float]:
    """For each value half of how many are smaller and how many are no larger."""
    ascending = sorted(values)
    return [(bisect_left(ascending, value) + bisect_right(ascending, value)) / 2 for value in values]


def rows() -> Iterator[Row]:
    """Three rows over the whole set."""
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
    for m in measured():
        print(
            f"{m.name:44} predicted {1e6 * m.predicted:9.1f} us, saved {1e6 * m.saved:9.1f} us,"
            f" unfused {1e6 * statistics.median(m.unfused):9.1f} us, fused"
            f" {1e6 * statistics.median(m.fused):9.1f} us"
            f" {'' if m.by_price else '(refused by price)'} {'SLOWER' if m.is_slower else ''}"
        )
    print(rank_correlation([m.predicted for m in measured()], [m.saved for m in measured()]))
