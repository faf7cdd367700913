"""Products with the calls behind them, fused in several ways, against the product and its compiled epilogue.

By blocks is what plans do where the price says so, here also where it says no. The library's own fused call
(oneDNN) and the compiler's template round otherwise and are in no plan; their rows have no budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from benchmarks.harness import Measure, Row, timed
from benchmarks.sides import all_fused

Function = Callable[..., torch.Tensor]
REPEATS = 9


def relu(y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Bias and ReLU."""
    return (y + b).relu()


def gelu(y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Bias and GELU, as GPT-2 has it."""
    return functional.gelu(y + b, approximate="tanh")


def gate(y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """SiLU and a gate."""
    return functional.silu(y) * m


def scores(y: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Mask and softmax of attention scores."""
    return torch.softmax(y + m, -1)


class Case(NamedTuple):
    """A product and what follows it.

    Attributes:
        name: shapes and calls.
        shapes: of the product's operands and of the third one.
        behind: the calls.
        library: oneDNN's name for them, and its variant; "" where it has none.
    """

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    behind: Function
    library: tuple[str, str] = ("", "")


BLOCKS = (
    Case("4096 x 64 x 4096, bias and ReLU", ((4096, 64), (64, 4096), (4096,)), relu),
    Case("65536 x 64 x 256, SiLU and a gate", ((65536, 64), (64, 256), (65536, 256)), gate),
    Case("16 of 1024 x 64 x 1024, softmax", ((16, 1024, 64), (16, 64, 1024), (1024, 1024)), scores),
    Case("4096 x 256 x 4096, bias and ReLU", ((4096, 256), (256, 4096), (4096,)), relu),
    Case("2048 x 1024 x 4096, bias and ReLU", ((2048, 1024), (1024, 4096), (4096,)), relu),
)
LIBRARY = (
    Case("1 x 768 x 3072, bias and GELU", ((1, 768), (768, 3072), (3072,)), gelu, ("gelu", "tanh")),
    Case("64 x 768 x 3072, bias and GELU", ((64, 768), (768, 3072), (3072,)), gelu, ("gelu", "tanh")),
    Case("512 x 768 x 3072, bias and GELU", ((512, 768), (768, 3072), (3072,)), gelu, ("gelu", "tanh")),
    Case("4096 x 64 x 4096, bias and ReLU", ((4096, 64), (64, 4096), (4096,)), relu, ("relu", "")),
)


@cache
def given(case: Case) -> tuple[torch.Tensor, ...]:
    """Operands of a case."""
    x, w, b = (
        torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) for shape in case.shapes
    )
    return x, w / w.shape[-2] ** 0.5, b


def product(x: Any, w: Any) -> Any:
    """torch's, of matrices or of batches of them."""
    return torch.bmm(x, w) if x.ndim == 3 else torch.mm(x, w)


@cache
def regions(case: Case) -> tuple[Any, Any]:
    """A case by blocks; and the calls behind its product compiled by themselves."""
    import dtorch
    from dtorch.inductor.listing import Meta
    from dtorch.inductor.region import Region
    from dtorch.plan.cache import watched

    def found() -> Any:
        tensors = [dtorch.Tensor(t) for t in given(case)]
        with watched() as plans:
            for _ in range(2):
                held = case.behind(product(*tensors[:2]), tensors[2])
                tensors[0].graph.sync()
        del held
        return plans[-1]

    with all_fused():
        (call,) = found().waiting.calls
        (whole,) = call.regions.values()
        x, w, b = given(case)
        y = Meta.of(product(x, w))
        alone = Region(lambda given: [case.behind(*given)], [y, Meta.of(b)], name=case.name)
        for region in (whole, alone):
            if not region.wait(240):
                raise RuntimeError(f"{case.name}: {region.why()}")
    dtorch.plan.cache.forget()
    return whole, alone


def by_blocks(case: Case) -> Measure:
    """One run by blocks; compiled when first measured."""

    def measure() -> float:
        region, tensors = regions(case)[0], given(case)
        return timed(lambda: region(list(tensors)), _calls(case))()

    return measure


def _separate(case: Case, alone: Any) -> object:
    x, w, b = given(case)
    return alone([product(x, w), b])


def separate(case: Case, compiled: Callable[[Case], Any]) -> Measure:
    """The product by the library, then its compiled epilogue."""

    def measure() -> float:
        alone = compiled(case)
        return timed(lambda: _separate(case, alone), _calls(case))()

    return measure


@cache
def _alone(case: Case) -> Any:
    """The epilogue compiled by itself, for shapes that make no two blocks."""
    from dtorch.inductor.listing import Meta
    from dtorch.inductor.region import Region

    x, w, b = given(case)
    inputs = [Meta.of(torch.mm(x, w)), Meta.of(b)]
    region = Region(lambda given: [case.behind(*given)], inputs, name=case.name, mode="fast")
    if not region.wait(240):
        raise RuntimeError(f"{case.name}: {region.why()}")
    return region


def _calls(case: Case) -> int:
    """Of one sample."""
    (m, k), n = case.shapes[0][-2:], case.shapes[1][-1]
    return max(1, int(4e8 / (m * k * n)))


def library(case: Case) -> Measure:
    """oneDNN's call that takes bias and activation in."""

    def measure() -> float:
        x, w, b = given(case)
        linear, weight = torch.ops.mkldnn._linear_pointwise, w.t().contiguous()
        name, variant = case.library
        return timed(lambda: linear(x, weight, b, name, [], variant), _calls(case))()

    return measure


def template(case: Case) -> Measure:
    """The compiler's own loop over blocks of all three dims."""

    def measure() -> float:
        return timed(_template(case), _calls(case))()

    return measure


@cache
def _template(case: Case) -> Callable[[], object]:
    """The compiler's template, which wants the weight to be a constant of the model."""
    from torch._inductor import config

    x, w, b = given(case)
    linear = torch.nn.Linear(*w.shape)
    with torch.no_grad():
        linear.weight.copy_(w.t())
        linear.bias.copy_(b)
    model = torch.nn.Sequential(linear, torch.nn.GELU("tanh")).eval()
    options = {"freezing": True, "max_autotune": True, "max_autotune_gemm_backends": "CPP"}
    with config.patch(options), torch.no_grad():
        compiled = torch.compile(model)
        compiled(x)

    def run() -> object:
        with torch.no_grad():
            return compiled(x)

    return run


def rows() -> Iterator[Row]:
    """By blocks, by oneDNN, by the compiler's template."""

    def row(name: str, budget: float | None, ours: Measure, theirs: Measure) -> Row:
        return Row(name, "product, then fused epilogue", budget, ours, theirs, repeats=REPEATS)

    for case in BLOCKS:
        refused = "" if case in BLOCKS[:3] else " (refused by price)"
        yield row(
            f"epilogue by blocks, {case.name}{refused}",
            None if refused else 1.0,
            by_blocks(case),
            separate(case, lambda case: regions(case)[1]),
        )
    for case in LIBRARY:
        yield row(f"epilogue by oneDNN, {case.name}", None, library(case), separate(case, _alone))
    case = LIBRARY[1]
    name = f"epilogue by the compiler's template, {case.name}"
    yield row(name, None, template(case), separate(case, _alone))
