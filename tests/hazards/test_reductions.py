"""Reductions, losses and indices over a cut dim.

mean of means; NaN of an empty device
    `test_mean`, `tests/ops/test_reduce.py::test_mean_of_nothing_is_nan`
indices of argmax combined by max or sum
    `test_places_are_global`, `test_the_first_of_equals_wins`
max(dim): values right, indices local
    `test_max_with_its_place`, `test_as_torch[max, topk, sort, ...]`
group norm, var from local statistics
    `test_variance`, `test_as_torch[group norm]`, `tests/ops/test_normalization.py`
log-softmax's backward by another formula
    `test_log_softmax_without_a_loss`
a negative dim is not accepted
    `test_as_torch[... -1]`, `tests/test_error_dims.py`
softmax without the maximum of all
    `test_extreme_rows`, `tests/ops/test_softmax.py::test_extreme_rows`
cumulative and masked operators taken as element-wise
    `test_running_sums`, `test_as_torch[masked_scatter, take ...]`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch import Shard
from tests.dist import assert_like_torch, place
from tests.hazards.cases import under


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


@pytest.mark.parametrize("places", ["R", "S0", "S1", "P"])
@pytest.mark.parametrize(
    ("full", "result"), [(torch.arange(12.0).view(3, 4), 5.5), (torch.arange(4.0).view(1, 4), 1.5)]
)
@pytest.mark.parametrize("devices", [2, 4])
def test_mean(full: torch.Tensor, result: float, places: str, devices: int) -> None:
    assert place(full, (devices,), (places,)).mean().item() == result


@pytest.mark.parametrize("places", ["R", "S0", "P"])
def test_mean_of_nothing(places: str) -> None:
    found = place(torch.zeros(0), (2,), (places,)).mean(dim=0, keepdim=True)
    assert found.shape == (1,)
    assert found.isnan().all()


@pytest.mark.parametrize("places", ["R", "S0", "P"])
@pytest.mark.parametrize("devices", [2, 4])
def test_places_are_global(places: str, devices: int) -> None:
    x = place(torch.tensor([10.0, 5, 3, 8]), (devices,), (places,))
    assert [x.argmax().item(), x.argmin().item()] == [0, 2]


@pytest.mark.parametrize("places", [("R",), ("S0",), ("S1",)])
def test_the_first_of_equals_wins(places: Any) -> None:
    full = torch.tensor([[1.0, 3, 3, 0], [3, 1, 0, 0], [3, 3, 0, 0]])
    x = place(full, (2,), places)
    assert x.argmax().item() == full.argmax().item() == 1
    assert x.argmin().item() == full.argmin().item() == 3
    for dim in (0, 1, -1):
        assert torch.equal(x.argmax(dim).to_torch(), full.argmax(dim))
        assert torch.equal(x.argmin(dim, keepdim=True).to_torch(), full.argmin(dim, keepdim=True))
        assert torch.equal(x.max(dim).indices.to_torch(), full.max(dim).indices)


def test_max_with_its_place() -> None:
    values, indices = place(torch.tensor([[1.0, 2, 9, 4]]), (2,), ("S1",)).max(dim=1)
    assert (values.tolist(), indices.tolist()) == ([9], [2])


@pytest.mark.parametrize("places", ["R", "S0", "P"])
def test_variance(places: str) -> None:
    assert place(torch.tensor([1.0, 2, 3, 4, 10]), (2,), (places,)).var().item() == 12.5
    far = torch.randn(2, 4, 5) + 1e4
    x = place(far, (2,), ("S2",))
    torch.testing.assert_close(F.group_norm(x, 2).to_torch(), F.group_norm(far, 2), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("places", ["R", "S1", "P"])
def test_log_softmax_without_a_loss(places: str) -> None:
    z = place(torch.tensor([[1.0, 2, 3, 4]]).requires_grad_(), (4,), (places,))
    F.log_softmax(z, -1).sum().backward()
    torch.testing.assert_close(
        z.grad.to_torch(), torch.tensor([[0.872, 0.651, 0.052, -1.576]]), rtol=0, atol=1e-3
    )


EXTREME: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long)),
}
ROWS = {
    "large": torch.tensor([[1000.0, 0, -1000, 999]]),
    "one shard of -inf": torch.tensor([[3.0, 1, -torch.inf, -torch.inf], [-torch.inf, 2, 0, 0]]),
    "uneven": torch.tensor([[1000.0, 0, -1000, 999, -5]]),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", EXTREME)
@pytest.mark.parametrize("places", ["R", "S0", "S1"])
@pytest.mark.parametrize("devices", [2, 4])
def test_extreme_rows(name: str, rows: str, places: str, devices: int) -> None:
    full = ROWS[rows].clone().requires_grad_()
    x = place(full, (devices,), (places,))
    found, want = EXTREME[name](x), EXTREME[name](full)
    torch.testing.assert_close(found.to_torch(), want)
    found[want.isfinite()].sum().backward()
    want[want.isfinite()].sum().backward()
    torch.testing.assert_close(x.grad.to_torch(), full.grad)


@pytest.mark.parametrize("places", ["R", "S0", "P"])
def test_running_sums(places: str) -> None:
    x = place(torch.arange(8.0), (4,), (places,))
    assert x.cumsum(0).tolist() == [0, 1, 3, 6, 10, 15, 21, 28]


SHUFFLED = torch.randperm(15).view(3, 5).float().requires_grad_()
CASES = {
    "max": (lambda x: x.max(1), [SHUFFLED]),
    "min 0": (lambda x: x.min(0, keepdim=True), [SHUFFLED]),
    "topk": (lambda x: x.topk(2, -1), [SHUFFLED]),
    "sort": (lambda x: x.sort(-1, descending=True), [SHUFFLED]),
    "cummax": (lambda x: x.cummax(1), [SHUFFLED]),
    "median": (lambda x: x.median(-1), [SHUFFLED]),
    "mode": (lambda x: x.round(decimals=-1).mode(0), [SHUFFLED]),
    "kthvalue": (lambda x: x.kthvalue(2, 0), [SHUFFLED]),
    "argsort": (lambda x: x.argsort(0), [SHUFFLED]),
    "flat argmax": (lambda x: (x.argmax(), x.argmin()), [SHUFFLED]),
    "aminmax": (lambda x: torch.aminmax(x, dim=-1), [SHUFFLED]),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [grad(2, 4, 5), grad(4), grad(4)]),
    "log_softmax -1": (lambda x: x.log_softmax(-1), [grad(3, 5)]),
    "softmax -2": (lambda x: x.softmax(-2), [grad(3, 5)]),
    "cumsum -1": (lambda x: x.cumsum(-1), [grad(3, 5)]),
    "cumprod -1": (lambda x: x.cumprod(-1), [grad(3, 5)]),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), [grad(3, 5)]),
    "cat -1": (lambda a, b: torch.cat([a, b], -1), [grad(3, 5), grad(3, 2)]),
    "split -1": (lambda x: x.split([2, 3], -1), [grad(3, 5)]),
    "select -1": (lambda x: x.select(-1, -2), [grad(3, 5)]),
    "masked_scatter": (
        lambda x, m, s: x.masked_scatter(m, s),
        [grad(3, 5), torch.rand(3, 5) > 0.4, grad(15)],
    ),
    "masked_select": (lambda x, m: x.masked_select(m), [grad(3, 5), torch.rand(3, 5) > 0.4]),
    "take": (lambda x, i: x.take(i), [grad(3, 5), torch.tensor([14, 0, 7, 7, 3])]),
    "scatter_reduce": (
        lambda x, i, s: x.scatter_reduce(0, i, s, "amax"),
        [torch.randn(3, 5), torch.randint(0, 3, (3, 5)), torch.randn(3, 5)],
    ),
    "index_reduce": (
        lambda x, i, s: x.index_reduce(0, i, s, "mean"),
        [torch.randn(3, 5), torch.tensor([2, 0, 2]), torch.randn(3, 5)],
    ),
    "mean over both": (lambda x: x.mean((0, 1)), [grad(3, 5)]),
    "var": (lambda x: x.var(0), [grad(3, 5)]),
    "std all": (lambda x: x.std(), [grad(3, 5)]),
    "nansum": (lambda x: x.nansum(1), [grad(3, 5)]),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([4, 0, 2])), [grad(3, 5)]),
    "smooth": (lambda x: F.cross_entropy(x, torch.tensor([4, 0, 2]), label_smoothing=0.2), [grad(3, 5)]),
    "count_nonzero": (lambda x: torch.count_nonzero(x, 0), [torch.tensor([[1.0, 0, 2], [0, 0, 3]])]),
    "histc": (lambda x: torch.histc(x, 4, -2, 2), [torch.randn(3, 5)]),
    "trace": (torch.trace, [grad(3, 5)]),
}


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), under(CASES))
def test_as_torch(fn: Any, tensors: Any, mesh: Any, places: Any) -> None:
    assert_like_torch(fn, tensors, mesh, places)


def test_cross_entropy_over_uneven_rows_divides_once() -> None:
    """torch's gradient, not that of a mean of means."""
    x = torch.randn(5, 3).requires_grad_()
    t = torch.tensor([0, 2, 1, 1, 0])
    mesh = dtorch.init_device_mesh("cpu", (4,))
    y = dtorch.Tensor(x.detach(), device_mesh=mesh, placements=[Shard(0)], requires_grad=True)
    F.cross_entropy(y, dtorch.Tensor(t, device_mesh=mesh, placements=[Shard(0)])).backward()
    F.cross_entropy(x, t).backward()
    torch.testing.assert_close(y.grad.to_torch(), x.grad)
