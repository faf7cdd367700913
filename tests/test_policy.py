"""Policies, gradients kept local, recording, and reading as a node of its own."""

import pytest
import torch

import dtorch
from dtorch import Partial, PlacementError, Replicate, Shard
from dtorch.ops.system.get_tensor import GetTensor
from dtorch.ops.system.sync import Sync

TWO = dtorch.init_device_mesh("cpu", 2)
FULL = torch.arange(12.0).view(4, 3)


def spread(placements=("S0",), **options):
    return dtorch.Tensor(options.pop("full", FULL), device_mesh=TWO, placements=list(placements), **options)


def clash():
    return spread(["S0"]) + spread(["S1"])


def test_strict_refuses_implicit_communication():
    assert torch.equal(clash().to_torch(), 2 * FULL)
    with (
        dtorch.strict(),
        pytest.raises(PlacementError, match=r"(?s)Add.*the policy is \"error\".*cheapest fix"),
    ):
        clash()
    assert torch.equal(clash().to_torch(), 2 * FULL)


def test_the_policy_may_be_set_for_good_or_for_a_while():
    dtorch.set_redistribute_policy("error")
    try:
        with pytest.raises(PlacementError):
            clash()
        with dtorch.set_redistribute_policy("auto"):
            clash()
        with pytest.raises(PlacementError):
            clash()
    finally:
        dtorch.set_redistribute_policy("auto")
    clash()
    with pytest.raises(RuntimeError, match=r"one of \('auto', 'error'\), not 'never'"):
        dtorch.set_redistribute_policy("never")
    assert dtorch.default_graph.policy == "auto"


def test_a_policy_ends_with_an_error_too():
    with pytest.raises(KeyError), dtorch.strict():
        raise KeyError
    assert dtorch.default_graph.policy == "auto"


@pytest.mark.parametrize("placements", [["S0"], ["P"], ["R"]], ids=str)
def test_strict_never_refuses_reading_or_asked_moves(placements):
    x = spread(placements)
    one = spread(placements[:1] if placements != ["S0"] else ["R"], full=torch.tensor(2.0))
    with dtorch.strict():
        assert torch.equal(x.to_torch(), FULL)
        assert x.tolist() == FULL.tolist()
        assert x.numpy().sum() == 66
        assert one.item() == float(one) == int(one) == 2
        assert bool(one)
        assert torch.equal(x, FULL)
        assert torch.equal(x, spread(["S1"]))
        assert x.redistribute(placements=["S1"]).placements == [Shard(1)]
        assert x.sum().item() == 66
        assert repr(x)
        assert x.to_torch_async().get().sum() == 66
        torch.zeros(4, 3).copy_(x)


def test_strict_allows_local_conversions_and_leaf_gradients():
    w = spread(["R"], requires_grad=True)
    with dtorch.strict():
        (w * spread(["S0"])).sum().backward()
    assert w.grad.placements == [Replicate()]
    assert torch.equal(w.grad.to_torch(), FULL)


def test_no_sync_keeps_gradients_pending_and_adds_them_locally():
    w = spread(["R"], full=torch.ones(3), requires_grad=True)
    x = spread(["S0"])
    with dtorch.no_sync():
        (x * w).sum().backward()
        assert w.grad.placements == [Partial()]
        (x * w).sum().backward()
        assert w.grad.placements == [Partial()]
    with dtorch.record() as seen:
        (x * w).sum().backward()
    assert w.grad.placements == [Replicate()]
    assert torch.equal(w.grad.to_torch(), 3 * FULL.sum(0))
    assert sum(c.kind == "all_reduce" and c.in_backward for c in seen.communications()) == 1


# -- recording


def test_reading_is_a_node_with_a_price():
    x = spread(["S0"], full=torch.zeros(8, 2))
    with dtorch.record() as seen:
        x.to_torch()
        x.sum(1).tolist()
    reads = [operator for operator in seen.operators if isinstance(operator, GetTensor)]
    assert len(reads) == 2
    assert reads[0].describe() == "GetTensor([8, 2] -> [8, 2])"
    price = reads[0].price()
    assert price.bandwidth_bytes == 2 * 8 * 2 * 4
    assert price.sent_bytes == 4 * 2 * 4  # the other half
    assert price.flops is None
    assert "GetTensor" in str(seen)
    assert [(c.kind, c.implicit, c.bytes) for c in seen.communications()] == [
        ("get", False, 32),
        ("get", False, 16),
    ]


def test_a_pending_sum_is_read_by_receiving_every_part():
    operator = recorded(lambda: spread(["P"], full=torch.zeros(8)).to_torch())
    assert operator.price().sent_bytes == 8 * 4
    assert recorded(lambda: spread(["R"]).to_torch()).price().sent_bytes == 0
    assert operator.outputs[0].spec.mesh.size == 1


def recorded(call):
    with dtorch.record() as seen:
        call()
    return next(operator for operator in seen.operators if isinstance(operator, GetTensor))


def test_waiting_is_a_node_without_a_price():
    with dtorch.record() as seen:
        dtorch.default_graph.sync()
        future = dtorch.default_graph.sync_future()
    assert future.is_ready()
    assert future.get() is None
    assert [type(operator) for operator in seen.operators] == [Sync, Sync]
    assert not seen.operators[0].price().has_cost()
    assert seen.communications() == []
    assert seen.cost() == dtorch.OperatorCost()
    assert "Sync" in str(seen)


def test_nothing_is_recorded_outside():
    with dtorch.record() as seen:
        pass
    spread() + 1
    assert len(seen) == 0
