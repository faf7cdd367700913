"""Sums, extremes, variances and norms over dims that are cut, against plain torch."""

import pytest
import torch

import dtorch
from dtorch import redistribute
from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from tests.dist import assert_like_torch, communications, over, place

A = torch.randn(5, 6, 3, requires_grad=True)
V = torch.randn(7, requires_grad=True)
TIES = torch.tensor([[3.0, 1.0, 3.0, 0.0, 3.0], [0.0, 2.0, 0.0, 2.0, 2.0], [3.0, 3.0, 0.0, 0.0, 1.0]])
INTS = torch.randint(-5, 5, (5, 6))
MASK = torch.rand(5, 6) > 0.3
HALF = (torch.randn(5, 6) * 3).bfloat16()
LINE = torch.randn(2, requires_grad=True)
ONE = torch.randn(1, 4, requires_grad=True)

CASES = {
    "sum": (torch.sum, [A]),
    "sum dims": (lambda x: x.sum((0, -1)), [A]),
    "sum keepdim": (lambda x: x.sum(1, keepdim=True), [A]),
    "sum float64": (lambda x: x.sum(0, dtype=torch.float64), [A]),
    "sum of ints": (lambda x: x.sum(1), [INTS]),
    "sum of bools": (torch.sum, [MASK]),
    "nansum": (lambda x: torch.nansum(torch.where(x > 1, float("nan"), x), 0), [A]),
    "count_nonzero": (lambda x: torch.count_nonzero(x, 1), [INTS]),
    "mean": (torch.mean, [A]),
    "mean dims": (lambda x: x.mean((0, 2), keepdim=True), [A]),
    "mean of few": (torch.mean, [LINE]),
    "mean of one row": (lambda x: x.mean(0), [ONE]),
    "max": (torch.max, [A]),
    "min of few": (torch.min, [LINE]),
    "amax": (lambda x: x.amax((0, 2)), [A]),
    "amin keepdim": (lambda x: x.amin(1, keepdim=True), [A]),
    "aminmax": (lambda x: torch.aminmax(x, dim=1), [A]),
    "max of ints": (torch.max, [INTS]),
    "max dim": (lambda x: x.max(1), [A]),
    "max dim of ties": (lambda x: x.max(1), [TIES]),
    "min dim of ties": (lambda x: x.min(0, keepdim=True), [TIES]),
    "argmax": (torch.argmax, [TIES]),
    "argmin": (lambda x: x.argmin(0), [TIES]),
    "argmax flat keepdim": (lambda x: x.argmax(None, True), [A]),
    "any": (lambda x: x.any(1), [MASK]),
    "all": (torch.all, [MASK]),
    "any of ints": (lambda x: x.any((0, 1)), [INTS]),
    "prod": (lambda x: torch.prod(x.detach()), [A]),
    "prod dim": (lambda x: x.prod(1), [A]),
    "logsumexp": (lambda x: x.logsumexp((0, 1)), [A]),
    "var": (lambda x: x.var(1), [A]),
    "std": (torch.std, [A]),
    "var biased": (lambda x: x.var((0, 2), correction=0, keepdim=True), [A]),
    "var_mean": (lambda x: torch.var_mean(x, 0), [A]),
    "norm": (torch.linalg.vector_norm, [A]),
    "norm 1": (lambda x: torch.linalg.vector_norm(x, 1, (0, 1)), [A]),
    "norm inf": (lambda x: torch.linalg.vector_norm(x, float("inf"), 0, True), [A]),
    "norm of few": (lambda x: torch.linalg.vector_norm(x, -float("inf")), [LINE]),
    "norm 3": (lambda x: x.norm(3), [V]),
    "norm 0": (lambda x: torch.linalg.vector_norm(x, 0), [V]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 8))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


STATISTICS = {
    name: CASES[name]
    for name in (
        "max",
        "amax",
        "max dim",
        "argmax",
        "all",
        "prod dim",
        "logsumexp",
        "var",
        "std",
        "norm",
        "norm inf",
    )
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("fn", "tensors"), STATISTICS.values(), ids=STATISTICS)
def test_sends_statistics_alone(fn, tensors, dim):
    sent = communications(fn, tensors, (4,), [(f"S{dim}",)])
    assert {c.kind for c in sent} <= {"statistics"}
    size = tensors[0].element_size()
    assert sum(c.bytes for c in sent) <= 2 * 3 * 8 * (tensors[0].numel() / min(tensors[0].shape)) * size


@pytest.mark.parametrize("fn", [torch.sum, torch.mean, lambda x: x.sum(0)], ids=["sum", "mean", "sum dim"])
def test_a_sum_is_reduced_at_once_and_seen(fn):
    x = place(A, (4,), ("S0",))
    with Graph.default_graph().record() as graph:
        y = fn(x)
    assert y.placements == (dtorch.Replicate(),)
    assert [c.kind for c in graph.communications()] == ["all_reduce"]


def test_price_of_statistics_is_that_of_a_ring():
    (sent,) = communications(lambda x: x.amax(0), [A], (4,), [("S0",)])
    whole = Layout.replicate((4,), (6, 3))
    assert sent.bytes == redistribute.cost(whole.with_partial((0,)), whole, 4) == 2 * 3 * 6 * 3 * 4


def part_sums(*parts):
    mesh = dtorch.init_device_mesh("cpu", (len(parts),))
    return dtorch.from_local([torch.tensor(p) for p in parts], mesh, [dtorch.Partial()])


def test_norm_of_a_pending_sum():
    assert torch.linalg.vector_norm(part_sums([1.0, 3.0], [2.0, 1.0])).to_torch() == 5.0
    assert torch._foreach_norm([part_sums([1.0, 3.0], [2.0, 1.0])])[0].to_torch() == 5.0


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [(torch.max, 5.0), (torch.min, 5.0), (torch.argmax, 0), (torch.prod, 25.0), (torch.var, 0.0)],
    ids=["max", "min", "argmax", "prod", "var"],
)
def test_extremes_of_a_pending_sum(fn, wanted):
    assert fn(part_sums([1.0, 5.0], [4.0, 0.0])).to_torch() == wanted


@pytest.mark.parametrize(
    ("fn", "values", "wanted"),
    [
        (torch.mean, torch.arange(12.0).reshape(3, 4), 5.5),
        (torch.mean, torch.arange(4.0).reshape(1, 4), 1.5),
        (torch.argmax, torch.tensor([10, 5, 3, 8]), 0),
        (torch.argmin, torch.tensor([10, 5, 3, 8]), 2),
        (torch.var, torch.tensor([1.0, 2, 3, 4, 10]), 12.5),
    ],
    ids=["uneven mean", "mean with an empty shard", "argmax", "argmin", "uneven var"],
)
def test_over_two_devices(fn, values, wanted):
    assert fn(place(values, (2,), ("S0",))).to_torch() == wanted


def test_max_with_its_place():
    value, index = place(torch.tensor([[1, 2, 9, 4]]), (2,), ("S1",)).max(dim=1)
    assert (value.to_torch().item(), index.to_torch().item()) == (9, 2)


def test_mean_of_nothing_is_nan():
    empty = place(torch.zeros(0, 3), (2,), ("S0",))
    assert empty.mean(0, keepdim=True).to_torch().isnan().all()
    assert empty.sum().to_torch() == 0
    with pytest.raises((RuntimeError, IndexError)):
        empty.max()


def test_variance_with_a_large_offset():
    x = torch.randn(9, 40) + 1e4
    wanted = x.double().var(1).float()
    torch.testing.assert_close(place(x, (4,), ("S1",)).var(1).to_torch(), wanted, rtol=1e-4, atol=1e-4)


def test_nan_wins():
    x = torch.tensor([1.0, 5.0, float("nan"), 7.0, float("nan")])
    y = place(x, (4,), ("S0",))
    assert y.max().to_torch().isnan()
    assert y.argmax().to_torch() == x.argmax() == 2
    assert y.max(0).indices.to_torch() == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "fn", [torch.mean, torch.sum, torch.std, torch.linalg.vector_norm, lambda x: x.logsumexp(0)]
)
def test_halves(fn, dtype):
    x = HALF.to(dtype)
    found = fn(place(x, (4,), ("S0",))).to_torch()
    torch.testing.assert_close(found, fn(x), rtol=2e-2, atol=2e-2)


def test_half_mean_does_not_overflow():
    x = torch.full((400,), 1000.0, dtype=torch.float16)
    assert place(x, (4,), ("S0",)).mean().to_torch() == 1000.0


def test_one_device_is_bit_equal():
    for fn, tensors in CASES.values():
        ours, theirs = fn(*[place(t, (1,), ("R",)) for t in tensors]), fn(*tensors)
        pairs = [(ours, theirs)] if isinstance(theirs, torch.Tensor) else list(zip(ours, theirs, strict=True))
        for a, b in pairs:
            assert torch.equal(a.to_torch(), b)


@pytest.mark.parametrize("fn", [torch.var, torch.std])
@pytest.mark.parametrize("places", ["R", "S0", "P"])
def test_variance_of_whole_numbers_is_refused(fn, places):
    with pytest.raises(RuntimeError, match="only support floating point"):
        fn(place(torch.arange(6).view(3, 2), (2,), (places,)), 0)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x / 0,
        lambda x: x / 0.0,
        lambda x: x.clone().div_(0.0),
        lambda x: x * float("inf"),
        lambda x: x.clone().mul_(float("-inf")),
        lambda x: x.add(x, alpha=float("inf")),
        lambda x: x.addcmul(x, torch.ones(2), value=float("inf")),
    ],
)
def test_pending_sums_meet_no_infinite_number(fn):
    plain, mesh = torch.tensor([1.0, -2.0]), dtorch.init_device_mesh("cpu", (4,))
    for x in (place(plain, (4,), ("P",)), dtorch.tensor(plain, device_mesh=mesh, placements=["P"])):
        x * 2.0, x / 3.0  # the plans of other numbers are not these numbers'
        torch.testing.assert_close(fn(x).to_torch(), fn(plain))
        torch.testing.assert_close((x * 2.0).to_torch(), plain * 2)
