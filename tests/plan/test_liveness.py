"""What nobody holds is an intermediate: a plan frees it at its last use and hands it to no operand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Replicate, Shard
from dtorch.graph.constructor import GraphConstructor
from dtorch.plan import cache
from dtorch.plan.structure import Structure


@pytest.fixture
def taken(monkeypatch):
    """The flags of every sequence that runs: which of its outputs are wanted."""
    seen: list[tuple[bool, ...]] = []
    wanted = Structure.wanted

    def watched(self, numbered):
        seen.append(wanted(self, numbered))
        return seen[-1]

    monkeypatch.setattr(Structure, "wanted", watched)
    return seen


def chain(x):
    y = x + 1.0
    z = y * 2.0
    w = z.view(-1)
    return (w * w).sin()


def test_only_the_result_of_a_chain_is_wanted(taken, graph):
    mesh = dtorch.DeviceMesh("cpu", [0, 1])
    x = dtorch.Tensor(torch.randn(4, 4), device_mesh=mesh, placements=[Shard(0)], graph=graph)
    for _ in range(3):  # the first time each call runs at once
        result = chain(x)
        result.graph.sync()
    assert taken[-1] == (False, False, False, False, True)


def test_a_dropped_chain_does_not_run(taken, graph):
    mesh = dtorch.DeviceMesh("cpu", [0, 1])
    x = dtorch.Tensor(torch.randn(4, 4), device_mesh=mesh, placements=[Shard(0)], graph=graph)
    for _ in range(2):
        chain(x).graph.sync()
    taken.clear()
    chain(x)
    x.graph.sync()
    assert taken == [(False,) * 5]


@torch.inference_mode()  # elsewhere torch's own views hold what they view
def test_a_view_keeps_what_owns_its_storages(taken, x):
    """Reducing pending sums in place starts from the storages' owner, though only views of it are left."""

    def step():
        made = x.t() @ x
        return made[2:], made[:2]

    values = torch.arange(12.0).reshape(4, 3) - 5.5
    expected = (values.t() @ values).clamp(max=40.0)
    for _ in range(4):
        last, first = step()
        x.graph.sync()
        assert first.clamp_(max=40.0).placements == last.placements == [Replicate()]
        assert torch.equal(first.to_torch(), expected[:2])
        assert torch.equal(last.clamp_(max=40.0).to_torch(), expected[2:])
    assert (False, True, True, True) in taken


@pytest.mark.parametrize("limit", [2**20, 0])
def test_a_plan_that_makes_more_serves_unless_that_takes_much_memory(x, monkeypatch, limit):
    """What nobody wants of it is let go; nothing is run that nobody wants."""
    GraphConstructor.forget()  # so that the first step runs at once, whatever ran before this test
    monkeypatch.setattr(cache, "MAX_EXTRA_BYTES", limit)

    def step():
        y = x * 3.0
        return y, y.relu(), x - 1.0

    values = torch.arange(12.0).reshape(4, 3) - 5.5
    wanted = {"y": values * 3, "relu": (values * 3).relu(), "minus": values - 1}
    for _ in range(3):
        [tensor.to_torch() for tensor in step()]
    made = dtorch.plan_stats().made
    for names in [("relu", "minus"), ("y", "relu"), ("relu",)] * 2:
        found = dict(zip(wanted, step(), strict=True))
        found = {name: found[name] for name in names}
        x.graph.sync()
        for name, tensor in found.items():
            assert torch.equal(tensor.to_torch(), wanted[name])
    # Without `minus` another plan is made, that does not run it; without `y` those that keep it serve.
    assert dtorch.plan_stats().made - made == (1 if limit else 3)


def test_a_plan_in_the_making_holds_no_values(graph: dtorch.Graph) -> None:
    """Without the garbage collector: what was pending is let go of by references alone."""
    x = dtorch.Tensor(torch.ones(4), DeviceMesh("cpu", [0]), graph=graph)
    gc.disable()
    try:
        for _ in range(4):  # at once, interpreted, by a new plan, by a known one
            made = torch.stack([x + 1.0, x + 2.0])
            operand = weakref.ref(made._operand)
            graph.sync()
            del made
            assert operand() is None
    finally:
        gc.enable()
