"""Integer and boolean indexing, embedding, gather and scatter, cat and stack, against plain torch."""

import pytest
import torch
import torch.nn.functional as F

from dtorch.graph.graph import Graph
from tests.dist import assert_like_torch, communications, over, place

DRAW = torch.Generator().manual_seed(0)
A = torch.randn(6, 5, 4, requires_grad=True, generator=DRAW)
B = torch.randn(6, 5, requires_grad=True, generator=DRAW)
V = torch.randn(7, requires_grad=True, generator=DRAW)
W = torch.randn(8, 4, requires_grad=True, generator=DRAW)
IDS = torch.tensor([[0, 7, 3], [3, 3, 1]])
ONE_DEVICE = torch.tensor([2, 3, 2, 3, 3])
I5 = torch.tensor([4, 0, 2, 2, 1])
J5 = torch.tensor([-1, 0, 3, 1, 1])
G = torch.tensor(
    [[0, 1, 2, 3, 4], [4, 4, 4, 0, 0], [3, 2, 1, 0, 2], [0, 0, 0, 0, 0], [1, 1, 2, 2, 3], [4, 3, 2, 1, 0]]
)
SHORT = G[:4, :2]
MASK = torch.tensor([True, False, True, True, False, True])
MASK2 = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) > 0.5
S = torch.randn(6, 5, requires_grad=True, generator=DRAW)
ROWS = torch.randn(5, 5, requires_grad=True, generator=DRAW)
ROW = torch.randn(5, requires_grad=True, generator=DRAW)

CASES = {
    "index": (lambda x, i: x[i], [A, I5]),
    "index middle": (lambda x, i: x[:, i % 5], [A, I5]),
    "index last": (lambda x, i: x[..., i % 4], [A, I5]),
    "index two": (lambda x, i, j: x[i, j], [A, I5, J5]),
    "index apart": (lambda x, i, j: x[i, :, j], [A, I5, J5]),
    "index broadcast": (lambda x, i, j: x[i[:, None], j[:3]], [A, I5, J5]),
    "index list": (lambda x: x[..., [0, 2]], [A]),
    "mask": (lambda x, m: x[m], [A, MASK]),
    "mask whole": (lambda x, m: x[m], [B, MASK2]),
    "index_select": (lambda x, i: x.index_select(0, i), [A, I5]),
    "index_select last": (lambda x, i: x.index_select(-1, i % 4), [A, I5]),
    "index_select vector": (lambda x, i: x.index_select(0, i), [V, I5]),
    "gather": (lambda x, i: x.gather(1, i), [B, G]),
    "gather short": (lambda x, i: x.gather(0, i), [B, SHORT]),
    "gather rows": (lambda x, i: x.gather(-1, i), [B, G[:, :1]]),
    "take": (lambda x, i: x.take(i), [B, G]),
    "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), [B, G]),
    "embedding": (lambda w, i: F.embedding(i, w), [W, IDS]),
    "embedding padding": (lambda w, i: F.embedding(i, w, padding_idx=3), [W, IDS]),
    "embedding frequency": (lambda w, i: F.embedding(i, w, scale_grad_by_freq=True), [W, IDS]),
    "embedding one device": (lambda w, i: F.embedding(i, w), [W, ONE_DEVICE]),
    "cat": (lambda a, b: torch.cat([a, b], 0), [B, S]),
    "cat last": (lambda a, b: torch.cat([a, b, a], -1), [B, S]),
    "cat uneven": (lambda a, b: torch.cat([a, b]), [ROWS, S]),
    "cat and back": (lambda a, b: torch.cat([a, b]).chunk(2), [B, S]),
    "stack": (lambda a, b: torch.stack([a, b], 1), [B, S]),
    "stack last": (lambda a, b: torch.stack([a, b], -1), [B, S]),
    "masked_fill by index_put": (lambda x, m: (x * 1).index_put_((m,), torch.tensor(2.0)), [B, MASK2]),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), [B, G.sort(1)[0] * 0 + torch.arange(5), S]),
    "scatter value": (lambda x, i: x.scatter(1, i, 3.0), [B, G]),
    "scatter zero": (lambda x, i: x.scatter(0, i, 0.0), [B, SHORT]),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), [B, G, S]),
    "scatter_add short": (lambda x, i, s: x.scatter_add(0, i, s), [B, SHORT, S.detach()]),
    "scatter_add_": (lambda x, i, s: (x * 1).scatter_add_(0, i, s), [B, G, S]),
    "scatter_reduce": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), [B, G, S]),
    "scatter_reduce sum": (lambda x, i, s: x.scatter_reduce(1, i, s, "sum", include_self=False), [B, G, S]),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2), [B, I5, ROWS]),
    "index_add_": (lambda x, i, s: (x * 1).index_add_(0, i, s), [B, I5, ROWS]),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), [B, torch.tensor([4, 0, 2, 3, 1]), ROWS]),
    "index_fill": (lambda x, i: x.index_fill(1, i, 7.0), [B, I5]),
    "index_fill tensor": (lambda x, i: x.index_fill(0, i, torch.tensor(2.0)), [B, I5]),
    "index_put": (lambda x, i, s: x.index_put((i,), s), [B, torch.tensor([4, 0, 2, 3, 1]), ROWS]),
    "index_put add": (lambda x, i, s: x.index_put((i,), s, accumulate=True), [B, I5, ROWS]),
    "index_put add broadcast": (lambda x, i, s: x.index_put((i,), s[0], accumulate=True), [B, I5, ROWS]),
    "index_put column": (lambda x, i: torch.ops.aten.index_put(x, [None, i], torch.tensor(1.0)), [B, I5]),
    "index_put two": (
        lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
        [B, I5, I5.flip(0), V.detach()[:5]],
    ),
    "put": (lambda x, i, s: x.put(i, s, accumulate=True), [B, I5, ROWS[0].detach()]),
    "masked_scatter": (lambda x, m, s: x.masked_scatter(m, s), [B, MASK2, S]),
    "masked_select": (lambda x, m: x.masked_select(m), [B, MASK2]),
    "slice_scatter": (lambda x, s: x.slice_scatter(s, 0, 1, 6), [B, ROWS]),
    "select_scatter": (lambda x, s: x.select_scatter(s[0], 0, 2), [B, ROWS]),
    "diagonal_scatter": (lambda x, s: x.diagonal_scatter(s[0]), [B, ROWS]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


def _set_rows(x, m, v):
    return x.index_put((m,), v)


def _set_mask(x, m):
    y = x * 1
    y[m] = 0
    return y


def _set_index(x, i):
    y = x * 1
    y[i] = 5
    y[:, i] += 1
    y[1:3, 2:] = -1
    return y


WRITES = {
    "mask": (_set_mask, [B, MASK2]),
    "mask rows": (_set_mask, [B, MASK]),
    "mask, one row": (_set_rows, [B, MASK, ROW]),
    "mask, one number": (_set_rows, [B, MASK, torch.randn(1, 1, generator=DRAW)]),
    "mask, a row each": (_set_rows, [B, MASK, torch.randn(4, 1, generator=DRAW)]),
    "index": (_set_index, [B, I5]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(WRITES))
def test_writes_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


LOCAL = {
    "index of the cut dim": (lambda x, i: x[i], [A, I5], ("S0", "R")),
    "gather of the cut dim": (lambda x, i: x.gather(1, i), [B, G], ("S1", "R")),
    "index": (lambda x, i: x[i], [A, I5], ("S1", "R")),
    "index by cut ids": (lambda x, i: x[i], [A, I5], ("R", "S0")),
    "index pending": (lambda x, i: x[i, i], [A, I5], ("P", "R")),
    "gather": (lambda x, i: x.gather(1, i), [B, G], ("S0", "S0")),
    "embedding ids": (lambda w, i: F.embedding(i, w), [W, IDS], ("R", "S1")),
    "embedding width": (lambda w, i: F.embedding(i, w), [W, IDS], ("S1", "R")),
    "embedding vocabulary": (lambda w, i: F.embedding(i, w), [W, IDS], ("S0", "R")),
    "cat": (lambda a, b: torch.cat([a, b]), [B, S], ("S1", "S1")),
    "cat along": (lambda a, b: torch.cat([a, b]).chunk(2), [B, S], ("S0", "S0")),
    "cat pending": (lambda a, b: torch.cat([a, b]), [B, S], ("P", "P")),
    "stack mixed": (lambda a, b: torch.stack([a, b]), [B, S], ("R", "P")),
    "stack pending": (lambda a, b: torch.stack([a, b]), [B, S], ("P", "P")),
    "scatter_add along": (lambda x, i, s: x.scatter_add(1, i, s), [B, G, S], ("P", "S1", "S1")),
    "scatter mask": (lambda x, i: torch.zeros_like(x).scatter_(-1, i, 1), [B, G], ("S0", "S0")),
    "slice_scatter": (lambda x, s: x.slice_scatter(s, 0, 1, 6), [B, ROWS], ("S1", "S1")),
    "index_put": (lambda x, i, s: x.index_put((i,), s), [B, I5, ROWS], ("S1", "R", "S1")),
    "index_put mask": (_set_mask, [B, MASK2], ("S0", "S0")),
    "index_put mask, one row": (_set_rows, [B, MASK, ROW], ("S0", "S0", "R")),
    "index_put mask, of a row": (_set_rows, [B, MASK, ROW], ("S1", "R", "S0")),
    "index_put mask, pending": (_set_rows, [B, MASK, ROW], ("P", "R", "P")),
}


@pytest.mark.parametrize(("fn", "tensors", "places"), LOCAL.values(), ids=LOCAL)
def test_stays_local(fn, tensors, places):
    assert communications(fn, tensors, (4,), [(p,) for p in places]) == []


def test_embedding_gradients_are_reduced_once():
    w, ids = place(W, (4,), ["R"]), place(IDS.repeat(40, 1), (4,), ["S0"])
    with Graph.default_graph().record() as graph:
        F.embedding(ids, w).sum().backward()
    assert [c.kind for c in graph.communications() if c.in_backward] == ["all_reduce"]


def test_two_cut_tables():
    a, b = torch.randn(8, 4), torch.randn(8, 6)
    x, y = (F.embedding(place(IDS, (2,), ["R"]), place(t, (2,), ["S0"])) for t in (a, b))
    torch.testing.assert_close(x.to_torch(), F.embedding(IDS, a))
    torch.testing.assert_close(y.to_torch(), F.embedding(IDS, b))


@pytest.mark.parametrize("wrong", [8, -1])
def test_ids_out_of_range_are_refused_where_the_table_is_cut(wrong):
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        F.embedding(place(torch.tensor([0, wrong]), (4,), ["R"]), place(W, (4,), ["S0"]))


def test_cat_with_a_legacy_empty_tensor():
    k = place(B, (4,), ["S1"])
    joined = torch.cat([place(torch.empty(0), (4,), ["R"]), k])
    assert joined.placements == k.placements
    torch.testing.assert_close(joined.to_torch(), B.detach())


@pytest.mark.parametrize("accumulate", [False, True])
def test_put_at_global_places(accumulate):
    ids = torch.tensor([0, 0, 15]) if accumulate else torch.arange(16)
    x, plain = place(torch.zeros(16), (2,), ["S0"]), torch.zeros(16)
    for t in (x, plain):
        t.put_(ids, torch.ones(len(ids)), accumulate)
    torch.testing.assert_close(x.to_torch(), plain)
