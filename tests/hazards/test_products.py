"""Matrix products, convolutions, attention.

batched matmul on a 2-d mesh gathers for nothing
    `test_batches_stay_local`, `test_as_torch[matmul ...]`
absent arguments shift the rule's argument list
    `test_as_torch[conv ..., layer_norm ..., attention ...]`, `tests/ops/test_sdpa.py`,
    `tests/ops/test_normalization.py`
with several rules for nothing, a whole input is cut
    `test_whole_stays_whole`
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch import Replicate
from tests.dist import assert_like_torch, place
from tests.hazards.cases import kinds_sent, under


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


def test_batches_stay_local() -> None:
    x = place(grad(2, 2, 3), (2, 2), ("S0", "S1"))
    w = place(grad(3, 1), (2, 2), ("R", "R"))
    assert not kinds_sent(lambda: x @ w)
    y = x @ w
    assert y.placements == x.placements
    sent = kinds_sent(lambda: y.backward(torch.ones_like(y)))
    assert set(sent) <= {"all_reduce"}  # of the weight's gradient
    assert len(sent) <= 1


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)], ids=str)
def test_whole_stays_whole(mesh: Any) -> None:
    q, k, v = (place(torch.randn(2, 4, 5, 8), mesh, ("R",) * len(mesh)) for _ in range(3))
    whole = [Replicate()] * len(mesh)
    found = {
        "attention": F.scaled_dot_product_attention(q, k, v),
        "product": q @ k.transpose(-1, -2),
        "element-wise": q + k,
        "softmax": q.softmax(-1),
        "norm": F.layer_norm(q, (8,)),
        "linear": F.linear(q, v[0, 0]),
        "sum": q.sum(0),
    }
    assert {name: list(y.placements) for name, y in found.items()} == dict.fromkeys(found, whole)
    assert not kinds_sent(lambda: F.scaled_dot_product_attention(q, k, v))


def _attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


CASES = {
    "matmul": (torch.matmul, [grad(2, 3, 4), grad(4, 2)]),
    "matmul, both batched": (torch.matmul, [grad(2, 3, 4), grad(2, 4, 2)]),
    "matmul, broadcast": (torch.matmul, [grad(2, 1, 3, 4), grad(3, 4, 2)]),
    "matmul of vectors": (torch.matmul, [grad(4), grad(4)]),
    "matmul by a vector": (torch.matmul, [grad(2, 3, 4), grad(4)]),
    "conv without bias": (lambda x, w: F.conv2d(x, w, None, padding=1), [grad(2, 3, 5, 4), grad(4, 3, 3, 3)]),
    "conv": (lambda x, w, b: F.conv1d(x, w, b, stride=2), [grad(3, 4, 7), grad(2, 4, 3), grad(2)]),
    "conv, frozen weight": (F.conv1d, [grad(3, 4, 7), torch.randn(2, 4, 3), grad(2)]),
    "conv, frozen input": (F.conv1d, [torch.randn(3, 4, 7), grad(2, 4, 3)]),
    "grouped conv": (lambda x, w: F.conv1d(x, w, groups=2), [grad(3, 4, 7), grad(4, 2, 3)]),
    "transposed conv": (F.conv_transpose1d, [grad(3, 4, 5), grad(4, 2, 3), grad(2)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [grad(3, 4), grad(4), grad(4)]),
    "layer_norm, frozen weight": (
        lambda x, w, b: F.layer_norm(x, (4,), w, b), [grad(3, 4), torch.randn(4), grad(4)]
    ),
    "layer_norm, no bias": (lambda x, w: F.layer_norm(x, (4,), w), [grad(3, 4), grad(4)]),
    "layer_norm, bare": (lambda x: F.layer_norm(x, (4,)), [grad(3, 4)]),
    "layer_norm, frozen input": (lambda x, w: F.layer_norm(x, (4,), w), [torch.randn(3, 4), grad(4)]),
    "attention": (_attention, [grad(2, 4, 5, 6), grad(2, 4, 7, 6), grad(2, 4, 7, 6)]),
    "attention, wider values": (_attention, [grad(2, 4, 5, 6), grad(2, 4, 7, 6), grad(2, 4, 7, 3)]),
    "attention, frozen keys": (_attention, [grad(2, 4, 5, 6), torch.randn(2, 4, 7, 6), grad(2, 4, 7, 6)]),
    "linear, no bias": (F.linear, [grad(2, 3, 4), grad(5, 4)]),
    "linear, frozen weight": (F.linear, [grad(2, 3, 4), torch.randn(5, 4), grad(5)]),
    "bilinear": (F.bilinear, [grad(3, 4), grad(3, 5), grad(2, 4, 5)]),
    "outer": (torch.outer, [grad(3), grad(5)]),
    "einsum": (lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k), [grad(2, 4, 3, 5), grad(2, 4, 6, 5)]),
    "pooling": (lambda x: (F.avg_pool1d(x, 2), F.max_pool1d(x, 2)), [grad(3, 4, 7)]),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2), [grad(3, 4, 7)]),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), under(CASES, 4))
def test_as_torch(fn: Any, tensors: Any, mesh: Any, places: Any) -> None:
    assert_like_torch(fn, tensors, mesh, places)


def test_gradients_only_where_asked() -> None:
    mesh = dtorch.init_device_mesh("cpu", (2,))
    x = dtorch.Tensor(torch.randn(4, 6), device_mesh=mesh, placements=["S0"], requires_grad=True)
    w = dtorch.Tensor(torch.randn(6), device_mesh=mesh)
    b = dtorch.Tensor(torch.randn(6), device_mesh=mesh, requires_grad=True)
    F.layer_norm(x, (6,), w, b).sum().backward()
    assert w.grad is None
    assert b.grad.placements == [Replicate()]
    assert x.grad.placements == x.placements
