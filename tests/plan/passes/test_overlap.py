"""Where devices have a stream for communication, it starts early and is waited for late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Replicate, Shard
from dtorch.graph.constructor import GraphConstructor
from dtorch.plan import cache
from dtorch.runtime import streams
from tests.runtime.test_streams import Fake

MESH = DeviceMesh("cpu", [0, 1])
FULL = torch.arange(12.0).reshape(4, 3) - 5.5
R, S1 = Replicate(), Shard(1)


@pytest.fixture(autouse=True)
def _new_recipes() -> Iterator[None]:
    """A recipe knows whether its devices have streams."""
    GraphConstructor.forget()
    yield
    GraphConstructor.forget()


@pytest.fixture
def x(monkeypatch: pytest.MonkeyPatch, graph: dtorch.Graph) -> dtorch.Tensor:
    monkeypatch.setattr(streams, "BACKEND", Fake())
    return dtorch.Tensor(FULL, MESH, [Shard(0)], graph=graph)


def whole(x: Any) -> Any:
    return x.redistribute(placements=[R]) if isinstance(x, dtorch.Tensor) else x.clone()


def order(function: Callable[[Any], Any], x: dtorch.Tensor) -> list[str]:
    """The calls of a plan in the order in which they run; values are torch's."""
    expected = function(FULL)
    with cache.watched() as plans:
        for _ in range(3):
            found = function(x)
            x.graph.sync()
            for mine, theirs in zip(found, expected, strict=True):
                assert torch.equal(mine.to_torch(), theirs)
    assert not streams._UNDER_WAY.events
    structure, selection = plans[-1].structure, plans[-1].selection
    return [structure.recipes[n].operator.kind_name() for n in selection.nodes]


def sent_late(x: Any) -> Any:
    y = x.exp()
    z = x.sin()
    w = z.cos()
    return [whole(y), w]


def waited_for_early(x: Any) -> Any:
    y = whole(x.exp())
    w = y.sin()
    v = w.tanh()
    u = x.cos()
    return [v, u]


def written_before(x: Any) -> Any:
    y = x.exp()
    z = x.sin()
    y.neg_()
    return [whole(y), z]


def written_after(x: Any) -> Any:
    y = x.exp()
    w = whole(y).sin()
    y.neg_()
    u = x.cos()
    return [w, u, y]


def two(x: Any) -> Any:
    y = x.exp()
    z = x.sin()
    return [whole(z), whole(y)]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (sent_late, ["Exp", "Convert", "Sin", "Cos"]),
        (waited_for_early, ["Exp", "Convert", "Cos", "Sin", "Tanh"]),
        (written_before, ["Exp", "Sin", "Neg", "Convert"]),
        (written_after, ["Exp", "Convert", "Sin", "Neg", "Cos"]),
        (two, ["Exp", "Sin", "Convert", "Convert"]),
    ],
)
def test_order(x: dtorch.Tensor, function: Callable[[Any], Any], expected: list[str]) -> None:
    assert order(function, x) == expected


def test_switched_off(x: dtorch.Tensor) -> None:
    with dtorch.passes(overlap=False):
        assert order(sent_late, x) == ["Exp", "Sin", "Cos", "Convert"]


def test_without_streams_the_order_stays(graph: dtorch.Graph) -> None:
    x = dtorch.Tensor(FULL, MESH, [Shard(0)], graph=graph)
    assert order(sent_late, x) == ["Exp", "Sin", "Cos", "Convert"]
