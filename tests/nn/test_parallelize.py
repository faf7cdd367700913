"""Which parameter a plan names, and what is refused; whole models are in tests/models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dtorch
from dtorch import AxisError, PlacementError, Replicate, Shard, UnsupportedError

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


def tied() -> nn.ModuleDict:
    """Two layers with one weight."""
    module = nn.ModuleDict({"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False)})
    module["head"].weight = module["embed"].weight
    return module


@pytest.mark.parametrize("name", ["embed.weight", "head.weight"])
def test_a_tied_parameter_goes_by_any_of_its_names(name: str) -> None:
    module = dtorch.parallelize(tied(), MESH, {name: {"tp": Shard(0)}})
    assert module["head"].weight is module["embed"].weight
    assert module["head"].weight.placements == [Shard(0)]


@pytest.mark.parametrize("name", ["first.weight", "second.weight"])
def test_a_module_that_stands_twice_goes_by_either_name(name: str) -> None:
    layer = nn.Linear(4, 4)
    module = nn.ModuleDict({"first": layer, "second": layer})
    dtorch.parallelize(module, MESH, {name: {"tp": Shard(1)}})
    assert layer.weight.placements == [Shard(1)]
    assert layer.bias.placements == [Replicate()]


def test_the_first_pattern_wins() -> None:
    plan = {"head.*": {"tp": Shard(1)}, "embed.*": {"tp": Shard(0)}}
    assert dtorch.parallelize(tied(), MESH, plan)["embed"].weight.placements == [Shard(1)]


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(
        PlacementError, match=r"no parameter matches 'haed.\*'; there are embed.weight, head.w"
    ):
        dtorch.parallelize(tied(), MESH, {"haed.*": {"tp": Shard(0)}})


def test_a_placement_that_does_not_fit_names_the_parameter() -> None:
    with pytest.raises(PlacementError, match=r"parameter embed\.weight: "):
        dtorch.parallelize(tied(), MESH, {"*": {"tp": Shard(2)}})


def test_auto_wants_a_plan_and_an_axis() -> None:
    with pytest.raises(UnsupportedError, match="ModuleDict carries no tensor-parallel plan"):
        dtorch.parallelize(tied(), MESH)
    module = tied()
    module._tp_plan = {"head": "colwise"}
    with pytest.raises(AxisError, match="'model'"):
        dtorch.parallelize(module, MESH, axis="model")


STYLES = {
    "colwise": [Shard(0)],
    "colwise_gather_output": [Shard(0)],
    "rowwise": [Shard(1)],
    "replicate": [Replicate()],
}


@pytest.mark.parametrize("style", STYLES)
def test_auto_reads_the_style(style: str) -> None:
    module = nn.ModuleDict({"head": nn.Linear(4, 8)})
    module._tp_plan = {"head": style}
    dtorch.parallelize(module, MESH)
    assert module["head"].weight.placements == STYLES[style]
    x = torch.randn(2, 4)
    with torch.no_grad():
        state = module.state_dict()
        expected = nn.functional.linear(x, state["head.weight"], state["head.bias"])
        torch.testing.assert_close(module["head"](x).to_torch(), expected)


def test_an_unknown_style_is_refused() -> None:
    module = nn.ModuleDict({"head": nn.Linear(4, 8)})
    module._tp_plan = {"head": "sideways"}
    with pytest.raises(UnsupportedError, match=r"head\.weight: the model's plan says 'sideways'"):
        dtorch.parallelize(module, MESH)


def test_a_module_moves_to_another_mesh_with_its_buffers() -> None:
    plain = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    x = torch.randn(6, 4)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    dtorch.parallelize(module, dtorch.DeviceMesh("cpu", [0]), {})
    module.load_state_dict(plain.state_dict())
    mesh = dtorch.DeviceMesh("cpu", [0, 1])
    dtorch.parallelize(module, mesh, {"0.weight": [Shard(0)]})
    assert {tensor.device_mesh for tensor in [*module.parameters(), *module.buffers()]} == {mesh}
    found = module(dtorch.Tensor(x, device_mesh=mesh))
    torch.testing.assert_close(found.to_torch(), plain(x))
    torch.testing.assert_close(module[1].running_mean.to_torch(), plain[1].running_mean)
