"""A recorded graph as one operator: it infers, prices, runs, converts its inputs, and goes into files."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dtorch
from dtorch import LogicalGraph, OperatorCost, Replicate, ShapeError, Shard, UnsupportedError
from dtorch.graph.sub_graph import SubGraph, SubGraphParam
from dtorch.operators import Operator, OperatorFactory, add_operator, operand

GRID = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
X, W = torch.randn(7, 6), torch.randn(4, 6)


def tensors(scale: float = 1.0, places: Any = (["S0", "R"], ["R", "S0"])) -> list[dtorch.Tensor]:
    return [
        dtorch.Tensor(full * scale, device_mesh=GRID, placements=p)
        for full, p in zip((X, W), places, strict=True)
    ]


def block(x: Any, w: Any) -> tuple[Any, Any]:
    y = torch.nn.functional.linear(x, w).relu()
    return y.sum(0), y.t()[1:] * torch.arange(7.0)


@pytest.fixture
def recorded() -> tuple[LogicalGraph, SubGraphParam, tuple[Any, Any]]:
    x, w = tensors()
    with dtorch.record() as graph:
        made = block(x, w)
    return graph, graph.as_param(inputs=[x, w], outputs=made), made


def test_one_node_gives_what_the_graph_gives(recorded: Any) -> None:
    graph, param, _ = recorded
    for scale in (1.0, 1.0, -2.0, 1.0):  # run at once, then recorded, then by a plan
        with dtorch.record() as outer:
            found = add_operator(param, *tensors(scale))
        assert [operator.type for operator in outer.operators] == ["SubGraph"]
        for mine, theirs in zip(found, block(*tensors(scale)), strict=True):
            assert mine.placements == theirs.placements
            assert torch.equal(mine.to_torch(), theirs.to_torch())
    assert outer.operators[0].describe() == f"SubGraph([7, 6] x [4, 6] -> [4], [3, 7], nodes={len(graph)})"


def test_its_price_is_the_sum(recorded: Any) -> None:
    graph, param, _ = recorded
    with dtorch.record() as outer:
        add_operator(param, *tensors())
    (operator,) = outer.operators
    assert operator.price() == outer.cost() == graph.cost()
    assert outer.communications() == graph.communications() != []
    for coord in GRID.coords:
        local = sum((o.local_price(coord) for o in graph.operators), OperatorCost())
        assert operator.local_price(coord) == local
    assert operator.price_max().flops == max(operator.local_price(c).flops or 0 for c in GRID.coords)


def test_inputs_are_brought_to_the_recorded_placements(recorded: Any) -> None:
    _, param, made = recorded
    places = (["R", "S1"], ["S1", "R"])
    with dtorch.record() as outer:
        found = add_operator(param, *tensors(places=places))
    assert [operator.type for operator in outer.operators] == ["Convert", "Convert", "SubGraph"]
    assert outer.communications()[0].cause == "SubGraph"
    for mine, theirs in zip(found, made, strict=True):
        assert torch.equal(mine.to_torch(), theirs.to_torch())
    with dtorch.strict(), pytest.raises(dtorch.PlacementError, match="SubGraph"):
        add_operator(param, *tensors(places=places))


def test_into_files(recorded: Any) -> None:
    _, param, made = recorded
    operator = OperatorFactory.new_operator(param, [operand(t) for t in tensors()])
    back = Operator.from_json(Operator.from_bytes(operator.to_bytes()).to_json())
    assert isinstance(back, SubGraph)
    assert (back.describe(), back.price()) == (operator.describe(), operator.price())
    with dtorch.record() as outer:
        given = tensors()
        found = add_operator(param, *given)
        total = found[0].sum()
    loaded = LogicalGraph.from_bytes(outer.to_bytes(inputs=given, outputs=[total]))
    assert str(loaded) == str(outer)
    assert torch.equal(loaded.run(*tensors())[0].to_torch(), made[0].to_torch().sum())


def test_a_graph_of_sub_graphs(recorded: Any) -> None:
    _, param, made = recorded
    x, w = tensors()
    with dtorch.record() as outer:
        found = add_operator(param, x, w)[1] + 1
    nested = add_operator(outer.as_param(inputs=[x, w], outputs=[found]), *tensors())
    assert torch.equal(nested.to_torch(), made[1].to_torch() + 1)


def test_outputs_are_apart_from_inputs() -> None:
    x = tensors()[0]
    with dtorch.record() as graph:
        made = x.view(7, 3, 2), x.t()
    param = graph.as_param(inputs=[x], outputs=made)
    given = tensors()[0]
    one, other = add_operator(param, given)
    one.zero_()
    assert torch.equal(given.to_torch(), X)
    assert torch.equal(other.to_torch(), X.t())


def test_one_device_and_redistribution() -> None:
    for mesh, places in ((dtorch.DeviceMesh("cpu"), None), (GRID, ["R", "R"])):
        x = dtorch.Tensor(X, device_mesh=mesh, placements=places)
        with dtorch.record() as graph:
            y = x.redistribute(placements=["S0", "S1"]) if mesh.ndim else x.exp()
        found = add_operator(graph.as_param(inputs=[x], outputs=[y]), x)
        assert found.placements == y.placements
        assert torch.equal(found.to_torch(), y.to_torch())


def test_refusals(recorded: Any) -> None:
    _, param, _ = recorded
    x, w = tensors()
    with pytest.raises(ShapeError, match="for a SubGraph of calls on"):
        add_operator(param, x[:3], w)
    with pytest.raises(ShapeError, match="for a SubGraph of calls on"):
        add_operator(param, x, w.double())
    with dtorch.record() as writing:
        y = x.add_(1)
    with pytest.raises(UnsupportedError, match="does not write its inputs: Add"):
        writing.as_param(inputs=[x], outputs=[y])
    w.requires_grad_()
    with dtorch.record() as training:
        loss = block(x, w)[0].sum()
        loss.backward()
    with pytest.raises(UnsupportedError, match="a backward is no part of a sub-graph"):
        training.as_param(inputs=[x, w], outputs=[loss])
    assert Replicate() == loss.placements[0]
    assert Shard(0) == x.placements[0]
