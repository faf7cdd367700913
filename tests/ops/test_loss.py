"""Losses over cut samples and cut classes, against plain torch; only statistics are sent."""

import pytest
import torch
import torch.nn.functional as F

from tests.dist import assert_like_torch, communications, over, place

X = torch.randn(6, 5, requires_grad=True)
T = torch.tensor([1, 4, 0, 2, 2, 3])
HOLES = torch.tensor([1, -100, 0, 2, -100, 3])
NONE = torch.full((6,), -100)
W = torch.rand(5) + 0.1
IMAGE = torch.randn(2, 5, 3, 2, requires_grad=True)
MAP = torch.randint(0, 5, (2, 3, 2))
ONE = torch.randn(5, requires_grad=True)
SOFT = torch.rand(6, 5).softmax(1)
Y = torch.randn(6, 5)
# Away from 0 and 1, where the gradient 1 / p(1 - p) would magnify the rounding of a pending sum's parts.
P = (torch.rand(6, 5) * 0.8 + 0.1).requires_grad_()
TWO = torch.randn(2, 3, requires_grad=True)

CASES = {
    **{
        f"cross entropy {reduction}": (
            lambda x, t, w, r=reduction: F.cross_entropy(x, t, w, reduction=r),
            [X, T, W],
        )
        for reduction in ("none", "mean", "sum")
    },
    **{
        f"cross entropy ignoring {reduction}": (
            lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r),
            [X, HOLES],
        )
        for reduction in ("none", "mean", "sum")
    },
    "cross entropy smoothed": (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), [X, T]),
    "cross entropy of all ignored": (lambda x, t: F.cross_entropy(x, t, reduction="sum"), [X, NONE]),
    "cross entropy of a map": (F.cross_entropy, [IMAGE, MAP]),
    "cross entropy of a map, weighted": (
        lambda x, t, w: F.cross_entropy(x, t, w, reduction="none"),
        [IMAGE, MAP, W],
    ),
    "cross entropy of one": (lambda x: F.cross_entropy(x, torch.tensor(3)), [ONE]),
    "cross entropy of few": (lambda x: F.cross_entropy(x, torch.tensor([2, 0])), [TWO]),
    "cross entropy of probabilities": (F.cross_entropy, [X, SOFT]),
    "nll": (lambda x, t: F.nll_loss(x, t, ignore_index=2), [X, T]),
    **{
        f"mse {reduction}": (lambda x, y, r=reduction: F.mse_loss(x, y, reduction=r), [X, Y])
        for reduction in ("none", "mean", "sum")
    },
    "mse of few": (lambda x: F.mse_loss(x, torch.zeros(2, 3)), [TWO]),
    "l1": (F.l1_loss, [X, Y]),
    "smooth l1": (F.smooth_l1_loss, [X, Y]),
    "huber": (lambda x, y: F.huber_loss(x, y, delta=0.5), [X, Y]),
    "binary": (F.binary_cross_entropy, [P, SOFT]),
    "binary with logits": (F.binary_cross_entropy_with_logits, [X, SOFT]),
    "soft margin": (F.soft_margin_loss, [X, Y]),
    "kl": (lambda x, y: F.kl_div(F.log_softmax(x, 1), y, reduction="batchmean"), [X, SOFT]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 8))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


@pytest.mark.parametrize(("x", "t"), [("S1", "R"), ("S0", "S0")])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_is_gathered(x, t, reduction):
    sent = communications(
        lambda x, t: F.cross_entropy(x, t, reduction=reduction), [X, HOLES], (4,), [(x,), (t,)]
    )
    assert {c.kind for c in sent} <= {"statistics"}
    if x == "S0":  # log_softmax is local, the loss and its weight are two numbers
        assert sum(c.bytes for c in sent) == (0 if reduction == "none" else 2 * (2 * 3 * 4))


@pytest.mark.parametrize(("x", "t"), [("S1", "R"), ("S0", "S0")])
def test_backward_sends_a_number_a_row(x, t):
    z, target = place(X, (4,), (x,)), place(T, (4,), (t,))
    loss = F.cross_entropy(z, target)
    sent = communications(lambda *_: loss.backward(), [], (4,), [])
    assert {c.kind for c in sent} <= {"statistics"}
    assert sum(c.bytes for c in sent) == (2 * 3 * 6 * 4 if x == "S1" else 0)
    assert z.grad.placements == z.placements


@pytest.mark.parametrize("places", ["S0", "S1"])
def test_extreme_logits(places):
    x = torch.tensor([[1000.0, 0.0, -1000.0, 999.0]])
    found = F.cross_entropy(place(x, (2,), (places,)), torch.tensor([3]))
    torch.testing.assert_close(found.to_torch(), F.cross_entropy(x, torch.tensor([3])))


def test_a_target_that_is_no_class():
    x = place(X, (4,), ("S1",))
    with pytest.raises(IndexError, match="Target 5 is out of bounds"):
        F.cross_entropy(x, torch.tensor([5, 0, 0, 0, 0, 0]))


def test_mean_of_no_samples_is_nan():
    x = place(torch.zeros(0, 5), (4,), ("S0",))
    assert F.cross_entropy(x, torch.zeros(0, dtype=torch.long)).to_torch().isnan()


def test_halves():
    x = torch.randn(6, 9).bfloat16()
    found = F.cross_entropy(place(x, (4,), ("S1",)), T)
    torch.testing.assert_close(found.to_torch(), F.cross_entropy(x, T), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("places", ["S0", "S1", "P", "R"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradient_of_no_samples_is_zero(places, reduction):
    ignored = torch.full((6,), -100)
    x = place(X.detach(), (4,), (places,)).requires_grad_()
    F.cross_entropy(x, ignored, reduction=reduction).sum().backward()
    assert not x.grad.to_torch().any()


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("places", [("S0", "R", "S0"), ("R", "R", "P"), ("P", "R", "R")])
def test_a_single_sample_tells_its_weight(places, reduction):
    """torch gives the weight of one sample without a batch whatever the reduction."""
    x, target, weight = torch.randn(5), torch.tensor(3), torch.rand(5)
    placed = [place(t, (2,), (p,)) for t, p in zip((x, target, weight), places, strict=True)]
    found = torch.ops.aten.nll_loss_forward(*placed, reduction, -100)
    wanted = torch.ops.aten.nll_loss_forward(x, target, weight, reduction, -100)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.to_torch(), theirs)
