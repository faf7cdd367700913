"""Layouts as values: normal form, index sets, roles, changes; against `torch.chunk`."""

import copy
import gc
import itertools
import pickle
import threading
import weakref
from collections import defaultdict

import pytest

from dtorch.errors import PlacementError
from dtorch.layout import Layout, chunk_range, coordinates, representative_positions
from tests.layout.oracle import all_dims, chunk_of, coords_of, held, oracle_indices, partition

MESHES = [(2,), (3,), (4,), (7,), (2, 2), (3, 2), (2, 3), (4, 3), (2, 1), (2, 2, 2), (3, 2, 2), (2, 2, 3)]


def largest(mesh_shape):
    """The largest dim size that is tried exhaustively."""
    return {1: 24, 2: 16, 3: 10}[len(mesh_shape)]


def forms_of(n, mesh_shape):
    """All layouts of one dim of size n, by what they say."""
    forms = defaultdict(set)
    for factors in all_dims(n, mesh_shape):
        forms[partition(mesh_shape, factors)].add(Layout.of(mesh_shape, [factors]))
    return forms


# Chunks.


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 4, 7])
def test_chunk_range_is_torch_chunk(num_chunks):
    for n, index in itertools.product(range(20), range(num_chunks)):
        assert tuple(range(*chunk_range(n, num_chunks, index))) == held((num_chunks,), n, (0,), (index,))


def test_five_over_four_is_two_two_one_zero():
    layout = Layout.from_placements((4,), (5, 3), ["S0"])
    assert [layout.local_shape(coord) for coord in coordinates((4,))] == [(2, 3), (2, 3), (1, 3), (0, 3)]
    assert [layout.local_indices(0, coord) for coord in coordinates((4,))] == [
        [(0, 2)],
        [(2, 4)],
        [(4, 5)],
        [],
    ]
    assert layout.local_numel((2,)) == 3


# Normal form.


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_equal_partitions_are_equal_layouts_and_others_are_not(mesh_shape):
    for n in range(largest(mesh_shape) + 1):
        seen = set()
        for said, layouts in forms_of(n, mesh_shape).items():
            assert len(layouts) == 1, layouts
            (layout,) = layouts
            assert partition(mesh_shape, layout.dims[0]) == said
            assert Layout.of(mesh_shape, layout.dims) is layout
            seen.add(layout)
        assert len(seen) == len(forms_of(n, mesh_shape))


@pytest.mark.parametrize(
    ("mesh_shape", "written", "normal"),
    [
        ((4,), ((8, (0,)),), ((4, (0,)), (2, ()))),
        ((3,), ((4, (0,)), (3, ())), ((2, (0,)), (6, ()))),  # 2, 2, 0 threes are 6, 6, 0
        ((2,), ((7, (0,)), (12, ())), ((7, (0,)), (12, ()))),
        ((4,), ((10, (0,)), (4, ())), ((10, (0,)), (4, ()))),
        ((2,), ((2, ()), (3, ()), (5, (0,))), ((6, ()), (5, (0,)))),
        ((2, 2), ((4, (0, 1)),), ((2, (0,)), (2, (1,)))),
        ((2, 2), ((5, (0, 1)),), ((5, (0, 1)),)),
        ((2, 2), ((2, (1, 0)),), ((1, (0,)), (2, (1,)))),
        ((2, 2), ((3, ()), (1, (1,)), (1, (0,))), ((1, (0, 1)), (3, ()))),
        ((2, 2), ((1, (1,)), (0, (0,))), ((0, (0, 1)),)),
        ((2, 1), ((6, (1, 0)),), ((2, (0,)), (3, ()))),
        ((2,), ((1, ()), (1, ())), ((1, ()),)),
    ],
)
def test_normal_form(mesh_shape, written, normal):
    assert Layout.of(mesh_shape, [written]).dims == (normal,)


# Index sets.


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_local_shape_and_indices_are_those_of_torch_chunk(mesh_shape):
    for n in range(13 if len(mesh_shape) < 3 else 9):
        layouts = {layout for found in forms_of(n, mesh_shape).values() for layout in found}
        for layout, coord in itertools.product(layouts, coords_of(mesh_shape)):
            want = oracle_indices(mesh_shape, layout.dims[0], coord)
            runs = layout.local_indices(0, coord)
            assert tuple(index for run in runs for index in range(*run)) == want
            assert all(before[1] < after[0] for before, after in itertools.pairwise(runs))
            assert layout.local_shape(coord) == (len(want),)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("n", [0, 1, 2, 5, 8, 12, 13])
def test_axes_on_one_dim_cut_outer_first_in_the_order_given(n, order):
    mesh_shape = (2, 3, 2)
    layout = Layout.from_placements(mesh_shape, (n,), ["S0", "S0", "S0"], axis_order=order)
    for coord in coords_of(mesh_shape):
        assert oracle_indices(mesh_shape, layout.dims[0], coord) == held(mesh_shape, n, order, coord)


def test_axes_left_out_of_the_order_follow_in_mesh_order():
    full = Layout.from_placements((2, 2, 2), (11,), ["S0", "S0", "S0"], axis_order=(2, 0, 1))
    assert Layout.from_placements((2, 2, 2), (11,), ["S0", "S0", "S0"], axis_order=(2,)) is full
    assert Layout.from_placements((2, 2, 2), (11,), ["S0", "S0", "S0"]).axes_of(0) == (0, 1, 2)


# Roles.


def test_roles():
    layout = Layout.from_placements((2, 3, 2, 1), (6, 7), ["S1", "P", "R", "S0"])
    assert [layout.role(axis) for axis in range(4)] == [1, "P", "R", "R"]
    assert (layout.axes_of(0), layout.axes_of(1)) == ((), (0,))
    assert (layout.cut_axes, layout.partial, layout.is_replicate) == ((0,), (1,), False)
    assert (layout.shape, layout.ndim, layout.mesh_shape) == ((6, 7), 2, (2, 3, 2, 1))
    assert repr(layout) == "Layout([6, 7@0] on 2x3x2x1, partial on 1)"


def test_replicate():
    layout = Layout.replicate((2, 2), (3, 0))
    assert layout.is_replicate
    assert layout is Layout.from_placements((2, 2), (3, 0), ["R", "R"])
    assert layout.distinct() == (0, 0, 0, 0)
    assert Layout.replicate((2,), ()).local_shape((1,)) == ()


def test_representative_positions():
    assert representative_positions((2, 3), (0,)) == (0, 0, 0, 3, 3, 3)
    assert representative_positions((2, 3), (1,)) == (0, 1, 2, 0, 1, 2)
    assert representative_positions((2, 3), (0, 1)) == tuple(range(6))
    assert Layout.from_placements((2, 3), (6,), ["P", "R"]).distinct() == (0, 0, 0, 3, 3, 3)


# Changes.


def test_drop_and_partial():
    layout = Layout.from_placements((2, 2, 2), (8, 5), ["S0", "S1", "P"])
    assert layout.drop([0]) is Layout.from_placements((2, 2, 2), (8, 5), ["R", "S1", "P"])
    assert layout.drop([1, 2]) is Layout.from_placements((2, 2, 2), (8, 5), ["S0", "R", "R"])
    assert layout.with_partial([0]) is Layout.from_placements((2, 2, 2), (8, 5), ["P", "S1", "P"])
    assert layout.without_partial() is layout.drop([2])
    assert layout.without_partial().without_partial() is layout.drop([2])
    assert layout.with_dim(0, [(4, ()), (3, (0,))]).shape == (12, 5)


def test_drop_of_an_outer_axis_is_what_gathering_over_it_gives():
    both = Layout.from_placements((2, 2), (8,), ["S0", "S0"])
    gathered = both.drop([0])
    assert gathered.dims == (((2, ()), (2, (1,)), (2, ())),)
    for _, inner in coords_of((2, 2)):
        union = {i for outer in range(2) for i in oracle_indices((2, 2), both.dims[0], (outer, inner))}
        assert set(oracle_indices((2, 2), gathered.dims[0], (0, inner))) == union


@pytest.mark.parametrize("mesh_shape", [(2,), (3,), (2, 2), (3, 2), (2, 3), (4, 2), (2, 2, 2)])
def test_add_shard_chunks_every_local_piece_wherever_factors_can_say_it(mesh_shape):
    for n in range(13 if len(mesh_shape) < 3 else 11):
        forms = {said: next(iter(layouts)) for said, layouts in forms_of(n, mesh_shape).items()}
        for (_, axes, parts), layout in forms.items():
            for axis in set(range(len(mesh_shape))) - axes:
                finer = tuple(
                    chunk_of(part, mesh_shape[axis], coord[axis])
                    for part, coord in zip(parts, coords_of(mesh_shape), strict=True)
                )
                assert layout.add_shard(axis, 0) is forms.get((n, axes | {axis}, finer)), (layout, axis)


def test_shards_added_one_by_one_are_nested_shards():
    layout = Layout.replicate((2, 3, 2), (13, 4))
    for axis in (2, 0, 1):
        layout = layout.add_shard(axis, 0)
    assert layout is Layout.from_placements((2, 3, 2), (13, 4), ["S0"] * 3, axis_order=(2, 0, 1))
    assert Layout.replicate((1, 2), (4,)).add_shard(0, 0) is Layout.replicate((1, 2), (4,))


# One object per value.


def test_equal_layouts_are_one_object_also_copied_and_unpickled():
    layout = Layout.of((2, 2), [((3, ()), (8, (1,))), ((4, ()),)], partial=(0,))
    assert Layout.of([2, 2], [[(3, []), (8, [1])], [(2, ()), (2, ())]], [0]) is layout
    assert copy.copy(layout) is layout
    assert copy.deepcopy([layout])[0] is layout
    assert pickle.loads(pickle.dumps(layout)) is layout
    assert layout != Layout.of((2, 2), layout.dims)


def test_unused_layouts_are_freed():
    layout = Layout.from_placements((2, 2), (123457, 3), ["S0", "R"])
    layout.placements()
    layout.local_shape((0, 0))
    freed = weakref.ref(layout)
    del layout
    gc.collect()
    assert freed() is None


def test_threads_get_one_object():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(Layout.from_placements((5,), (7919,), ["S0"])))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_a_layout_cannot_be_changed():
    layout = Layout.replicate((2,), (3,))
    with pytest.raises(AttributeError, match="cannot be changed"):
        layout.partial = (0,)


@pytest.mark.parametrize(
    ("dims", "partial", "message"),
    [
        ([((4, (0,)),), ((4, (0,)),)], (), r"mesh axes \[0\] used twice"),
        ([((4, (0,)),)], (0,), r"mesh axes \[0\] used twice"),
        ([((4, (2,)),)], (), r"mesh axes \[2\] in a layout for a mesh of shape \(2, 2\)"),
        ([((4, (-1,)),)], (), r"mesh axes \[-1\]"),
        ([((-4, ()),)], (), r"factors \(\(-4, \(\)\),\) of dim 0"),
        ([((4, ()),), ()], (), r"factors \(\) of dim 1"),
        ([((2.0, ()),)], (), r"of dim 0"),
    ],
)
def test_what_is_no_layout(dims, partial, message):
    with pytest.raises(PlacementError, match=message):
        Layout.of((2, 2), dims, partial)


def test_an_axis_that_is_taken_cuts_nothing_more():
    layout = Layout.from_placements((2, 2), (6, 6), ["S0", "P"])
    with pytest.raises(PlacementError, match=r"mesh axis 0 .* is not Replicate"):
        layout.add_shard(0, 1)
    with pytest.raises(PlacementError, match=r"mesh axis 1 .* is not Replicate"):
        layout.add_shard(1, 1)
