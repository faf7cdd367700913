"""Layer, RMS and group normalisation: leading dims local, normalised dims by statistics."""

import pytest
import torch
import torch.nn.functional as F

from tests.dist import assert_like_torch, communications, over, place

X = torch.randn(3, 4, 6, requires_grad=True)
W = torch.rand(6, requires_grad=True)
B = torch.randn(6, requires_grad=True)
PLANE = torch.randn(4, 6, requires_grad=True)
IMAGE = torch.randn(3, 8, 5, requires_grad=True)
CW = torch.rand(8, requires_grad=True)
CB = torch.randn(8, requires_grad=True)
FIXED = torch.rand(6)

CASES = {
    "layer": (lambda x, w, b: F.layer_norm(x, (6,), w, b), [X, W, B]),
    "layer without affine": (lambda x: F.layer_norm(x, (4, 6)), [X]),
    "layer over two dims": (lambda x, w: F.layer_norm(x, (4, 6), w), [X, PLANE]),
    "layer without bias": (lambda x, w: F.layer_norm(x, (6,), w), [X, W]),
    "layer with a fixed weight": (lambda x, w, b: F.layer_norm(x, (6,), w, b), [X, FIXED, B]),
    "rms": (lambda x, w: F.rms_norm(x, (6,), w, 1e-6), [X, W]),
    "rms without weight": (lambda x: F.rms_norm(x, (4, 6)), [X]),
    "fused rms": (lambda x, w: torch.ops.aten._fused_rms_norm(x, [6], w, 1e-6), [X.detach(), W.detach()]),
    "group": (lambda x, w, b: F.group_norm(x, 4, w, b), [IMAGE, CW, CB]),
    "group without affine": (lambda x: F.group_norm(x, 2), [IMAGE]),
    "one group": (lambda x, w, b: F.group_norm(x, 1, w, b), [IMAGE, CW, CB]),
    "a group a channel": (lambda x, w, b: F.group_norm(x, 8, w, b), [IMAGE, CW, CB]),
    "instance": (lambda x: F.group_norm(x, 8), [IMAGE]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 8))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


SENT = {
    "layer, rows": ("layer", [("S0",), ("R",), ("R",)], 0),
    "layer, features": ("layer", [("S2",), ("S0",), ("S0",)], 2 * (2 * 3 * 12 * 4)),
    "layer, features, weight whole": ("layer", [("S2",), ("R",), ("R",)], 2 * (2 * 3 * 12 * 4)),
    "group, samples": ("group", [("S0",), ("R",), ("R",)], 0),
    "group, groups": ("group", [("S1",), ("S0",), ("S0",)], 0),
    "group, groups, weight whole": ("group", [("S1",), ("R",), ("R",)], 0),
    "group, space": ("group", [("S2",), ("R",), ("R",)], 2 * (2 * 3 * 12 * 4)),
}


@pytest.mark.parametrize(("case", "places", "sent"), SENT.values(), ids=SENT)
def test_sends_statistics_alone(case, places, sent):
    fn, tensors = CASES[case]
    found = communications(fn, tensors, (4,), places)
    assert {c.kind for c in found} <= {"statistics"}
    assert sum(c.bytes for c in found) == sent


def test_weight_gradients_are_pending_until_the_leaf():
    x, w, b = place(X, (4,), ("S0",)), place(W, (4,), ("R",)), place(B, (4,), ("R",))
    y = F.layer_norm(x, (6,), w, b)
    y = (y * y.detach()).sum()
    sent = communications(lambda *_: y.backward(), [], (4,), [])
    assert [c.kind for c in sent] == ["all_reduce", "all_reduce"]
    assert w.grad.placements == w.placements


def test_group_norm_of_a_cut_last_dim():
    x = torch.randn(2, 4, 5) + 1e4
    found = F.group_norm(place(x, (2,), ("S2",)), 2).to_torch()
    torch.testing.assert_close(found, F.group_norm(x.double(), 2).float(), rtol=1e-2, atol=1e-2)


def test_sequence_that_does_not_divide():
    x = torch.randn(1, 7, 8)
    w, v = torch.randn(8), torch.randn(5, 8)

    def model(x, w, v):
        h = F.linear(F.layer_norm(x, (8,), w), v)
        return x + F.linear(h, v.t())

    y = model(place(x, (2,), ("S1",)), place(w, (2,), ("R",)), place(v, (2,), ("R",)))
    torch.testing.assert_close(y.to_torch(), model(x, w, v))
    assert y.placements == place(x, (2,), ("S1",)).placements


def test_fused_rms_arrives_whole_where_nobody_takes_it_apart():
    def fused(x, w):
        with torch.inference_mode():
            return torch.ops.aten._fused_rms_norm(x, [6], w, 1e-6)

    tensors = [X.detach(), W.detach()]
    assert_like_torch(fused, tensors, (4,), [("S2",), ("S0",)])
    sent = communications(fused, tensors, (4,), [("S2",), ("S0",)])
    assert [(c.kind, c.bytes) for c in sent] == [("statistics", 2 * 3 * 12 * 4)]


@pytest.mark.parametrize("way", ["S0", "S1"])
@pytest.mark.parametrize("weight", [torch.bfloat16, torch.float32, None])
@pytest.mark.parametrize("norm", ["layer", "group"])
def test_halves(norm, weight, way):
    def run(x, w):
        y, *statistics = (
            torch.native_layer_norm(x, (8,), w, None, 1e-5)
            if norm == "layer"
            else torch.native_group_norm(x, w, None, x.shape[0], 8, 1, 2, 1e-5)
        )
        return y, *statistics

    x = torch.randn(5, 8) if norm == "layer" else torch.randn(5, 8, 1)
    x, w = x.bfloat16(), None if weight is None else torch.rand(8).to(weight)
    found = run(place(x, (4,), (way,)), None if w is None else place(w, (4,), ("R",)))
    for a, b in zip(found, run(x, w), strict=True):
        torch.testing.assert_close(a.to_torch(), b, rtol=3e-2, atol=3e-2)
