"""Convolutions: batch, output channels, input channels and groups cut; uneven, empty, pending; FLOPs."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from dtorch.graph.graph import Graph
from tests.dist import assert_like_torch, communications, flat, over, place


def grad(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_()


X, W, B = grad(3, 4, 7, 5), grad(6, 4, 3, 2), grad(6)
LINE, LINE_W = grad(5, 4, 9), grad(6, 4, 3)
GROUPED = grad(8, 2, 3, 3)
CASES = {
    "conv2d": (F.conv2d, [X, W, B]),
    "conv2d without bias": (lambda x, w: F.conv2d(x, w, stride=2, padding=1, dilation=(1, 2)), [X, W]),
    "conv2d same": (lambda x, w: F.conv2d(x, w, padding="same"), [X, grad(2, 4, 3, 3)]),
    "conv2d of one image": (F.conv2d, [grad(4, 7, 5), W, B]),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1), [LINE, LINE_W, B]),
    "conv3d": (F.conv3d, [grad(2, 3, 4, 5, 3), grad(4, 3, 2, 2, 2), grad(4)]),
    "pointwise": (F.conv2d, [X, grad(5, 4, 1, 1), grad(5)]),
    "groups": (lambda x, w, b: F.conv2d(x, w, b, groups=2), [X, GROUPED, grad(8)]),
    "groups of many": (lambda x, w: F.conv1d(x, w, groups=4), [grad(3, 8, 6), grad(12, 2, 3)]),
    "depthwise": (lambda x, w, b: F.conv2d(x, w, b, groups=4), [X, grad(4, 1, 3, 3), grad(4)]),
    "depthwise times two": (lambda x, w: F.conv2d(x, w, groups=4), [X, grad(8, 1, 3, 3)]),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1),
        [X, grad(4, 5, 3, 3), grad(5)],
    ),
    "transposed groups": (
        lambda x, w: F.conv_transpose1d(x, w, groups=2),
        [grad(3, 4, 6), grad(4, 3, 3)],
    ),
    "patches": (lambda x, w, b: F.conv2d(x, w, b, stride=2), [grad(3, 3, 6, 4), grad(5, 3, 2, 2), grad(5)]),
    "many channels": (F.conv2d, [grad(2, 16, 4, 4), grad(2, 16, 3, 3), grad(2)]),
    "frozen weight": (F.conv2d, [X, W.detach(), B]),
    "first layer": (F.conv2d, [X.detach(), W, B]),
    "channels last": (
        lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w),
        [X, W],
    ),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 3))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


LOCAL = {
    "batch": ("conv2d", [("S0",), ("R",), ("R",)], "S0"),
    "output channels": ("conv2d", [("R",), ("S0",), ("S0",)], "S1"),
    "input channels": ("many channels", [("S1",), ("S1",), ("P",)], "P"),
    "input channels, weight whole": ("many channels", [("S1",), ("R",), ("R",)], "P"),
    "groups": ("groups of many", [("S1",), ("S0",)], "S1"),
    "groups, weight whole": ("groups of many", [("S1",), ("R",)], "S1"),
    "channels": ("depthwise", [("S1",), ("S0",), ("S0",)], "S1"),
    "transposed, output channels": ("transposed", [("R",), ("S1",), ("S0",)], "S1"),
    "space of a pointwise one": ("pointwise", [("S2",), ("R",), ("R",)], "S2"),
    "pending input": ("conv2d without bias", [("P",), ("R",)], "P"),
}


@pytest.mark.parametrize(("case", "places", "wanted"), LOCAL.values(), ids=LOCAL)
def test_sends_nothing(case, places, wanted):
    fn, tensors = CASES[case]
    assert communications(fn, tensors, (4,), places) == []
    placed = [place(t, (4,), p) for t, p in zip(tensors, places, strict=True)]
    assert fn(*placed).placements == place(torch.zeros(8, 8, 8, 8), (4,), (wanted,)).placements


def test_a_cut_inside_groups_is_moved_to_their_boundaries():
    """Six channels in two groups, cut by four: no boundary, so the axis goes elsewhere."""
    x, w = grad(4, 6, 5), grad(4, 3, 2)
    found = F.conv1d(place(x, (4,), ("S1",)), place(w, (4,), ("S0",)), groups=2)
    torch.testing.assert_close(found.to_torch(), F.conv1d(x, w, groups=2).detach())


@pytest.mark.parametrize("dim", ["S2", "S3", "S4"])
def test_places_of_one_element_stay_in_their_dim(dim):
    """Space of size 1 with groups: dims are split and composed one by one, cuts of 1 stay where they are."""
    places = [(dim,), ("R",), ("R",)]
    tensors = [grad(2, 6, 3, 1, 4), grad(3, 2, 3, 1, 4), grad(3)]
    assert_like_torch(lambda x, w, b: F.conv3d(x, w, b, groups=3), tensors, (2,), places)


# torch's counter takes the weight's gradient of groups for that of one group: they are counted by hand.
UNGROUPED = [name for name in CASES if "groups" not in name and "depthwise" not in name]


@pytest.mark.parametrize(("fn", "tensors"), [CASES[name] for name in UNGROUPED], ids=UNGROUPED)
def test_flops_are_torchs_counters(fn, tensors):
    plain = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    with FlopCounterMode(display=False) as counter:
        flat(fn(*plain))[0].sum().backward()
    assert flops_of(fn, tensors, (2,), [("R",)] * len(tensors)) == counter.get_total_flops()


def test_flops_of_groups():
    """2 n (g i) o t k: two groups of 2 x 4 channels, 5 x 3 places, 3 x 3 kernel; forward, dx and dw."""
    fn, tensors = CASES["groups"]
    forward = 2 * 3 * 2 * 2 * 4 * (5 * 3) * (3 * 3)
    assert flops_of(fn, tensors, (2,), [("S0",), ("R",), ("R",)]) == 3 * forward


def flops_of(fn, tensors, mesh, places):
    placed = [place(t, mesh, p) for t, p in zip(tensors, places, strict=True)]
    with Graph.default_graph().record() as graph:
        fn(*placed).sum().backward()
    products = [op for op in graph.operators if op.type in ("Conv", "ConvBackward")]
    return sum(op.get_operator_cost().flops or 0 for op in products)


def test_one_device_is_bit_equal():
    for fn, tensors in CASES.values():
        placed = [place(t, (1,), ("R",)) for t in tensors]
        assert torch.equal(fn(*placed).to_torch(), fn(*[t.detach() for t in tensors]))
