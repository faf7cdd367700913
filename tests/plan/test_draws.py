"""Random numbers are drawn when the call is made; what is pending waits, and gets the bits of one device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dtorch
from dtorch import Graph, Partial, Replicate, Shard
from dtorch.graph.pending import Pending
from dtorch.op.operand import Operand
from tests.places import randn

MESH = dtorch.DeviceMesh("cpu", [0, 1])
PLACEMENTS = {"whole": [Replicate()], "rows": [Shard(0)], "columns": [Shard(1)]}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that records, also under DTORCH_EAGER=1."""
    graph = Graph()
    graph.constructor.eager = False
    monkeypatch.setattr(Graph, "default_graph", staticmethod(lambda: graph))


def put(full: torch.Tensor, placements: Any = "rows") -> dtorch.Tensor:
    return dtorch.Tensor(full, MESH, PLACEMENTS[placements] if isinstance(placements, str) else placements)


def pending(x: dtorch.Tensor) -> list[str]:
    """Types of the operators that wait."""
    return [recipe.operator.kind_name() for recipe, *_ in x.graph.constructor.pending.nodes]


def viewed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    view = y[1:]
    y.normal_()
    return view + 1


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: F.dropout(x * 2, 0.3) * 3,
    "dropout twice": lambda x: F.dropout(F.dropout(x * 2, 0.3), 0.6) * 3,
    "dropout of columns": lambda x: F.dropout(x.t() * 2, 0.3).t() + 1,
    "dropout of everything": lambda x: F.dropout(x * 2, 1.0),
    "native_dropout": lambda x: torch.native_dropout(x * 2, 0.3, True)[0] * 3,
    "native_dropout of columns": lambda x: torch.native_dropout(x.t() * 2, 0.3, None)[0].t() * 3,
    "its mask": lambda x: torch.native_dropout(x * 2, 0.3, True)[1] * x,
    "native_dropout of everything": lambda x: torch.native_dropout(x * 2, 1.0, True)[0] + x,
    "native_dropout of nothing": lambda x: torch.native_dropout(x[:0] * 2, 0.3, True)[1] * 3,
    "native_dropout outside of training": lambda x: torch.native_dropout(x * 2, 0.3, False)[0] * 3,
    "dropout without gradients": torch.inference_mode()(lambda x: F.dropout(x * 2, 0.3) * 3),
    "alpha_dropout": lambda x: F.alpha_dropout(x * 2, 0.3, True) * 3,
    "dropout1d": lambda x: F.dropout1d(x.view(2, 3, 8) * 2, 0.5),
    "rand_like": lambda x: torch.rand_like(x * 2) + x,
    "rand_like of another dtype": lambda x: torch.rand_like(x * 2, dtype=torch.float64) + x,
    "randn_like": lambda x: torch.randn_like(x.t() * 2) + x.t(),
    "normal_": lambda x: (x * 2).normal_(1, 2) * 3,
    "uniform_ into a part": lambda x: _into(x * 2, lambda y: y[1:4].uniform_(-1, 1)),
    "exponential_ into a column": lambda x: _into(x * 2, lambda y: y[:, 1].exponential_(2.0)),
    "seen through a view": viewed,
    "twice into one": lambda x: (x * 2).normal_().uniform_() + x,
    "read before": lambda x: _into(x * 2, lambda y: y.copy_((y + 1) * y.clone().bernoulli_(0.4))),
    "a generator": lambda x: (x * 2).bernoulli_(0.4, generator=torch.Generator().manual_seed(5)) * 3,
    "bernoulli.p": lambda x: torch.bernoulli(x * 2, 0.3) + 1,
}


def _into(x: torch.Tensor, write: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    write(x)
    return x * 3


def run(
    monkeypatch: pytest.MonkeyPatch,
    draw: Callable[..., Any],
    full: torch.Tensor,
    placements: Any,
    eager: bool,
) -> list[Any]:
    """Values of some runs, and the generator's state after them."""
    graph = Graph()
    graph.constructor.eager = eager
    monkeypatch.setattr(Graph, "default_graph", staticmethod(lambda: graph))
    x = put(full, placements)
    torch.manual_seed(3)
    found = [draw(x) for _ in range(4)]
    return [*(y.to_torch() for y in found), torch.get_rng_state()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("placements", PLACEMENTS)
@pytest.mark.parametrize("name", DRAWS)
def test_bits_are_those_of_running_at_once_and_of_torch(
    monkeypatch: pytest.MonkeyPatch, name: str, placements: str, dtype: torch.dtype
) -> None:
    full, draw = randn(6, 8).to(dtype), DRAWS[name]
    expected = run(monkeypatch, draw, full, placements, eager=True)
    found = run(monkeypatch, draw, full, placements, eager=False)
    torch.manual_seed(3)
    plain = [*(draw(full) for _ in range(4)), torch.get_rng_state()]
    for a, b, c in zip(found, expected, plain, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_pending_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    full = randn(6, 8)

    def draw(x: torch.Tensor) -> torch.Tensor:
        return _into(x * 2, lambda y: y.uniform_()) + x

    found, expected = (run(monkeypatch, draw, full, [Partial()], eager) for eager in (False, True))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("placements", PLACEMENTS)
def test_what_is_pending_waits(placements: str) -> None:
    x = put(randn(6, 8), placements)
    for _ in range(2):
        y = F.dropout(x * 2, 0.3) + torch.rand_like(x)
        names = pending(y)
        y.to_torch()
    assert names == ["Mul", "Div", "Mul", "Add"]  # what the mask overwrites is not made


@pytest.mark.parametrize("placements", PLACEMENTS)
def test_what_a_kernel_with_dropout_waits_for(placements: str) -> None:
    x = put(randn(6, 8), placements)
    heads = put(randn(2, 2, 4, 8), "rows" if placements == "rows" else "whole")
    for _ in range(3):
        y, _ = torch.native_dropout(x * 2, 0.3, True)
        names = pending(y)
        y.to_torch()
        with torch.inference_mode():
            attended = F.scaled_dot_product_attention(heads * 2, heads, heads, dropout_p=0.4)
            waiting = pending(attended)
            attended.to_torch()
    assert names == ["Mul", "Mul", "Mul"]
    assert waiting.count("Mul") == 5
    assert "Dropout" not in waiting


def test_gradients_of_native_dropout() -> None:
    full = randn(6, 8)
    for _ in range(3):
        grads = []
        for x in (put(full.clone()).detach().requires_grad_(), full.clone().requires_grad_()):
            torch.manual_seed(1)
            (torch.native_dropout(x * 2, 0.3, True)[0] ** 2).sum().backward()
            grads.append(x.grad)
        assert torch.equal(grads[0].to_torch(), grads[1])


def test_a_model_with_dropout_is_one_sequence() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)]
    model = dtorch.parallelize(torch.nn.Sequential(*layers), MESH, {})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = put(randn(6, 8))
    counts = []
    for _ in range(8):
        before = dtorch.plan_stats()
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
        x.graph.sync()
        after = dtorch.plan_stats()
        counts.append([getattr(after, n) - getattr(before, n) for n in ("made", "hits", "interpreted")])
    assert counts[3:] == [[0, 2, 0]] * 5, counts  # up to the end of the backward, and the optimizer


def test_drawn_bytes_count_as_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    x = put(randn(64, 64))
    y = x + x
    constructor, nbytes = x.graph.constructor, 64 * 64 * 4
    monkeypatch.setattr(Pending, "max_bytes", 40 * nbytes)
    most = 0
    for _ in range(100):
        y = y + torch.rand_like(x)
        most = max(most, len(constructor.pending.nodes))
        assert constructor.pending.nbytes <= 41 * nbytes
    assert 40 < most <= 61  # each sum holds what was drawn for it; looked at when 20 more have been counted


def test_draws_keep_nothing_alive() -> None:
    x = put(randn(6, 8))

    def step() -> None:
        y = x * 2
        y[1:].normal_()
        (F.dropout(y, 0.5) + torch.rand_like(y)).to_torch()

    def alive() -> list[int]:
        gc.collect()
        return [sum(type(o) is kind for o in gc.get_objects()) for kind in (Operand, torch.Tensor)]

    for _ in range(5):
        step()
    before = alive()
    for _ in range(30):
        step()
    assert alive() == before


@pytest.mark.parametrize("name", ["dropout", "native_dropout", "its mask"])
def test_a_captured_function_draws_at_each_call(name: str) -> None:
    plain, draw = randn(6, 8), DRAWS[name]
    step = dtorch.capture(lambda x: draw(x))
    torch.manual_seed(5)
    expected = [draw(plain) for _ in range(6)]
    torch.manual_seed(5)
    with torch.no_grad():
        for value in expected:
            assert torch.equal(step(put(plain)).to_torch(), value)


def test_what_is_collected_shows_the_draw() -> None:
    x = put(randn(6, 8))
    for _ in range(3):
        with dtorch.record() as graph:
            F.dropout(x * 2, 0.5)
    names = [operator.kind_name() for operator in graph.operators]
    assert names == ["Mul", "Create", "Bernoulli", "Div", "Mul"]
