"""softmax and its kin along a cut dim: statistics are combined, nothing is gathered."""

import pytest
import torch
import torch.nn.functional as F

from tests.dist import assert_like_torch, communications, over, place

A = torch.randn(5, 7, 3, requires_grad=True)
V = torch.randn(6, requires_grad=True)
LINE = torch.randn(2, requires_grad=True)
INF = float("inf")

CASES = {
    "softmax": (lambda x: F.softmax(x, 1), [A]),
    "softmax last": (lambda x: F.softmax(x, -1), [A]),
    "log_softmax": (lambda x: F.log_softmax(x, 1), [A]),
    "log_softmax vector": (lambda x: F.log_softmax(x, 0), [V]),
    "softmax of few": (lambda x: F.softmax(x, 0), [LINE]),
    "softmin": (lambda x: F.softmin(x, 0), [A]),
    "safe softmax": (lambda x: torch._safe_softmax(x, 1), [A]),
    "log_softmax twice": (lambda x: F.log_softmax(F.log_softmax(x, 1) * 2, 1), [A]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 8))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


@pytest.mark.parametrize("fn", [F.softmax, F.log_softmax])
@pytest.mark.parametrize(("dim", "exchanges"), [(1, 1), (0, 0), (2, 0)])
def test_forward_sends_two_numbers_a_row(fn, dim, exchanges):
    sent = communications(lambda x: fn(x, 1), [A], (4,), [(f"S{dim}",)])
    assert [c.kind for c in sent] == ["statistics"] * exchanges
    if exchanges:
        assert sent[0].bytes == 2 * (2 * 3 * 5 * 3 * 4)
    assert fn(place(A, (4,), (f"S{dim}",)), 1).placements == place(A, (4,), (f"S{dim}",)).placements


def test_gradient_without_a_loss_behind_it():
    z = place(torch.tensor([[1.0, 2.0, 3.0, 4.0]], requires_grad=True), (4,), ("S1",))
    F.log_softmax(z, 1).sum().backward()
    wanted = 1 - 4 * torch.tensor([[1.0, 2.0, 3.0, 4.0]]).softmax(1)
    torch.testing.assert_close(z.grad.to_torch(), wanted)


@pytest.mark.parametrize("fn", [F.softmax, F.log_softmax, torch.logsumexp])
@pytest.mark.parametrize(
    "row", [[1000.0, 0.0, -1000.0, 999.0], [-INF, -INF, 2.0, 1.0], [1.0, 2.0, -INF, -INF], [-INF] * 4]
)
def test_extreme_rows(fn, row):
    x = torch.tensor([row, [0.0, 1.0, 2.0, 3.0]])
    torch.testing.assert_close(fn(place(x, (2,), ("S1",)), 1).to_torch(), fn(x, 1), equal_nan=True)


def test_halves_to_float():
    x = torch.randn(4, 9).bfloat16()
    found = F.log_softmax(place(x, (4,), ("S1",)), 1, dtype=torch.float32)
    torch.testing.assert_close(found.to_torch(), F.log_softmax(x, 1, dtype=torch.float32))
    found = F.softmax(place(x, (4,), ("S1",)), 1)
    torch.testing.assert_close(found.to_torch(), F.softmax(x, 1), rtol=2e-2, atol=1e-3)
