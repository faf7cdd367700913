"""Placements of layouts: what prints plain, what prints as torch's strided shard, and that all round-trip."""

import copy
import pickle

import pytest

from dtorch.errors import PlacementError, UnsupportedError
from dtorch.layout import FactorShard, Layout
from dtorch.placement import Partial, Replicate, Shard
from tests.layout.oracle import all_dims, chunk_of, coords_of, oracle_indices

MESHES = [(2,), (3,), (2, 2), (3, 2), (2, 3), (2, 2, 2)]


def layouts_of(mesh_shape):
    """Every layout of one dim of up to 12 elements, the dim second of two."""
    for n in range(13 if len(mesh_shape) < 3 else 9):
        for factors in all_dims(n, mesh_shape):
            yield Layout.of(mesh_shape, [((3, ()),), factors])


def strided(mesh_shape, n, placements, coord):
    """Indices by torch's rule: axis by axis, the local piece in `split_factor` blocks, a chunk of each."""
    held = tuple(range(n))
    for axis, placement in enumerate(placements):
        if placement.is_shard():
            blocks = placement.split_factor if isinstance(placement, FactorShard) else 1
            size = len(held) // blocks
            pieces = [held[i * size : i * size + size] for i in range(blocks)]
            held = tuple(i for piece in pieces for i in chunk_of(piece, mesh_shape[axis], coord[axis]))
    return held


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_placements_round_trip(mesh_shape):
    for layout in layouts_of(mesh_shape):
        placements = layout.placements()
        assert Layout.from_placements(mesh_shape, layout.shape, placements) is layout
        roles = [1 if p.is_shard(1) else "R" for p in placements]
        assert roles == [layout.role(axis) for axis in range(len(mesh_shape))]


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_plain_and_strided_placements_mean_what_torch_means(mesh_shape):
    for layout in layouts_of(mesh_shape):
        placements = layout.placements()
        if any(isinstance(p, FactorShard) and p.split_factor is None for p in placements):
            continue
        for coord in coords_of(mesh_shape):
            want = strided(mesh_shape, layout.shape[1], placements, coord)
            assert oracle_indices(mesh_shape, layout.dims[1], coord) == want, (layout, placements)


def test_plain_placements():
    layout = Layout.from_placements((2, 3, 2, 1), (7, 5), ["S(-1)", "S0", "P", "S1"])
    assert layout.placements() == (Shard(1), Shard(0), Partial(), Replicate())
    assert all(type(p) is not FactorShard for p in layout.placements())
    assert layout.placements() is layout.placements()


@pytest.mark.parametrize(
    ("mesh_shape", "factors", "names", "texts"),
    [
        ((2,), ((7, (0,)), (12, ())), ("dp",), ["Shard(0: 7@dp * 12)"]),
        ((2,), ((7, (0,)), (12, ())), None, ["Shard(0: 7@0 * 12)"]),
        ((2,), ((3, ()), (8, (0,))), ("tp",), ["_StridedShard(dim=0, sf=3)"]),
        ((2, 2), ((8, (1, 0)),), None, ["_StridedShard(dim=0, sf=2)", "Shard(0)"]),
        ((2, 2), ((2, (0,)), (3, ()), (4, (1,))), None, ["Shard(0)", "_StridedShard(dim=0, sf=3)"]),
        ((2, 2), ((5, (1, 0)),), ("dp", "tp"), ["Shard(0: 5@tp@dp)", "Shard(0: 5@tp@dp)"]),
        ((2, 2), ((1, (0,)), (3, ())), ("dp", "tp"), ["Shard(0: 1@dp * 3)", "Replicate()"]),
        ((2, 2), ((5, (0, 1)),), None, ["Shard(0)", "Shard(0)"]),
        ((2, 2), ((0, (0, 1)),), None, ["Shard(0)", "Shard(0)"]),
    ],
)
def test_how_placements_print(mesh_shape, factors, names, texts):
    assert [repr(p) for p in Layout.of(mesh_shape, [factors]).placements(names)] == texts


def test_a_factor_shard_is_a_value():
    (ours,) = Layout.of((2,), [((3, ()), (8, (0,)))]).placements()
    (named,) = Layout.of((2,), [((3, ()), (8, (0,)))]).placements(("tp",))
    (other,) = Layout.of((2,), [((7, (0,)), (12, ()))]).placements()
    assert ours == named
    assert hash(ours) == hash(named)
    assert len({ours, named, other, Shard(0)}) == 3
    assert ours != Shard(0)
    assert Shard(0) != ours
    assert pickle.loads(pickle.dumps(other)) == copy.deepcopy(other) == other
    assert ours.is_shard(0)
    assert not ours.is_shard(1)
    assert ours.get_shard_index() == 0


def test_to_torch():
    from torch.distributed.tensor.placement_types import _StridedShard

    (strided_shard,) = Layout.of((2,), [((3, ()), (8, (0,)))]).placements()
    assert strided_shard.to_torch() == _StridedShard(0, split_factor=3)
    (uneven,) = Layout.of((2,), [((7, (0,)), (12, ()))]).placements(("dp",))
    with pytest.raises(UnsupportedError, match="7@dp"):
        uneven.to_torch()


def test_mixing_factor_shards_with_other_placements():
    fused = Layout.of((2, 2), [((3, ()), (8, (1,))), ((4, ()),)])
    dp, tp = fused.placements()
    changed = Layout.from_placements((2, 2), (24, 4), [Shard(1), tp])
    assert changed is Layout.of((2, 2), [((3, ()), (8, (1,))), ((4, (0,)),)])
    nested = Layout.of((2, 2), [((6, (1, 0)),)])
    assert Layout.from_placements((2, 2), (6,), [nested.placements()[0], "R"]) is nested.drop([1])
    assert Layout.from_placements((2, 2), (24, 4), ["R", tp]) is fused
    assert dp == Replicate()


def test_a_plain_shard_beside_a_factor_shard_cuts_inside_it():
    _, tp = Layout.of((2, 2), [((2, ()), (4, (1,)))]).placements()
    both = Layout.from_placements((2, 2), (8,), [Shard(0), tp])
    assert both is Layout.of((2, 2), [((2, (0,)), (4, (1,)))])
    _, tp = Layout.of((2, 2), [((3, ()), (4, (1,)))]).placements()
    with pytest.raises(PlacementError, match=r"mesh axis 0 cannot cut dim 0 \(3 \* 2@1 \* 2\) further"):
        Layout.from_placements((2, 2), (12,), [Shard(0), tp])


@pytest.mark.parametrize(
    ("shape", "placements", "order", "message"),
    [
        ((4,), ["S0"], None, r"1 placements for a mesh of shape \(2, 2\)"),
        ((4,), ["S1", "R"], None, r"Shard\(1\) on mesh axis 0: the tensor has 1 dims"),
        ((), ["R", "S0"], None, r"Shard\(0\) on mesh axis 1: the tensor has 0 dims"),
        ((4,), ["X", "R"], None, "'X' is no placement"),
        ((4,), ["S0", "S0"], (0, 0), r"axis_order \[0, 0\]"),
        ((4,), ["S0", "S0"], (2,), r"axis_order \[2\]"),
        ((4,), Layout.replicate((2, 2), (5,)), None, r"given for shape \[4\]"),
        ((9,), ["R", FactorShard(0, ((3, ()), (2, (1,))), 3)], None, "for a dim of size 6; dim 0 has size 9"),
    ],
)
def test_what_are_no_placements(shape, placements, order, message):
    with pytest.raises(PlacementError, match=message):
        Layout.from_placements((2, 2), shape, placements, order)


def test_a_layout_is_taken_for_placements():
    layout = Layout.of((2,), [((3, ()), (8, (0,)))])
    assert Layout.from_placements((2,), (24,), layout) is layout
