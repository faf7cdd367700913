"""What a tensor answers, and how its value is read and compared."""

import asyncio

import numpy as np
import pytest
import torch

import dtorch
from dtorch import Partial, Replicate, Shard
from dtorch.tensor_layout import PlacementList
from tests.places import FULL, GRID, TWO, spread

PLACEMENTS = [[Replicate()], [Shard(0)], [Shard(1)], [Partial()]]
placed = pytest.mark.parametrize("placements", PLACEMENTS, ids=str)


# -- what it is


def test_properties():
    x = spread()
    assert isinstance(x, torch.Tensor)
    assert x.is_dtensor
    assert x.graph is dtorch.default_graph
    assert x.device_mesh == TWO
    assert x.device == torch.device("cpu")
    assert x.layout is torch.strided
    assert x.dist_layout.local_shape((1,)) == (2, 3)
    assert len(x) == 5
    assert not hasattr(torch.zeros(1), "is_dtensor")


def test_placements_equal_lists_and_tuples():
    from torch.distributed import tensor as theirs

    placements = spread(["S0", "R"], GRID).placements
    assert placements == [Shard(0), Replicate()]
    assert placements == (Shard(0), Replicate())
    assert [Shard(0), Replicate()] == placements
    assert placements == [theirs.Shard(0), theirs.Replicate()]
    assert placements == (theirs.Shard(0), theirs.Replicate())
    assert placements != [Shard(0)]
    assert placements != "S0"
    assert hash(placements) == hash((Shard(0), Replicate()))
    assert repr(placements) == "[Shard(0), Replicate()]"
    assert isinstance(placements, PlacementList)
    assert spread(placements, GRID).placements == placements


# -- reading


@placed
def test_reading_equals_torch(placements):
    x = spread(placements)
    assert x.tolist() == FULL.tolist()
    assert np.array_equal(x.numpy(), FULL.numpy())
    assert np.array_equal(np.asarray(x), FULL.numpy())
    assert np.asarray(x, dtype=np.int32).dtype == np.int32
    assert [row.tolist() for row in x] == FULL.tolist()
    one = x[2, 1]
    assert one.item() == float(one) == int(one) == 7
    assert bool(one)
    assert f"{one:.2f}" == "7.00"
    assert 7.0 in x
    assert "abc"[spread([Partial()], full=torch.tensor(1))] == "b"


@placed
def test_full_values_are_copies(placements):
    x = spread(placements)
    value = x.to_torch()
    assert type(value) is torch.Tensor
    value += 1
    x.to_local(0).add_(1)
    assert torch.equal(x.full_tensor(), FULL)
    array = x.numpy()
    array += 1
    assert torch.equal(x.to_torch(), FULL)


def test_to_local_by_position_and_coordinate():
    x = spread(["S0", "S1"], GRID)
    assert torch.equal(x.to_local(3), FULL[3:, 2:])
    assert torch.equal(x.to_local((1, 1)), FULL[3:, 2:])
    assert torch.equal(dtorch.Tensor(FULL).to_local(), FULL)
    with pytest.raises(KeyError, match="no position 4; positions are 0 to 3"):
        x.to_local(4)
    with pytest.raises(ValueError, match="say whose part, 0 to 3"):
        x.to_local()


def test_local_parts_of_a_view_are_up_to_date():
    x = spread(["S0"])
    middle = x[1:4]
    x.zero_()
    assert not any(middle.to_local(i).any() for i in range(2))
    assert "0." in repr(middle)
    assert middle.redistribute(placements=["R"]).tolist() == [[0.0] * 3] * 3


def test_reading_that_torch_refuses_is_refused():
    x = spread(requires_grad=True)
    with pytest.raises(RuntimeError, match="a Tensor with 15 elements cannot be converted to Scalar"):
        x.item()
    with pytest.raises(RuntimeError, match="requires grad: use"):
        x.numpy()
    assert np.array_equal(x.numpy(force=True), FULL.numpy())
    with pytest.raises(ValueError, match="always a copy"):
        x.detach().__array__(copy=False)
    with pytest.raises(BufferError, match="requires grad"):
        torch.from_dlpack(x)
    with pytest.raises(BufferError, match="always a copy"):
        x.detach().__dlpack__(copy=False)
    assert torch.equal(torch.from_dlpack(x.detach()), FULL)
    with pytest.raises(TypeError, match="unsupported format string"):
        format(x, ".2f")


@placed
def test_autograd_goes_through_to_torch(placements):
    x = spread(placements, requires_grad=True)
    (x.to_torch() * FULL).sum().backward()
    assert x.grad.dist_layout is x.dist_layout
    assert torch.equal(x.grad.to_torch(), FULL)
    y = spread(placements, requires_grad=True)
    (g,) = torch.autograd.grad((y.full_tensor() ** 3).sum(), y, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), y)
    assert torch.allclose(h.to_torch(), 6 * FULL)


def test_futures():
    future = spread().to_torch_async()
    assert isinstance(future, dtorch.TensorFuture)
    assert future.is_ready()
    assert future.wait_for(0)
    future.wait()
    assert torch.equal(future.get(), FULL)
    assert repr(future) == "TensorFuture(ready)"

    async def read():
        return await spread().to_torch_async()

    assert torch.equal(asyncio.run(read()), FULL)
    with pytest.raises(ValueError, match="milliseconds, 0 or more"):
        future.wait_for(-1)


class Event:
    """An event that passes after some queries."""

    def __init__(self, queries):
        self.left = queries

    def query(self):
        self.left -= 1
        return self.left <= 0

    def synchronize(self):
        self.left = 0


def test_futures_wait_for_their_events():
    assert not dtorch.TensorFuture(FULL, [Event(10**9)]).is_ready()
    assert not dtorch.TensorFuture(FULL, [Event(10**9)]).wait_for(1)
    assert dtorch.TensorFuture(FULL, [Event(3)]).wait_for(10_000)
    assert dtorch.TensorFuture(FULL, [Event(10**9)]).get() is FULL
    assert "pending" in repr(dtorch.TensorFuture(FULL, [Event(10**9)]))

    async def wait():
        return await dtorch.VoidFutureCollect([Event(3), Event(1)])

    assert asyncio.run(wait()) is None


# -- comparing


@placed
def test_comparisons_take_plain_partners(placements):
    x = spread(placements)
    assert torch.equal(x, FULL)
    assert torch.equal(FULL, x)
    assert torch.equal(x, spread(["S1"]))
    assert torch.equal(x, spread(placements))
    assert not torch.equal(x, FULL + 1)
    assert not torch.equal(x, torch.tensor(0.0))
    assert not torch.equal(x, FULL[:4])
    assert torch.allclose(x, FULL * (1 + 1e-7))
    assert torch.allclose(FULL, x)
    torch.testing.assert_close(x, FULL)
    torch.testing.assert_close(FULL, x)
    torch.testing.assert_close(x, spread(["S0", "R"], GRID).redistribute(TWO, ["R"]))
    torch.testing.assert_close(x[0, 0], FULL[0, 0])
    with pytest.raises(AssertionError, match=r"Greatest absolute difference: 1.0"):
        torch.testing.assert_close(x, FULL + 1)
    with pytest.raises(AssertionError, match="values for attribute 'shape' do not match"):
        torch.testing.assert_close(x, FULL[0])
