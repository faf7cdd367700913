"""Views, slices, in-place writes, aliasing.

writing through a view does not reach the base
    `test_a_view_of_groups`, `test_writes`
filling a slice of the cut dim is lost
    `test_writes`, `tests/ops/test_views.py::test_writes_through_slices`
`squeeze_` changes the metadata, not the data
    `test_squeeze_in_place`, `test_other_views_in_place`
expand of a cut dim of size 1
    `test_as_torch[expand, broadcast]`, `test_gradient_of_a_broadcast_row`
a no-op view replicates
    `test_a_view_of_the_same_sizes_changes_nothing`
a slice that lies on one device reads another
    `test_slices_on_one_device`
slicing the cut dim gathers it
    `test_a_slice_gathers_nothing`,
    `tests/ops/test_views.py::test_slice_of_the_cut_dim_moves_the_axis_and_gathers_nothing`
an integer index into an uneven dim
    `test_as_torch[index ...]`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Shard
from tests.dist import assert_like_torch, place, ways
from tests.hazards.cases import kinds_sent, mesh_of, under


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


EVERYWHERE = pytest.mark.parametrize(
    ("mesh", "places"), [(mesh, w) for mesh in ((2,), (4,)) for w in ways(2, mesh)], ids=str
)


@EVERYWHERE
def test_a_view_of_groups(mesh: Any, places: Any) -> None:
    w = place(torch.ones(8, 9), mesh, places)
    w.view(4, 2, 9).mul_(torch.arange(4.0).view(4, 1, 1))
    assert w[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert w[:, 8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def _increment(x: torch.Tensor) -> None:
    x[3:6, 0] += 1


def _chained(x: torch.Tensor) -> None:
    rows = x[1:7]
    part = rows.t()[2:4]
    rows.mul_(2)
    part.add_(1)
    x[:2].copy_(x[-2:].clone())


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "x[:2].zero_()": lambda x: x[:2].zero_(),
    "x[1] = 5": lambda x: x.__setitem__(1, 5),
    "x[3:6, 0] += 1": _increment,
    "x[-1] = x[0]": lambda x: x.__setitem__(-1, x[0]),
    "x[::3] = tensor": lambda x: x.__setitem__(slice(None, None, 3), torch.arange(8.0)),
    "x[mask] = 2": lambda x: x.__setitem__(x > 1, 2.0),
    "x[[0, 5]] = 3": lambda x: x.__setitem__([0, 5], 3.0),
    "x[..., -1:] *= 2": lambda x: x[..., -1:].mul_(2),
    "x.t()[0] = 7": lambda x: x.t().__setitem__(0, 7.0),
    "diagonal": lambda x: x.diagonal().fill_(4),
    "unbind": lambda x: x.unbind(0)[5].neg_(),
    "chunk": lambda x: [c.add_(i) for i, c in enumerate(x.chunk(3, 0))],
    "flat": lambda x: x.view(-1)[11:29].zero_(),
    "select, then more": lambda x: x.select(0, 2)[1:3].copy_(torch.ones(2)),
    "narrow": lambda x: x.narrow(1, 2, 3).exp_(),
    "a chain": _chained,
}


@EVERYWHERE
@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str, mesh: Any, places: Any) -> None:
    full = torch.randn(8, 8)
    x, y = place(full, mesh, places), full.clone()
    alias_x, alias_y = x.view(64)[8:], y.view(64)[8:]
    WRITES[name](x)
    WRITES[name](y)
    torch.testing.assert_close(x.to_torch(), y)
    torch.testing.assert_close(alias_x.to_torch(), alias_y)


@pytest.mark.parametrize("places", ["R", "S0", "S1", "P"])
def test_squeeze_in_place(places: str) -> None:
    full = torch.randn(1, 4)
    x = place(full, (2,), (places,))
    view = x.view(4)
    assert x.squeeze_(0) is x
    assert x.shape == (4,)
    torch.testing.assert_close((x + torch.ones(4)).to_torch(), full[0] + 1)
    x.mul_(2)
    torch.testing.assert_close(view.to_torch(), full[0] * 2)


@pytest.mark.parametrize("places", ["R", "S0", "S1", "P"])
@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.t_(),
        lambda x: x.unsqueeze_(1),
        lambda x: x.transpose_(0, 1),
        lambda x: x.swapaxes_(0, 1),
        lambda x: x.unsqueeze_(0).squeeze_(),
    ],
)
def test_other_views_in_place(write: Callable[[Any], Any], places: str) -> None:
    full = torch.randn(5, 3)
    x, y = place(full, (2,), (places,)), full.clone()
    for t in (x, y):
        write(t)
        t.add_(1)
    assert (x.shape, x.stride()) == (y.shape, y.stride())
    torch.testing.assert_close(x.to_torch(), y)


def test_gradient_of_a_broadcast_row() -> None:
    x = place(torch.randn(1, 4).requires_grad_(), (4,), ("S0",))
    weight = torch.arange(16.0).view(4, 4)
    (x.expand(4, 4) * weight).sum().backward()
    assert torch.equal(x.grad.to_torch(), weight.sum(0, keepdim=True))
    assert x.grad.placements == [Shard(0)]


@pytest.mark.parametrize("view", [lambda x: x.view(1, 2), lambda x: x.view_as(x), lambda x: x.reshape(1, 2)])
def test_a_view_of_the_same_sizes_changes_nothing(view: Callable[[Any], Any]) -> None:
    x = dtorch.Tensor(torch.randn(1, 2), device_mesh=mesh_of(2), placements=[Shard(0)])
    assert not kinds_sent(lambda: view(x))
    assert view(x).placements == x.placements


@pytest.mark.parametrize("places", ["R", "S0", "P"])
@pytest.mark.parametrize(("start", "stop"), [(2, 4), (0, 2), (1, 3), (3, 4), (0, 0), (-3, -1)])
def test_slices_on_one_device(places: str, start: int, stop: int) -> None:
    x = place(torch.arange(4.0), (2,), (places,))
    assert x[start:stop].tolist() == [0.0, 1.0, 2.0, 3.0][start:stop]


def test_a_slice_gathers_nothing() -> None:
    full = torch.randn(32, 32)
    x = dtorch.Tensor(full, device_mesh=mesh_of(4), placements=[Shard(1)])
    y = x[:, :16]
    assert torch.equal(y.to_torch(), full[:, :16])
    assert set(kinds_sent(lambda: x[:, :16])) <= {"all_to_all"}
    assert max(y.to_local(i).numel() for i in range(4)) < 32 * 16
    rows = x[:16]
    assert rows.placements == [Shard(1)]
    assert not kinds_sent(lambda: x[:16])


CASES = {
    "expand": (lambda x: x.expand(4, 4) * torch.arange(16.0).view(4, 4), [grad(1, 4)]),
    "broadcast": (lambda x, y: x + y, [grad(1, 4), grad(4, 4)]),
    "index 1": (lambda x: x[1], [grad(3, 4, 5)]),
    "index -1": (lambda x: x[-1], [grad(3, 4, 5)]),
    "index None": (lambda x: x[:, None, ::2], [grad(3, 4, 5)]),
    "index list": (lambda x: x[..., [0, 2]], [grad(3, 4, 5)]),
    "index lists": (lambda x: x[[0, 2], :, [1, 1]], [grad(3, 4, 5)]),
    "index mask": (lambda x: x[x[:, 0, 0] < 9], [grad(3, 4, 5)]),
    "movedim": (lambda x: x.movedim(0, -1).flatten(1), [grad(3, 4, 5)]),
    "unfold": (lambda x: x.unfold(1, 2, 1), [grad(3, 4)]),
    "tensor_split": (lambda x: x.tensor_split(3), [grad(5, 4)]),
    "diagonal": (lambda x: x.diagonal(0, 0, 1), [grad(5, 4)]),
    "roll": (lambda x: x.roll((1, -2), (0, 1)), [grad(5, 4)]),
    "flip": (lambda x: x.flip(0), [grad(5, 4)]),
    "repeat": (lambda x: x.repeat(2, 1, 2), [grad(3, 4)]),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), [grad(3, 4)]),
    "as_strided": (lambda x: x.as_strided((2, 3), (5, 1), 2), [grad(4, 5)]),
    "view of complex": (lambda x: torch.view_as_complex(x).abs(), [grad(3, 4, 2)]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), under(CASES))
def test_as_torch(fn: Any, tensors: Any, mesh: Any, places: Any) -> None:
    assert_like_torch(fn, tensors, mesh, places)


@pytest.mark.parametrize("places", ["R", "S0", "S1"])
def test_a_tensor_copied_into_a_view_of_itself(places: str) -> None:
    full = torch.randn(4, 4)
    x = place(full, (4,), (places,))
    view = x.unflatten(0, (1, -1))
    view.select(-1, 0).copy_(x.select(-1, 0))
    assert torch.equal(x.to_torch(), full)
    x[:, :2].copy_(x[:, 2:])
    assert torch.equal(x.to_torch(), full[:, [2, 3, 2, 3]])
