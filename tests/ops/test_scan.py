"""Running totals along a cut dim: local scans, then the totals before them; and orders along a dim."""

import pytest
import torch

from dtorch import Layout, Shard
from dtorch.testing import assert_tensor_allclose as close
from tests.dist import assert_like_torch, communications, over, place

X = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()
CUBE = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
WHOLE = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 9]])
FEW = torch.tensor([2.0, -1.0]).requires_grad_()
SCANS = {
    "cumsum": (lambda x: x.cumsum(1), [X]),
    "cumsum of rows": (lambda x: x.cumsum(0), [X]),
    "cumsum of few": (lambda x: x.cumsum(0), [FEW]),
    "cumsum of ints": (lambda x: x.cumsum(-1), [WHOLE]),
    "cumsum of bools": (lambda x: (x > 4).cumsum(1), [WHOLE]),
    "cumsum wider": (lambda x: x.cumsum(1, dtype=torch.float64), [X]),
    "cumprod": (lambda x: x.cumprod(1), [X]),
    "cumprod of cube": (lambda x: x.cumprod(1), [CUBE]),
    "logcumsumexp": (lambda x: x.logcumsumexp(1), [X]),
    "cummax": (lambda x: x.cummax(1), [X]),
    "cummax with ties": (lambda x: x.cummax(1), [WHOLE]),
    "cummin with ties": (lambda x: x.cummin(1), [WHOLE]),
    "cummin": (lambda x: x.cummin(0), [CUBE]),
    "diff of cumsum": (lambda x: x.cumsum(1).diff(dim=1), [X]),
}
ORDERS = {
    "sort": (lambda x: x.sort(1), [X]),
    "sort down": (lambda x: x.sort(0, descending=True), [CUBE]),
    "argsort": (lambda x: x.argsort(1), [X]),
    "msort": (lambda x: x.msort(), [X]),
    "topk": (lambda x: x.topk(3, 1), [X]),
    "topk least": (lambda x: x.topk(2, 0, largest=False), [CUBE]),
    "topk of all": (lambda x: x.topk(7, 1), [X]),
    "kthvalue": (lambda x: x.kthvalue(2, 1), [X]),
    "median": (lambda x: x.median(1), [X]),
    "nanmedian": (lambda x: x.nanmedian(0, keepdim=True), [X]),
    "mode": (lambda x: x.mode(1), [WHOLE]),
    "median of all": (lambda x: x.median(), [X]),
    "quantile": (lambda x: x.quantile(0.3, 1), [X]),
    "searchsorted": (
        lambda s, v: torch.searchsorted(s, v),
        [X.detach().sort(1).values, X.detach()[:, :3] + 0.01],
    ),
    "searchsorted in one": (
        lambda s, v: torch.searchsorted(s, v, right=True),
        [X.detach()[0].sort().values, X.detach() + 0.01],
    ),
    "bucketize": (lambda s, v: torch.bucketize(v, s), [X.detach()[1].sort().values, X.detach() + 0.01]),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), [X]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(SCANS | ORDERS, 3))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


@pytest.mark.parametrize("scan", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
@pytest.mark.parametrize(
    "factors", [((2, ()), (6, (0,))), ((3, (0,)), (4, ())), ((2, (1,)), (6, (0,))), ((12, (1, 0)),)]
)
def test_a_dim_that_is_held_in_several_runs(scan, factors):
    """Rows of a fused projection, or axes in another order: what a device holds is no chunk."""
    x = torch.randn(3, 12, generator=torch.Generator().manual_seed(3))
    layout = Layout.replicate((2, 2), (3, 12)).with_dim(1, factors)
    found, wanted = getattr(place(x, (2, 2), layout), scan)(1), getattr(x, scan)(1)
    if isinstance(wanted, torch.Tensor):
        close(found, wanted)
    else:
        close(found.values, wanted.values)
        assert torch.equal(found.indices.to_torch(), wanted.indices)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("scan", ["cummax", "cummin", "cumsum", "logcumsumexp"])
@pytest.mark.parametrize("where", [0, 3, 6])
def test_odd_values(scan, value, where):
    x = torch.linspace(-1, 1, 7)
    x[where] = value
    found, wanted = getattr(place(x, (4,), ("S0",)), scan)(0), getattr(x, scan)(0)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found.to_torch(), wanted, equal_nan=True)
    else:
        torch.testing.assert_close(found.values.to_torch(), wanted.values, equal_nan=True)
        assert torch.equal(found.indices.to_torch(), wanted.indices)


def test_the_hazard():
    found = place(torch.arange(8), (4,), ("S0",)).cumsum(0)
    assert found.to_torch().tolist() == [0, 1, 3, 6, 10, 15, 21, 28]


SENT = {
    "cumsum": (lambda x: x.cumsum(0), 3 * 4 * 7 * 4),
    "cummax": (lambda x: x.cummax(0), 3 * 4 * 7 * 12),
    "topk": (lambda x: x.topk(2, 0), 4 * (4 * 2 - 2) * 7 * 12),
    "cumsum of another dim": (lambda x: x.cumsum(1), 0),
    "sort of another dim": (lambda x: x.sort(1), 0),
    "median of another dim": (lambda x: x.median(1), 0),
}


@pytest.mark.parametrize(("fn", "sent"), SENT.values(), ids=SENT)
def test_sends_totals_alone(fn, sent):
    found = communications(fn, [torch.randn(8, 7)], (4,), [("S0",)])
    assert {c.kind for c in found} <= {"statistics"}
    assert sum(c.bytes for c in found) == sent


@pytest.mark.parametrize("name", ["cumsum_", "cumprod_"])
@pytest.mark.parametrize("dim", [0, 1])
def test_in_place_along_a_cut_dim_writes(name, dim):
    x, plain = place(X.detach(), (4,), ("S0",)), X.detach().clone()
    alias = x.t()
    assert getattr(x, name)(dim) is x
    getattr(plain, name)(dim)
    close(x, plain)
    close(alias, plain.t())
    assert x.placements == [Shard(0)]


def test_places_in_a_cut_sequence_are_counted():
    s, v = torch.arange(8.0), torch.tensor([2.5, 7.0, -1.0])
    assert communications(torch.searchsorted, [s, v], (4,), [("S0",), ("R",)]) == []
    found = torch.searchsorted(place(s, (4,), ("S0",)), place(v, (4,), ("R",)))
    assert found.to_torch().tolist() == [3, 7, 0]
