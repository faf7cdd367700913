"""Batch normalisation: statistics of the whole batch, however it is cut; running statistics written once."""

import pytest
import torch
import torch.nn.functional as F

from tests.dist import assert_like_torch, communications, over, place

X = torch.randn(5, 6, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
ROWS = torch.randn(5, 6, generator=torch.Generator().manual_seed(2)).requires_grad_()
W = (torch.arange(6.0) + 1).requires_grad_()
B = torch.linspace(-1, 1, 6).requires_grad_()
MEAN, VAR = torch.linspace(-0.5, 0.5, 6), torch.linspace(0.5, 2, 6)
FEW = torch.randn(2, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
CASES = {
    "training": (lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=True), [X, W, B, MEAN, VAR]),
    "training on rows": (lambda x, m, v: F.batch_norm(x, m, v, training=True), [ROWS, MEAN, VAR]),
    "training on two rows": (lambda x, m, v: F.batch_norm(x, m, v, training=True), [FEW, MEAN, VAR]),
    "without statistics": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), [X, W, B]),
    "momentum": (lambda x, m, v: F.batch_norm(x, m, v, training=True, momentum=0.7), [X, MEAN, VAR]),
    "evaluation": (lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b), [X, W, B, MEAN, VAR]),
    "evaluation without affine": (lambda x, m, v: F.batch_norm(x, m, v), [ROWS, MEAN, VAR]),
    "instance": (lambda x, w: F.instance_norm(x, weight=w), [X, W]),
    "frozen weight": (lambda x, b: F.batch_norm(x, None, None, W.detach(), b, training=True), [X, B]),
    "statistics alone": (
        lambda x, m, v: torch.batch_norm_update_stats(x, m, v, 0.1),
        [X.detach(), MEAN, VAR],
    ),
    "twice": (
        lambda x, m, v: F.batch_norm(F.batch_norm(x, m, v, training=True) * 2, m, v, training=True),
        [X, MEAN, VAR],
    ),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 5))
def test_like_torch(fn, tensors, mesh, places):
    """Running statistics are among the inputs, so they are compared after the call."""
    assert_like_torch(fn, tensors, mesh, places)


@pytest.mark.parametrize("mesh", [(2,), (4,), (8,), (2, 2)])
def test_running_statistics_of_an_uneven_batch(mesh):
    x = torch.cat([torch.zeros(3, 2), torch.ones(2, 2) * 10])
    mean, var = torch.zeros(2), torch.ones(2)
    placed = [place(t, mesh, ["R"] * len(mesh)) for t in (mean, var)]
    F.batch_norm(place(x, mesh, ["S0"] * len(mesh)), *placed, training=True)
    assert torch.allclose(placed[0].to_torch(), torch.tensor([0.4, 0.4]))
    assert torch.allclose(placed[1].to_torch(), torch.tensor([3.9, 3.9]))


SENT = {
    "batch": ([("S0",), ("R",), ("R",), ("R",), ("R",)], 2 * (2 * 3 * 6 * 4)),
    "space": ([("S2",), ("R",), ("R",), ("R",), ("R",)], 2 * (2 * 3 * 6 * 4)),
    "channels": ([("S1",), ("S0",), ("S0",), ("S0",), ("S0",)], 0),
    "channels, weights whole": ([("S1",), ("R",), ("R",), ("S0",), ("S0",)], 0),
}


@pytest.mark.parametrize(("places", "sent"), SENT.values(), ids=SENT)
def test_sends_two_numbers_a_channel(places, sent):
    fn, tensors = CASES["training"]
    found = communications(fn, tensors, (4,), places)
    assert {c.kind for c in found} <= {"statistics"}
    assert sum(c.bytes for c in found) == sent


def test_evaluation_sends_nothing():
    fn, tensors = CASES["evaluation"]
    assert communications(fn, tensors, (4,), [("S0",), *[("R",)] * 4]) == []


def test_offset_does_not_cancel():
    x = torch.randn(9, 4) + 1e4
    found = F.batch_norm(place(x, (4,), ("S0",)), None, None, training=True).to_torch()
    wanted = F.batch_norm(x.double(), None, None, training=True).float()
    assert (found - wanted).abs().max() < 5e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    x, w, m, v = X.detach().to(dtype), W.detach().to(dtype), MEAN.to(dtype), VAR.to(dtype)
    for places in (("S0",), ("S1",), ("R",)):
        placed = [place(m, (4,), ("R",)), place(v, (4,), ("R",))]
        wanted = [m.clone(), v.clone()]
        found = F.batch_norm(place(x, (4,), places), *placed, place(w, (4,), ("R",)), training=True)
        expected = F.batch_norm(x, *wanted, w, training=True)
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(found.to_torch(), expected, **tolerance)
        torch.testing.assert_close(placed[1].to_torch(), wanted[1], **tolerance)


def test_module_steps_like_torch():
    """num_batches_tracked, running statistics and gradients over three steps, then evaluation."""
    torch.manual_seed(0)
    plain, ours = torch.nn.BatchNorm1d(6, momentum=None), torch.nn.BatchNorm1d(6, momentum=None)
    for step in range(3):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        plain(x).square().sum().backward()
        ours(place(x, (4,), ("S0",))).square().sum().backward()
    torch.testing.assert_close(ours.running_mean, plain.running_mean)
    torch.testing.assert_close(ours.running_var, plain.running_var)
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-5)
    found = ours.eval()(place(x, (4,), ("S0",)))
    torch.testing.assert_close(found.to_torch(), plain.eval()(x).detach())
