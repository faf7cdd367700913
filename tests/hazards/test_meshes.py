"""Meshes and redistribution.

the inner axis first on a dim: rows come back permuted
    `test_the_order_of_axes_is_part_of_the_layout`,
    `tests/redistribute/test_redistribute.py::test_inner_axis_cuts_first`
reversed order with odd sizes
    `test_the_order_of_axes_is_part_of_the_layout`
a mesh axis of size 1
    `test_an_axis_of_size_one`
price ignores nesting, breaks the triangle inequality
    `test_a_way_round_is_no_cheaper`, `tests/redistribute/test_pricing.py::test_no_detour_is_cheaper`,
    `tests/redistribute/test_redistribute.py` (price = bytes counted)
redistribute to another mesh does not move the data
    `test_another_mesh`, `tests/test_tensor_move.py`
a user cannot see what layout intermediates got
    `test_every_layer_answers_its_placements`
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Layout, Replicate, Shard
from dtorch.redistribute import cost
from tests.dist import assert_like_torch, ways
from tests.hazards.cases import kinds_sent, mesh_of


@pytest.mark.parametrize("size", [4, 5, 6, 7, 1, 0])
@pytest.mark.parametrize(
    "path",
    [[["R", "R"]], [["S0", "S0"]], [["R", "S0"], ["S0", "R"]], [["S0", "R"]], [["P", "S0"], ["S0", "P"]]],
    ids=str,
)
def test_the_order_of_axes_is_part_of_the_layout(size: int, path: Any) -> None:
    full = torch.arange(float(size)).view(size, 1)
    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = dtorch.Tensor(full, device_mesh=mesh, placements=["S0", "S0"], axis_order=("tp", "dp"))
    if size == 4:
        assert [x.to_local(i).item() for i in range(4)] == [0, 2, 1, 3]
    assert torch.equal(x.to_torch(), full)
    y = x
    for placements in path:
        y = y.redistribute(placements=placements)
        assert torch.equal(y.to_torch(), full)
    z = y.redistribute(placements=["S0", "S0"], axis_order=("tp", "dp"))
    assert z.dist_layout is x.dist_layout
    assert torch.equal((z + y).to_torch(), 2 * full)


ONE = [((1, 4), w) for w in ways(2, (1, 4))[::2]] + [((1,), w) for w in ways(2, (1,))]
ONE += [((1, 1), ("S0", "S0")), ((4, 1), ("S1", "S1")), ((1, 1), ("P", "S1"))]


@pytest.mark.parametrize(("mesh", "places"), ONE, ids=str)
def test_an_axis_of_size_one(mesh: Any, places: Any) -> None:
    x, w = torch.randn(5, 6).requires_grad_(), torch.randn(6, 3).requires_grad_()
    other = ("R",) * len(mesh)
    assert_like_torch(torch.mm, [x, w], mesh, (places, other))
    placed = dtorch.Tensor(x, device_mesh=mesh_of(*mesh), placements=places)
    for size, placement in zip(mesh, placed.placements, strict=True):
        assert size > 1 or placement == Replicate()
    if set(mesh) == {1}:
        assert not kinds_sent(lambda: placed @ w)
        assert torch.equal((placed @ w).to_torch(), x @ w)


SOURCES = ["R", "S0", "S1", "P"]
TARGETS = [
    ([9, 8], ["R"]),
    ([2, 3], ["S0"]),
    ([3, 1, 0, 2], ["S1"]),
    ([[0, 5], [6, 1]], ["S0", "S0"]),
    ([7], ["R"]),
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("ids", "placements"), TARGETS, ids=str)
def test_another_mesh(source: str, ids: Any, placements: Any) -> None:
    full = torch.arange(16.0).view(4, 4)
    x = dtorch.Tensor(full, device_mesh=mesh_of(4), placements=[source], requires_grad=True)
    mesh = DeviceMesh("cpu", ids)
    y = x.redistribute(mesh, placements)
    assert y.device_mesh == mesh
    shapes = [tuple(y.to_local(i).shape) for i in range(mesh.size)]
    assert shapes == [y.dist_layout.local_shape(coord) for coord in mesh.coords]
    assert torch.equal(y.to_torch(), full)
    (y * y).sum().backward()
    assert x.grad.device_mesh == x.device_mesh
    assert torch.equal(x.grad.to_torch(), 2 * full)


def test_another_kind_of_device() -> None:
    x = dtorch.Tensor(torch.randn(4, 4), device_mesh=mesh_of(4), placements=[Shard(0)])
    if not torch.cuda.is_available():
        with pytest.raises(dtorch.DeviceError, match="cuda"):
            x.redistribute(DeviceMesh("cuda", [0, 1]), [Replicate()])
        with pytest.raises(dtorch.DeviceError, match="cuda"):
            x.to(DeviceMesh("cuda", [0, 1, 2, 3]))


def test_every_layer_answers_its_placements() -> None:
    mesh = mesh_of(2, 2)
    layers = [torch.nn.Linear(8, 8) for _ in range(3)]
    cuts = [{"weight": ["R", "S0"], "bias": ["R", "S0"]}, {"weight": ["R", "S1"]}, {"weight": ["R", "R"]}]
    for layer, cut in zip(layers, cuts, strict=True):
        dtorch.parallelize(layer, mesh, cut)
    x = dtorch.Tensor(torch.randn(6, 8), device_mesh=mesh, placements=["S0", "R"])
    seen = []
    for layer in layers:
        x = layer(x)
        seen.append([str(p)[:7] for p in x.placements])
        x = x.relu()
    assert [s[0] for s in seen] == ["Shard(0"] * 3
    assert [s[1] for s in seen] == ["Shard(1", "Partial", "Replica"]


PAIRS = list(itertools.permutations([("S0", "S0"), ("S0", "R"), ("R", "S0"), ("R", "R"), ("S1", "S0")], 2))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: "-".join(map("".join, p)))
def test_a_way_round_is_no_cheaper(pair: Any) -> None:
    a, c = (Layout.from_placements((2, 2), (8, 8), places) for places in pair)
    for between in ways(2, (2, 2), pending=False):
        b = Layout.from_placements((2, 2), (8, 8), between)
        assert cost(a, c, 4) <= cost(a, b, 4) + cost(b, c, 4)
