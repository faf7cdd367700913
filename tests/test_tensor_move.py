"""Moves between placements and meshes, local parts read anew, and copies across."""

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Partial, Replicate, Shard
from tests.places import FULL, GRID, TWO, spread

OTHERS = DeviceMesh("cpu", [4, 5])
PLACEMENTS = [[Replicate()], [Shard(0)], [Shard(1)], [Partial()]]
placed = pytest.mark.parametrize("placements", PLACEMENTS, ids=str)


# -- moving


@pytest.mark.parametrize("back", PLACEMENTS, ids=str)
@placed
def test_redistribute_keeps_the_value(placements, back):
    x = spread(placements)
    y = x.redistribute(TWO, back)
    assert y.placements == back
    assert torch.equal(y.to_torch(), FULL)
    assert torch.equal(x.redistribute(OTHERS, back).to_torch(), FULL)
    assert torch.equal(x.redistribute(GRID, [*back, "R"]).to_torch(), FULL)


def test_redistribute_without_placements_keeps_them():
    x = spread()
    three = dtorch.init_device_mesh("cpu", 3)
    assert x.redistribute(three).placements == [Shard(0)]
    assert x.redistribute(three).to_local(2).shape == (1, 3)
    assert x.redistribute(OTHERS).dist_layout is x.dist_layout
    with pytest.raises(ValueError, match=r"give placements: .* has 1 axes and .* has 2"):
        x.redistribute(GRID)
    with pytest.raises(TypeError, match=r"redistribute\(placements=\.\.\.\)"):
        x.redistribute([Shard(0)])
    with pytest.raises(ValueError, match="is for another mesh"):
        x.redistribute(GRID, x.dist_layout)
    with pytest.raises(ValueError, match="is for shape"):
        x.redistribute(placements=x.t().dist_layout)


def test_redistribute_to_the_same_shares_storage():
    x = spread()
    y = x.redistribute(placements=[Shard(0)])
    assert y is not x
    y.zero_()
    assert not x.to_torch().any()
    z = spread()
    z.redistribute(placements=["R"]).zero_()
    assert torch.equal(z.to_torch(), FULL)


def test_redistribute_has_the_identity_as_gradient():
    x = spread(requires_grad=True)
    y = x.redistribute(GRID, ["S1", "S0"])
    (y * y).sum().backward()
    assert x.grad.placements == [Shard(0)]
    assert torch.allclose(x.grad.to_torch(), 2 * FULL)


def test_redistribute_like():
    other = spread(["S0", "S0"], GRID)
    assert spread().redistribute_like(other).dist_layout is other.dist_layout
    y = spread(full=FULL.t().clone()).redistribute_like(other)
    assert y.placements == [Shard(0), Shard(0)]
    assert y.device_mesh == GRID


@pytest.mark.parametrize(
    ("given", "options", "placements"),
    [
        ({"dp": Shard(1), "tp": Replicate()}, {}, ["S1", "R"]),
        ({"dp": "S1"}, {"default_placement_mode": "replicate"}, ["S1", "R"]),
        ({"tp": "P"}, {"default_placement_mode": "keep"}, ["S0", "P"]),
        ({0: "R", -1: Shard(-1)}, {}, ["R", "S1"]),
        ({"cp": Shard(0), "dp": "R", "tp": "R"}, {}, ["R", "R"]),
        (None, {"default_placement_mode": "keep"}, ["S0", "R"]),
    ],
)
def test_redistribute_by_dict(given, options, placements):
    x = spread(["S0", "R"], GRID)
    y = x.redistribute_by_dict(placements_dict=given, **options)
    assert y.placements == spread(placements, GRID).placements
    assert torch.equal(y.to_torch(), FULL)


def test_redistribute_by_dict_to_another_mesh_and_dims_of_size_one():
    x = spread(["S0", "S1"], GRID)
    tp = dtorch.init_device_mesh("cpu", (3,), mesh_dim_names=("tp",))
    assert x.redistribute_by_dict(tp, {}, "keep").placements == [Shard(1)]
    row = spread(["R"], full=FULL[:1])
    assert row.redistribute_by_dict(placements_dict={0: "S0"}).placements == [Replicate()]
    kept = row.redistribute_by_dict(placements_dict={0: "S0"}, convert_shard_size_one_to_replicate=False)
    assert kept.placements == [Shard(0)]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.redistribute_by_dict(placements_dict={"dp": "R"}), "mesh axis 'tp' .* has no placement"),
        (lambda x: x.redistribute_by_dict(placements_dict={2: "R"}), "has no axis 2"),
        (lambda x: x.redistribute_by_dict(None, {}, "guess"), "'raise_error', 'replicate' and 'keep'"),
        (lambda x: x.redistribute_by_dict(None, {"dp": Shard(-3)}, "keep"), "the tensor has 2 dims"),
        (
            lambda x: x.redistribute_by_dict(
                dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("cp",)), {}, "keep"
            ),
            "has no axis 'cp' whose placement could be kept",
        ),
    ],
)
def test_redistribute_by_dict_refuses(call, text):
    with pytest.raises(ValueError, match=text):
        call(spread(["S0", "R"], GRID))


def test_to_a_mesh_and_torchs_to():
    x = spread(requires_grad=True)
    y = x.to(OTHERS)
    assert (y.device_mesh, y.placements) == (OTHERS, [Shard(0)])
    y.sum().backward()
    assert torch.equal(x.grad.to_torch(), torch.ones(5, 3))
    assert x.to(device_mesh=OTHERS).device_mesh == OTHERS
    assert x.to(TWO) is x
    assert x.to(torch.float64).dtype is torch.float64
    assert x.to(OTHERS, torch.float64).dtype is torch.float64
    assert x.to("cpu") is x
    assert x.cpu() is x
    assert x.to("cpu", torch.float16).dtype is torch.float16
    assert x.to(device="cpu", dtype=torch.float16).placements == [Shard(0)]
    assert x.to(torch.zeros(1, dtype=torch.float64)).dtype is torch.float64
    assert x.to(y.double()).dtype is torch.float64
    assert x.to(torch.float32) is x
    assert x.double().dtype is torch.float64
    with pytest.raises(ValueError, match="the shapes differ; redistribute"):
        x.to(GRID)
    with pytest.raises(RuntimeError, match=r"cannot go to 'cuda:1'; to_torch\(\)"):
        x.to("cuda:1")
    with pytest.raises(RuntimeError, match="cannot go to 'meta'"):
        x.to("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_gpus_that_are_not_there_are_named():
    for call in (lambda x: x.cuda(), lambda x: x.to("cuda"), lambda x: x.to(DeviceMesh("cuda", [0, 1]))):
        with pytest.raises(RuntimeError, match=r"needs cuda devices \[0, 1\], and 0 GPUs are here"):
            call(spread())


# -- local parts under other placements


@pytest.mark.parametrize(
    ("have", "want", "value"),
    [
        ("R", "P", 2 * FULL),
        ("R", "S0", torch.cat([FULL, FULL])),
        ("R", "S1", torch.cat([FULL, FULL], 1)),
        ("R", "R", FULL),
        ("S0", "S0", FULL),
        ("P", "S0", torch.cat([FULL, torch.zeros(5, 3)])),
        ("P", "P", FULL),
    ],
)
def test_view_of_placements_reads_the_parts_anew(have, want, value):
    x = spread([have])
    y = x.view([want])
    assert y.placements == [dtorch.placement.as_placement(want)]
    assert torch.equal(y.to_torch(), value)
    y.add_(1)
    assert torch.equal(x.to_torch(), FULL)
    assert torch.equal(y.to_torch(), value + 1)


def test_view_of_placements_adds_shards():
    x = spread(full=torch.arange(8.0).view(4, 2))
    assert x.view([Partial()]).tolist() == [[4.0, 6.0], [8.0, 10.0]]
    assert x.view((Shard(1),)).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert x.view(x.dist_layout).tolist() == x.tolist()
    assert x.view(2, 4).shape == x.view([2, 4]).shape == (2, 4)
    assert x.view(torch.int32).dtype is torch.int32
    with pytest.raises(ValueError, match=r"the parts differ along mesh axis 0, so they are no Replicate"):
        x.view(["R"])
    with pytest.raises(ValueError, match=r"part at \(1,\) is \[2, 3\]"):
        spread().view(["P"])


@pytest.mark.parametrize(
    ("have", "want", "slope"), [("R", "P", 2), ("R", "S0", 2), ("S0", "P", 1), ("S0", "S1", 1)]
)
def test_view_of_placements_has_a_gradient(have, want, slope):
    x = spread([have], full=torch.ones(4, 2), requires_grad=True)
    x.view([want]).sum().backward()
    assert torch.equal(x.grad.to_torch(), torch.full((4, 2), float(slope)))


def test_view_of_a_pending_sum_has_no_gradient():
    x = spread(["P"], requires_grad=True)
    with pytest.raises(RuntimeError, match="has no gradient; redistribute it first"):
        x.view(["S0"]).sum().backward()


# -- copies


@pytest.mark.parametrize("mesh", [TWO, OTHERS], ids=str)
@pytest.mark.parametrize("source", PLACEMENTS, ids=str)
@placed
def test_copy_across_placements_and_meshes(placements, source, mesh):
    w = spread(placements, full=torch.zeros(5, 3))
    x = spread(source, mesh)
    assert w.copy_(x) is w
    assert torch.equal(w.to_torch(), FULL)
    assert w.device_mesh == TWO
    w[1:3] = spread(source, mesh, full=FULL[:2])
    assert torch.equal(w.to_torch()[1:3], FULL[:2])
    w.copy_(spread(source, mesh, full=FULL[:1].double()))
    assert torch.equal(w.to_torch(), FULL[:1].expand(5, 3))


@placed
def test_copy_between_plain_and_distributed(placements):
    plain = torch.zeros(5, 3)
    plain.copy_(spread(placements))
    assert torch.equal(plain, FULL)
    w = spread(placements, full=torch.zeros(5, 3))
    w.copy_(FULL)
    assert torch.equal(w.to_torch(), FULL)


def test_copy_across_meshes_has_a_gradient():
    x = spread(["S1"], OTHERS, requires_grad=True)
    w = spread(["R"], full=torch.zeros(5, 3))
    w.copy_(x)
    (w * w).sum().backward()
    assert torch.allclose(x.grad.to_torch(), 2 * FULL)
    assert x.grad.device_mesh == OTHERS


def test_meshes_do_not_mix_by_themselves():
    with pytest.raises(ValueError, match=r"two meshes.*x\.redistribute\(mesh, placements\) or x\.to\(mesh\)"):
        spread() + spread(mesh=OTHERS)
