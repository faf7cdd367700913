"""Attention: batch, heads (grouped too) and query rows cut, causal or masked, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch.graph.graph import Graph
from tests.dist import assert_like_torch, communications, over, place

sdpa = F.scaled_dot_product_attention


def qkv(b, h, g, s, t, e=8, v=None):
    torch.manual_seed(0)
    shapes = [(b, h, s, e), (b, g, t, e), (b, g, t, v or e)]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


MASK = torch.randn(5, 7)
FULL = torch.randn(3, 4, 5, 7)
PAD = torch.rand(3, 1, 1, 7) > 0.2

CASES = {
    "plain": (sdpa, qkv(3, 4, 4, 5, 7)),
    "causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), qkv(3, 4, 4, 6, 6)),
    "causal of more queries": (lambda q, k, v: sdpa(q, k, v, is_causal=True), qkv(2, 4, 4, 9, 3)),
    "causal of more keys": (lambda q, k, v: sdpa(q, k, v, is_causal=True), qkv(2, 4, 4, 5, 9)),
    "grouped": (lambda q, k, v: sdpa(q, k, v, enable_gqa=True), qkv(2, 8, 4, 5, 7)),
    "grouped causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True), qkv(3, 6, 2, 5, 5)),
    "one key head": (lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True), qkv(2, 4, 1, 5, 5)),
    "masked": (lambda q, k, v, m: sdpa(q, k, v, m), [*qkv(3, 4, 4, 5, 7), MASK]),
    "masked in full": (lambda q, k, v, m: sdpa(q, k, v, m), [*qkv(3, 4, 4, 5, 7), FULL]),
    "padded": (lambda q, k, v, m: sdpa(q, k, v, m), [*qkv(3, 4, 4, 5, 7), PAD]),
    "scaled": (lambda q, k, v: sdpa(q, k, v, scale=0.3), qkv(1, 4, 4, 5, 7)),
    "wider value": (sdpa, qkv(3, 4, 4, 5, 7, 8, 6)),
    "few": (sdpa, qkv(1, 2, 2, 1, 3)),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 8))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


EVERY = {
    "batch": ("plain", ["S0"] * 3, 2),
    "heads": ("plain", ["S1"] * 3, 4),
    "groups": ("grouped", ["S1"] * 3, 4),
    "query rows": ("plain", ["S2", "R", "R"], 4),
    "causal query rows": ("causal", ["S2", "R", "R"], 4),
    "grouped causal query rows": ("grouped causal", ["S2", "R", "R"], 2),
    "query heads of one key head": ("one key head", ["S1", "R", "R"], 4),
    "masked query rows": ("masked", ["S2", "R", "R", "S0"], 4),
    "mask by heads": ("masked in full", ["S1", "S1", "S1", "S1"], 4),
    "padding by batch": ("padded", ["S0", "S0", "S0", "S0"], 2),
    "all whole": ("plain", ["R"] * 3, 4),
}


@pytest.mark.parametrize(("case", "places", "devices"), EVERY.values(), ids=EVERY)
def test_forward_sends_nothing(case, places, devices):
    fn, tensors = CASES[case]
    ways = [(p,) for p in places]
    assert communications(fn, tensors, (devices,), ways) == []
    assert_like_torch(fn, tensors, (devices,), ways)
    out = fn(*[place(t, (devices,), w) for t, w in zip(tensors, ways, strict=True)])
    assert out.placements == place(tensors[0], (devices,), ways[0]).placements


@pytest.mark.parametrize(
    ("case", "places", "kinds"),
    [
        ("plain", ["S0"] * 3, set()),
        ("plain", ["S1"] * 3, set()),
        ("causal of more queries", ["S2", "R", "R"], {"all_reduce"}),
        ("causal", ["S2", "S2", "S2"], {"reduce_scatter"}),
    ],
)
def test_backward_sends_key_gradients_alone(case, places, kinds):
    fn, tensors = CASES[case]
    placed = [place(t, (2,), (w,)) for t, w in zip(tensors, places, strict=True)]
    loss = fn(*placed).sum()
    with Graph.default_graph().record() as graph:
        loss.backward()
    assert {c.kind for c in graph.communications()} == kinds
    assert [t.grad.placements for t in placed] == [t.placements for t in placed]


def test_heads_cut_within_a_group_are_brought_together():
    fn, tensors = CASES["grouped causal"]
    sent = communications(fn, tensors, (3,), [("S1",), ("R",), ("R",)])
    assert [c.kind for c in sent] == ["all_gather"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("places", [("S0", "S1"), ("S1", "S2"), ("S2", "S2"), ("S2", "R")])
def test_two_axes(causal, places):
    q, k, v = qkv(3, 4, 4, 7, 7)
    others = tuple("R" if p == "S2" else p for p in places)
    assert_like_torch(
        lambda q, k, v: sdpa(q, k, v, is_causal=causal), [q, k, v], (2, 2), [places, others, others]
    )


def test_dropout_is_one_draw():
    q, k, v = (t.detach() for t in qkv(2, 2, 2, 4, 4))
    torch.manual_seed(3)
    wanted = sdpa(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    found = sdpa(*[place(t, (2,), ("S0",)) for t in (q, k, v)], dropout_p=0.5)
    torch.testing.assert_close(found.to_torch(), wanted)


def test_whole_in_inference_mode():
    q, k, v = (t.detach() for t in qkv(2, 4, 4, 5, 5))
    with torch.inference_mode():
        found = sdpa(*[place(t, (4,), ("S1",)) for t in (q, k, v)], is_causal=True)
        assert found.placements == (dtorch.Shard(1),)
        torch.testing.assert_close(found.to_torch(), sdpa(q, k, v, is_causal=True))


def priced(fn, *tensors):
    with Graph.default_graph().record() as graph:
        fn(*tensors)
    return [op for op in graph.operators if op.type in ("Sdpa", "SdpaBackward")]


def test_flops_forward_and_backward():
    q, k, v = [place(t, (2,), ("S0",)) for t in qkv(2, 8, 4, 5, 7)]
    out = []
    (forward,) = priced(lambda *a: out.append(sdpa(*a, enable_gqa=True)), q, k, v)
    assert forward.get_operator_cost().flops == 2 * 2 * 8 * 5 * 7 * (8 + 8)
    (backward,) = priced(lambda: out[0].sum().backward())
    assert backward.get_operator_cost().flops == 2 * 2 * 8 * 5 * 7 * (2 * 8 + 2 * 8)
    assert backward.recomputed_flops() == 2 * 2 * 8 * 5 * 7 * 8


@pytest.mark.parametrize(
    ("block", "share"), [(1, 2049 / 4096), (64, 0.515625), (128, 0.53125), (256, 0.5625)]
)
def test_share_that_block_skipping_keeps(block, share):
    q, k, v = (torch.zeros(1, 1, 2048, 8) for _ in range(3))
    (op,) = priced(lambda *a: sdpa(*a, is_causal=True), *[place(t, (1,), ("R",)) for t in (q, k, v)])
    assert op.causal_flops(block) == op.flops() * share
