"""Uneven, empty and odd sizes.

R -> S(0) -> R changes the size
    `test_round_trips`
global size guessed as local times devices
    `test_global_size_of_local_parts`
hand-made shard sizes accepted, then cut again
    `test_sizes_that_are_no_chunks_are_refused`
a flattened uneven shard is no chunk
    `test_as_torch[flat + flat]`
the last shard keeps the stride of a full one
    `test_local_strides`
loading forgets empty shards
    `test_saved_and_loaded`
two elements over four devices
    `test_two_over_four`, `tests/ops/test_views.py::test_small_and_empty`
a user's own function: output size guessed per device
    `test_a_users_function`
a sequence that the parallel degree does not divide
    `test_as_torch[sequence]`, `tests/ops/test_normalization.py`
an indivisible dim replicated here, refused there
    `test_one_behaviour`
a full tensor loaded into an uneven parameter
    `test_loading_a_full_tensor`
two cut dims, or an uneven one, flattened, multiplied, and back
    `test_flattened_multiplied_and_back`
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch import Replicate, Shard
from tests.dist import assert_like_torch, place, ways
from tests.hazards.cases import kinds_sent, mesh_of, under


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


@pytest.mark.parametrize("shape", [(5, 10), (1, 3), (0, 3), (7, 7)])
@pytest.mark.parametrize("path", [("R", "S0", "R"), ("S0", "S1", "S0"), ("S1", "R", "S0"), ("P", "S0", "R")])
def test_round_trips(shape: tuple[int, ...], path: tuple[str, ...]) -> None:
    full = torch.randn(shape).round(decimals=2) if path[0] != "P" else torch.randint(-9, 9, shape).float()
    x = place(full, (4,), (path[0],))
    for places in path[1:]:
        x = x.redistribute(placements=[dtorch.placement.as_placement(places)])
        assert x.shape == shape
        assert torch.equal(x.to_torch(), full)


def test_global_size_of_local_parts() -> None:
    parts = list(torch.randn(10, 2).split([3, 3, 3, 1]))
    x = dtorch.from_local(parts, mesh_of(4), [Shard(0)])
    assert x.shape == (10, 2)
    assert torch.equal(x.to_torch(), torch.cat(parts))


def test_sizes_that_are_no_chunks_are_refused() -> None:
    parts = [torch.randn(2, n) for n in (2, 3, 4, 5)]
    with pytest.raises(dtorch.ShapeError, match=r"4.*4.*4.*2"):
        dtorch.from_local(parts, mesh_of(4), [Shard(1)])


def test_local_strides() -> None:
    x = dtorch.Tensor(torch.randn(3, 9), device_mesh=mesh_of(2), placements=[Shard(1)])
    assert [x.to_local(i).stride() for i in range(2)] == [(5, 1), (4, 1)]
    assert x.stride() == (9, 1)
    assert x.is_contiguous()
    y = x.t().contiguous()
    assert [y.to_local(i).stride() for i in range(2)] == [(3, 1), (3, 1)]
    view = x.as_strided((2, 4), (9, 2), 1)
    assert torch.equal(view.to_torch(), x.to_torch().as_strided((2, 4), (9, 2), 1))


def test_saved_and_loaded() -> None:
    full = torch.arange(6.0)
    x = dtorch.Tensor(full, device_mesh=mesh_of(4), placements=[Shard(0)])
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    y = torch.load(file, weights_only=True)
    assert [len(y.to_local(i)) for i in range(4)] == [2, 2, 2, 0]
    assert torch.equal(y.to_torch(), full)


@pytest.mark.parametrize("places", ["S0", "R", "P"])
def test_two_over_four(places: str) -> None:
    x = place(torch.tensor([1.0, 2.0]), (4,), (places,))
    assert x.tolist() == [1, 2]
    assert [f().item() for f in (x.sum, x.max, x.min, x.mean, x.prod, x.argmax)] == [3, 2, 1, 1.5, 2, 1]
    assert [x[1].item(), x[-1].item(), x[0].item()] == [2, 2, 1]
    assert x.softmax(0).sum().item() == pytest.approx(1)
    assert x.sort(descending=True).values.tolist() == [2, 1]
    assert torch.cat([x, x]).tolist() == [1, 2, 1, 2]
    assert (x.any().item(), x.all().item(), x.logsumexp(0).item()) == (True, True, pytest.approx(2.3132617))


class Doubled(torch.autograd.Function):
    """Of a user."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * grad


def test_a_users_function() -> None:
    full = torch.arange(5.0)
    x = dtorch.Tensor(full, device_mesh=mesh_of(2), placements=[Shard(0)], requires_grad=True)
    y = Doubled.apply(x)
    assert y.shape == (5,)
    assert torch.equal(y.to_torch(), 2 * full)
    y.sum().backward()
    assert x.grad.tolist() == [2] * 5
    parts = [2 * x.to_local(i) for i in range(2)]
    assert torch.equal(dtorch.from_local(parts, x.device_mesh, x.placements).to_torch(), 2 * full)


def test_one_behaviour() -> None:
    """A dim that does not divide is cut as torch.chunk cuts it, by whichever door, and says so."""
    full, mesh, cut = torch.randn(17, 3), mesh_of(8), [Shard(0)]
    module = dtorch.parallelize(torch.nn.Embedding(17, 3), mesh_of(8), {"weight": cut})
    made: dict[str, Any] = {
        "Tensor": dtorch.Tensor(full, device_mesh=mesh, placements=cut),
        "from_torch": dtorch.from_torch(full, device_mesh=mesh, placements=cut),
        "zeros": dtorch.zeros(17, 3, device_mesh=mesh, placements=cut),
        "randn": dtorch.randn(17, 3, device_mesh=mesh, placements=cut),
        "redistribute": dtorch.Tensor(full, device_mesh=mesh).redistribute(placements=cut),
        "parallelize": module.weight,
        "operator": dtorch.Tensor(full, device_mesh=mesh, placements=cut).relu(),
    }
    sizes = [len(chunk) for chunk in torch.zeros(17).chunk(8)]
    sizes += [0] * (8 - len(sizes))
    for name, x in made.items():
        assert x.placements == cut, name
        assert [len(x.to_local(i)) for i in range(8)] == sizes, name


def test_loading_a_full_tensor() -> None:
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.zeros(5))
    dtorch.parallelize(module, mesh_of(2), {"w": [Shard(0)]})
    full = torch.arange(5.0)
    module.load_state_dict({"w": full})
    assert module.w.placements == [Shard(0)]
    assert torch.equal(module.w.to_torch(), full)
    with torch.no_grad():
        module.w.copy_(full * 2)
    assert torch.equal(module.w.to_torch(), full * 2)


TWO = ("R", "R")
FLATTENED: dict[str, tuple[Callable[..., Any], list[torch.Tensor], tuple[int, ...], Any]] = {
    "two cut dims": (F.linear, [grad(10, 6, 8), grad(3, 8), grad(3)], (2, 2), (("S0", "S1"), TWO, TWO)),
    "uneven batch": (F.linear, [grad(10, 6, 8), grad(3, 8), grad(3)], (4,), (("S0",), ("R",), ("R",))),
    "heads": (
        lambda x: x.view(2, 5, 6, 4).transpose(1, 2).relu().transpose(1, 2).reshape(2, 5, 24),
        [grad(2, 5, 24)],
        (2, 3),
        (("S2", "S2"),),
    ),
    "rows and back": (
        lambda x: x.view(60, 8).tanh().view(10, 6, 8), [grad(10, 6, 8)], (2, 2), (("S0", "S1"),)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), FLATTENED.values(), ids=FLATTENED)
def test_flattened_multiplied_and_back(fn: Any, tensors: Any, mesh: Any, places: Any) -> None:
    assert_like_torch(fn, tensors, mesh, places)
    placed = [place(t, mesh, p) for t, p in zip(tensors, places, strict=True)]
    assert not kinds_sent(lambda: fn(*placed))
    y = fn(*placed)
    assert set(kinds_sent(lambda: y.backward(torch.ones_like(y)))) <= {"all_reduce"}  # weights' gradients


@pytest.mark.parametrize("places", ways(2, (4,)), ids="".join)
def test_a_flat_shard_beside_a_chunk(places: Any) -> None:
    full = torch.randn(6, 16).requires_grad_()
    for other in ("R", "S0", "P"):
        assert_like_torch(lambda x, y: x.view(-1) + y, [full, grad(96)], (4,), (places, (other,)))


CASES = {
    "flat + flat": (lambda x, y: x.view(-1) + y, [grad(6, 8), grad(48)]),
    "sequence": (
        lambda x, w, b: x + F.linear(F.layer_norm(x, (8,)), w, b),
        [grad(1, 7, 8), grad(8, 8), grad(8)],
    ),
    "tiny": (lambda x: (x.sum(0), x.amax(0), x.mean(), x[1:], x.flip(0)), [grad(2, 3)]),
    "one row": (lambda x, y: x + y, [grad(1, 3), grad(5, 3)]),
    "nothing": (lambda x, w: (x @ w).relu().sum(0), [grad(0, 3), grad(3, 4)]),
    "primes": (lambda x, w: (x @ w).softmax(-1), [grad(7, 5), grad(5, 11)]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), under(CASES))
def test_as_torch(fn: Any, tensors: Any, mesh: Any, places: Any) -> None:
    assert_like_torch(fn, tensors, mesh, places)


def test_a_size_that_placements_cannot_express_is_seen() -> None:
    x = dtorch.Tensor(torch.randn(6, 16), device_mesh=mesh_of(4), placements=[Shard(0)])
    flat = x.view(-1)  # 2 rows of 16 a device, so 3 pieces of 32 elements over 4 devices
    assert flat.placements[0].is_shard(0)
    assert "32" in str(flat.placements[0])
    assert flat.redistribute(placements=[Replicate()]).shape == (96,)
