"""Indexing, gather and scatter, embedding, cat.

global positions used on a local shard
    `test_positions_are_global`, `tests/ops/test_indexing.py::test_put_at_global_places`
scatter forces full replication
    `test_scatter_of_the_best_is_local`, `test_as_torch[scatter ...]`
a cut embedding's mask in a cached placement
    `test_two_tables`, `tests/ops/test_indexing.py::test_two_cut_tables`, `test_as_torch[embedding
    ...]`
cat along the cut dim interleaves
    `test_cat_along_the_cut_dim`, `test_as_torch[cat, chunk ...]`
stack and cat of different placements
    `test_stack_picks_a_sound_placement`
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch import Shard
from tests.dist import assert_like_torch, place, ways
from tests.hazards.cases import kinds_sent, mesh_of, under


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


@pytest.mark.parametrize("places", ["R", "S0", "P"])
@pytest.mark.parametrize("ids", ["R", "S0"])
def test_positions_are_global(places: str, ids: str) -> None:
    x = place(torch.zeros(16), (2,), (places,))
    every = place(torch.arange(16), (2,), (ids,))
    x[every] = torch.ones(16)
    assert x.tolist() == [1] * 16
    y = place(torch.zeros(16), (2,), (places,))
    y.index_put_((place(torch.tensor([0, 0, 15]), (2,), (ids,)),), torch.ones(3), accumulate=True)
    assert (y[0].item(), y[15].item(), y.sum().item()) == (2, 1, 3)
    z = place(torch.zeros(16), (2,), (places,))
    z.index_add_(0, place(torch.tensor([0, 0, 15]), (2,), (ids,)), torch.ones(3))
    assert torch.equal(z.to_torch(), y.to_torch())


def test_scatter_of_the_best_is_local() -> None:
    full = torch.randn(8, 4)
    scores = dtorch.Tensor(full, device_mesh=mesh_of(4), placements=[Shard(0)])
    best = scores.topk(2, -1).indices
    assert not kinds_sent(lambda: torch.zeros_like(scores).scatter_(-1, best, 1))
    found = torch.zeros_like(scores).scatter_(-1, best, 1)
    assert torch.equal(found.to_torch(), torch.zeros(8, 4).scatter_(-1, full.topk(2, -1).indices, 1))


@pytest.mark.parametrize("ids", [(0, 3, 3, 7, 1), (5, 5, 5, 5, 5), (0, 1, 2, 3, 1), (7, 6, 5, 4, 4)], ids=str)
@pytest.mark.parametrize("padding", [None, 3])
def test_two_tables(ids: Any, padding: int | None) -> None:
    tables, where = [grad(8, 4), grad(8, 6)], torch.tensor(ids)
    placed = [place(t, (2,), ("S0",)) for t in tables]
    here = place(where, (2,), ("R",))
    for given, at in ((tables, where), (placed, here)):
        rows = [F.embedding(at, t, padding) for t in given]  # both looked up, then both reduced
        loss = sum((r * r).sum() for r in reversed(rows))
        loss.backward()  # type: ignore[union-attr]
    for full, cut in zip(tables, placed, strict=True):
        torch.testing.assert_close(cut.grad.to_torch(), full.grad)


@pytest.mark.parametrize("places", ["R", "S0", "P"])
def test_cat_along_the_cut_dim(places: str) -> None:
    a, b = (place(torch.arange(4.0) + start, (2,), (places,)) for start in (0, 10))
    both = torch.cat([a, b])
    assert both.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert [part.tolist() for part in both.chunk(2)] == [[0, 1, 2, 3], [10, 11, 12, 13]]
    assert [part.tolist() for part in both.split([1, 7])] == [[0], [1, 2, 3, 10, 11, 12, 13]]


@pytest.mark.parametrize("one", ways(2, (2,)), ids="".join)
@pytest.mark.parametrize("other", ways(2, (2,)), ids="".join)
@pytest.mark.parametrize("join", [torch.stack, torch.cat])
def test_stack_picks_a_sound_placement(one: Any, other: Any, join: Any) -> None:
    assert_like_torch(lambda a, b: join([a, b]), [grad(3, 5), grad(3, 5)], (2,), (one, other))
    if {one, other} <= {("R",), ("P",)}:
        a, b = place(torch.ones(3, 5), (2,), one), place(torch.ones(3, 5), (2,), other)
        assert not kinds_sent(lambda: join([a, b]))


IDS = torch.tensor([[0, 2, 2], [1, 0, 2]])
CASES = {
    "scatter": (lambda x, i, s: x.scatter(0, i, s), [grad(3, 4), IDS, torch.randn(4, 5)]),
    "scatter value": (lambda x, i: x.scatter(1, i, 7.0), [grad(3, 4), IDS]),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), [grad(3, 4), IDS, torch.randn(4, 5)]),
    "gather": (lambda x, i: x.gather(0, i), [grad(3, 4), IDS]),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), [grad(2, 4), IDS]),
    "index_select": (lambda x, i: x.index_select(0, i), [grad(5, 4), torch.tensor([4, 0, 0, 2])]),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), [grad(5, 4), torch.tensor([4, 1]), grad(2, 4)]),
    "index_fill": (lambda x, i: x.index_fill(0, i, 3.0), [grad(5, 4), torch.tensor([4, 1])]),
    "embedding": (lambda w, i: F.embedding(i, w, 1), [grad(5, 4), IDS]),
    "embedding bag": (lambda w, i: F.embedding_bag(i, w, mode="sum"), [grad(5, 4), IDS]),
    "embedding, scaled": (lambda w, i: F.embedding(i, w, scale_grad_by_freq=True), [grad(5, 4), IDS]),
    "one_hot": (lambda i: F.one_hot(i, 3), [IDS]),
    "cat": (lambda a, b: torch.cat([a, b, a]), [grad(3, 4), grad(1, 4)]),
    "cat 1": (lambda a, b: torch.cat([a, b], 1), [grad(3, 4), grad(3, 1)]),
    "stack -1": (lambda a, b: torch.stack([a, b], -1), [grad(3, 4), grad(3, 4)]),
    "chunk": (lambda a: a.chunk(3), [grad(5, 4)]),
    "hstack": (lambda a, b: torch.hstack([a, b]), [grad(3, 4), grad(3, 2)]),
    "put": (lambda x, i, s: x.put(i, s, True), [grad(3, 4), torch.tensor([11, 0, 0]), grad(3)]),
    "meshgrid": (lambda a, b: torch.meshgrid(a, b, indexing="ij"), [grad(3), grad(4)]),
    "nonzero": (lambda a: (a > 0).nonzero(), [torch.randn(3, 4)]),
    "unique": (lambda a: a.unique(return_inverse=True), [IDS]),
    "tril": (lambda a: a.tril(-1), [grad(5, 4)]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), under(CASES))
def test_as_torch(fn: Any, tensors: Any, mesh: Any, places: Any) -> None:
    assert_like_torch(fn, tensors, mesh, places)
