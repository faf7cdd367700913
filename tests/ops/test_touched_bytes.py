"""Bytes really touched, where they are fewer than those of the operands."""

import pytest
import torch
import torch.nn.functional as F

from dtorch.graph.graph import Graph
from tests.dist import place

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(100, 8, generator=DRAW)
IDS = torch.tensor([3, 5, 3])
ROW = 8 * 4

CASES = {
    "a view": (lambda x, i: x[2:50], 0),
    "a selection": (lambda x, i: x[2], 0),
    "pieces": (lambda x, i: x.split(10), 0),
    "a squeeze": (lambda x, i: x.squeeze(), 0),
    "rows by index": (lambda x, i: x[i], 3 * 8 + 2 * 3 * ROW),
    "rows by index_select": (lambda x, i: x.index_select(0, i), 3 * 8 + 2 * 3 * ROW),
    "rows of a table": (lambda x, i: F.embedding(i, x), 3 * 8 + 2 * 3 * ROW),
    "gathered elements": (lambda x, i: x.gather(0, i[:, None]), 3 * 8 + 2 * 3 * 4),
    "written rows": (lambda x, i: x.index_put_((i,), x.new_zeros(3, 8)), 3 * 8 + 2 * 3 * ROW),
    "added rows": (lambda x, i: x.index_add_(0, i, x.new_ones(3, 8)), 3 * 8 + 2 * 3 * ROW),
    "a fill": (lambda x, i: x.zero_(), 100 * ROW),
    "a copy": (lambda x, i: x.copy_(x.new_empty(100, 8)), 2 * 100 * ROW),
}


@pytest.mark.parametrize(("fn", "touched"), CASES.values(), ids=CASES)
def test_touched(fn, touched):
    x, ids = place(X, (2,), ["S1"]), place(IDS, (2,), ["R"])
    with Graph.default_graph().record() as graph:
        fn(x, ids)
    assert graph.operators[-1].price().traffic_bytes == touched
