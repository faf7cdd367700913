"""What nobody holds is an intermediate: a plan frees it at its last use and hands it to no operand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Shard
from dtorch.graph.pending import Pending


@pytest.fixture
def taken(monkeypatch):
    """The flags of every sequence that runs: for each node, which outputs are wanted."""
    seen: list[list[list[bool]]] = []
    take = Pending.take

    def watched(self):
        nodes, wanted = take(self)
        seen.append(wanted)
        return nodes, wanted

    monkeypatch.setattr(Pending, "take", watched)
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
    assert taken[-1] == [[False], [False], [False], [False], [True]]


def test_a_dropped_chain_does_not_run(taken, graph):
    mesh = dtorch.DeviceMesh("cpu", [0, 1])
    x = dtorch.Tensor(torch.randn(4, 4), device_mesh=mesh, placements=[Shard(0)], graph=graph)
    for _ in range(2):
        chain(x).graph.sync()
    taken.clear()
    chain(x)
    x.graph.sync()
    assert taken == [[]]


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
