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
    "rows in bags": (
        lambda x, i: F.embedding_bag(i, x, torch.tensor([0, 2]), include_last_offset=False),
        # indices, offsets, 3 rows; sums of 2 bags, and what torch keeps for the backward
        3 * 8 + 2 * 8 + 3 * ROW + 2 * ROW + 7 * 8,
    ),
    "a trace": (lambda x, i: x[:8].trace(), 8 * 4 + 4),
    "rows by mask": (lambda x, i: x[torch.arange(100) < 3], 100 + 2 * 3 * ROW),
    "places of what is not 0": (lambda x, i: (x > 9e9).nonzero(), 100 * 8 + 0),
    "rows of a table": (lambda x, i: F.embedding(i, x), 3 * 8 + 2 * 3 * ROW),
    "gathered elements": (lambda x, i: x.gather(0, i[:, None]), 3 * 8 + 2 * 3 * 4),
    "written rows": (lambda x, i: x.index_put_((i,), x.new_zeros(3, 8)), 3 * 8 + 2 * 3 * ROW),
    "added rows": (lambda x, i: x.index_add_(0, i, x.new_ones(3, 8)), 3 * 8 + 2 * 3 * ROW),
    "a fill": (lambda x, i: x.zero_(), 100 * ROW),
    "a copy": (lambda x, i: x.copy_(x.new_empty(100, 8)), 2 * 100 * ROW),
    "a copy of one row": (lambda x, i: x.copy_(x.new_empty(8)), 100 * ROW + ROW),
    # Every byte once, whether it is read, written or both.
    "a sum": (lambda x, i: x + x.new_empty(100, 8), 3 * 100 * ROW),
    "a sum in place": (lambda x, i: x.add_(x.new_empty(100, 8)), 2 * 100 * ROW),
    "a product in place": (lambda x, i: x.mul_(2), 100 * ROW),
    "a sum with a row": (lambda x, i: x + x.new_empty(8), 2 * 100 * ROW + ROW),
    "a sum with an expanded row": (lambda x, i: x + x.new_empty(8).expand(100, 8), 2 * 100 * ROW + ROW),
    "an expanded row made real": (lambda x, i: x.new_empty(8).expand(50, 8).clone(), ROW + 50 * ROW),
    "every second column": (lambda x, i: x[:, ::2].relu(), 2 * 100 * ROW // 2),
    "an index for all columns": (
        lambda x, i: x.gather(0, i[:, None].expand(3, 8)),
        3 * 8 + 2 * 3 * ROW,
    ),
    "a product": (lambda x, i: x.T @ x, 2 * 100 * ROW + 8 * ROW),
    "a reduction": (lambda x, i: x.sum(0), 100 * ROW + ROW),
    "targets of a loss": (
        lambda x, i: F.nll_loss(x, i.new_zeros(100)),
        100 * 8 + 100 * 4 + 4 + 4,
    ),
    "an empty tensor": (lambda x, i: x.new_empty(5, 5), 0),
    "zeros": (lambda x, i: x.new_zeros(5, 5), 100),
    "a mask of one element": (
        lambda x, i: x.masked_fill_(x.new_ones(8, dtype=torch.bool), 0.0),
        100 * ROW + 8,
    ),
}


@pytest.mark.parametrize(("fn", "touched"), CASES.values(), ids=CASES)
def test_touched(fn, touched):
    x, ids = place(X, (2,), ["R"]), place(IDS, (2,), ["R"])
    with Graph.default_graph().record() as graph:
        fn(x, ids)
    assert graph.operators[-1].price().traffic_bytes == touched


def test_the_gradient_of_a_loss_reads_no_scores():
    x = place(torch.randn(6, 5).requires_grad_(), (1,), ["R"])
    with Graph.default_graph().record() as graph:
        F.nll_loss(x, torch.zeros(6, dtype=torch.int64)).backward()
    (backward,) = [op for op in graph.operators if op.type == "CrossEntropyBackward"]
    # The incoming gradient, targets, the total weight, and the gradient in full.
    assert backward.price().traffic_bytes == 4 + 6 * 8 + 4 + 6 * 5 * 4


def test_the_gradient_of_a_pool_reads_no_picture():
    x = place(torch.randn(1, 2, 4, 4).requires_grad_(), (1,), ["R"])
    with Graph.default_graph().record() as graph:
        F.max_pool2d(x, 2).sum().backward()
    (forward, backward) = [op for op in graph.operators if op.type == "Pooling"]
    # Values and places of 8 windows; an incoming gradient of one expanded number, places, the whole gradient.
    assert forward.price().traffic_bytes == 32 * 4 + 8 * 4 + 8 * 8
    assert backward.price().traffic_bytes == 4 + 8 * 8 + 32 * 4


def test_an_optimizer_in_place_touches_parameter_gradient_and_states_once():
    p = place(torch.zeros(6, 5).requires_grad_(), (2,), ["S0"])
    p.grad = place(torch.ones(6, 5), (2,), ["S0"])
    adam = torch.optim.AdamW([p], fused=True)
    adam.step()
    with Graph.default_graph().record() as graph:
        adam.step()
    (step,) = [op for op in graph.operators if op.type == "FusedOptimizer"]
    assert 4 * 6 * 5 * 4 <= step.price().traffic_bytes <= 4 * 6 * 5 * 4 + 16
