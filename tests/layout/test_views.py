"""Views of layouts: what a device makes of its part is the cut of what torch makes of the whole.

A global tensor is `arange(numel)`. Every device's part is cut out of it by index sets computed with
`torch.chunk`; the local view of the part must be the cut of the global view.
"""

import itertools
import math
import random

import pytest
import torch

from dtorch.errors import ShapeError
from dtorch.layout import Layout
from tests.layout.oracle import all_dims, coords_of, cut
from tests.support import cases


def random_layout(rng):
    """A layout of a random small tensor: plain placements, or any factors at all."""
    mesh_shape = tuple(rng.choice([1, 2, 2, 3, 4]) for _ in range(rng.randint(1, 3)))
    ndim = rng.randint(0, 4)
    shape = [rng.choice([0, 1, 1, 2, 3, 4, 5, 6, 8, 12]) if rng.random() < 0.9 else 7 for _ in range(ndim)]
    if rng.random() < 0.6:
        shape = [n or 2 for n in shape]
    placements = [rng.choice([f"S{rng.randrange(ndim)}", "R"] if ndim else ["R"]) for _ in mesh_shape]
    order = rng.sample(range(len(mesh_shape)), len(mesh_shape))
    return Layout.from_placements(mesh_shape, shape, placements, axis_order=order)


def random_sizes(rng, numel):
    """A random shape with that many elements."""
    if numel == 0:
        shape = [0] + [rng.choice([0, 1, 2, 3, 6]) for _ in range(rng.randint(0, 3))]
    else:
        shape = [1] * rng.randint(0, 2)
        while numel > 1:
            divisors = [d for d in range(2, numel + 1) if numel % d == 0]
            shape.append(rng.choice(divisors))
            numel //= shape[-1]
    return rng.sample(shape, len(shape))


def regrouped(rng, shape):
    """A random shape that merges, splits or keeps dims of `shape`, as models do."""
    out = list(shape)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) + 1)
        if rng.random() < 0.5 and at + 1 < len(out):
            out[at : at + 2] = [out[at] * out[at + 1]]
        elif at < len(out) and out[at]:
            low = rng.choice([d for d in range(1, out[at] + 1) if out[at] % d == 0])
            out[at : at + 1] = [low, out[at] // low]
    return out


def do_view(rng, layout, tensor):
    shape = regrouped(rng, layout.shape) if rng.random() < 0.7 else random_sizes(rng, tensor.numel())
    new = layout.view(shape)
    return new, tensor.reshape(shape), lambda part, coord: part.reshape(new.local_shape(coord))


def do_permute(rng, layout, tensor):
    order = rng.sample(range(layout.ndim), layout.ndim)
    if layout.ndim and rng.random() < 0.5:
        order[0] -= layout.ndim
    return layout.permute(order), tensor.permute(order), lambda part, coord: part.permute(order)


def do_unsqueeze(rng, layout, tensor):
    dim = rng.randint(-layout.ndim - 1, layout.ndim)
    return layout.unsqueeze(dim), tensor.unsqueeze(dim), lambda part, coord: part.unsqueeze(dim)


def do_squeeze(rng, layout, tensor):
    dims = rng.sample(range(layout.ndim), rng.randint(0, layout.ndim))
    choice = rng.choice([None, dims, dims[0] if dims else dims])
    new = layout.squeeze(choice)
    whole = tensor.squeeze() if choice is None else tensor.squeeze(choice)
    return new, whole, lambda part, coord: part.reshape(new.local_shape(coord))


def do_expand(rng, layout, tensor):
    shape = [rng.choice([-1, n, 2, 3, 0]) if n == 1 else rng.choice([-1, n]) for n in layout.shape]
    shape = [rng.choice([0, 1, 2, 3]) for _ in range(rng.randint(0, 2))] + shape
    new = layout.expand(shape)
    return new, tensor.expand(shape), lambda part, coord: part.expand(new.local_shape(coord))


def random_bounds(rng, n):
    """(start, stop, step) of a slice of a dim of size n, often at block boundaries, sometimes everything."""
    block = rng.choice([d for d in range(1, n + 1) if n % d == 0] or [1])
    kind = rng.randrange(4)
    if kind == 0:
        return None, rng.choice([None, n, n + 3]), 1
    if kind == 1:
        start = rng.randint(0, n // block) * block
        return start, rng.randint(start // block, n // block) * block, 1
    if kind == 2:
        return rng.randint(0, block), None, block
    return rng.randint(-n - 1, n + 1), rng.randint(-n - 1, n + 1), rng.randint(1, 3)


def do_slice(rng, layout, tensor):
    if not layout.ndim:
        return None, tensor, None
    dim = rng.randrange(layout.ndim)
    start, stop, step = random_bounds(rng, layout.shape[dim])
    whole = tensor[(slice(None),) * dim + (slice(start, stop, step),)]

    def local(part, coord):
        low, high = layout.local_slice(dim, start, stop, step, coord)
        return part[(slice(None),) * dim + (slice(low, high, step),)]

    return layout.slice(dim, start, stop, step), whole, local


def do_select(rng, layout, tensor):
    dims = [dim for dim, n in enumerate(layout.shape) if n]
    if not dims:
        return None, tensor, None
    dim = rng.choice(dims)
    index = rng.randrange(-layout.shape[dim], layout.shape[dim])
    return layout.select(dim, index), tensor.select(dim, index), lambda part, coord: part.select(dim, index)


STEPS = {
    "view": do_view,
    "permute": do_permute,
    "unsqueeze": do_unsqueeze,
    "squeeze": do_squeeze,
    "expand": do_expand,
    "slice": do_slice,
    "select": do_select,
}


def checked_step(rng, name, layout, tensor):
    """One random step, compared on every device: the layout and tensor after it, or None if not local."""
    new, whole, local = STEPS[name](rng, layout, tensor)
    if new is None:
        return None
    said = (name, layout, new)
    assert new.shape == tuple(whole.shape), said
    assert new.partial == layout.partial, said
    for coord in coords_of(layout.mesh_shape):
        want = cut(whole, new, coord)
        got = local(cut(tensor, layout, coord), coord)
        assert tuple(got.shape) == new.local_shape(coord) == tuple(want.shape), (*said, coord)
        assert torch.equal(got, want), (*said, coord)
    return new, whole


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("seed", range(cases(40)))
def test_a_chain_of_local_steps_is_the_cut_of_the_global_chain(name, seed):
    rng = random.Random(f"{name} {seed}")
    layout = random_layout(rng)
    tensor = torch.arange(math.prod(layout.shape)).reshape(layout.shape)
    for length in range(8):
        after = checked_step(rng, name if length % 2 else rng.choice(list(STEPS)), layout, tensor)
        if after is not None and after[1].numel() <= 3000 and after[1].ndim <= 6:
            layout, tensor = after


# No view is refused that could be local.


def boxes(layout, tensor, shape):
    """For every device the indices of its elements in each dim of `shape`, or None if they are no box."""
    for coord in coords_of(layout.mesh_shape):
        flat = cut(tensor, layout, coord).reshape(-1)
        indices = [sorted(set(dim.tolist())) for dim in torch.unravel_index(flat, shape)]
        yield coord, indices if math.prod(map(len, indices)) == flat.numel() else None


def cuts_two_dims(layout, found, axis):
    """Whether devices that differ in `axis` alone hold different indices of two dims."""
    changed = set()
    for coord, indices in found.items():
        for index in range(layout.mesh_shape[axis]):
            other = found[(*coord[:axis], index, *coord[axis + 1 :])]
            if all(indices) and all(other):
                changed |= {dim for dim, (a, b) in enumerate(zip(indices, other, strict=True)) if a != b}
    return len(changed) > 1


@pytest.mark.parametrize("seed", range(cases(200)))
def test_a_refused_view_is_not_local(seed):
    """Its parts are no boxes of the new shape, or one axis would cut two dims, or there is no dim."""
    rng = random.Random(seed)
    layout = random_layout(rng)
    for _ in range(6):
        tensor = torch.arange(math.prod(layout.shape)).reshape(layout.shape)
        shape = regrouped(rng, layout.shape) if rng.random() < 0.6 else random_sizes(rng, tensor.numel())
        new = layout.view(shape)
        if new is not None:
            layout = new.permute(rng.sample(range(new.ndim), new.ndim))
        elif shape:
            found = dict(boxes(layout, tensor, shape))
            assert None in found.values() or any(
                cuts_two_dims(layout, found, axis) for axis in layout.cut_axes
            ), (layout, shape)


def test_most_random_views_are_local():
    """Guards the tests above against an implementation that refuses everything."""
    rng = random.Random(0)
    answers = []
    while len(answers) < 1000:
        layout = random_layout(rng)
        shape = regrouped(rng, layout.shape)
        if layout.cut_axes and shape != list(layout.shape):
            answers.append(layout.view(shape) is not None)
    assert sum(answers) > 800


@pytest.mark.parametrize("seed", range(cases(200)))
def test_blocking_axes_are_enough_and_none_too_many(seed):
    rng = random.Random(seed)
    layout = random_layout(rng)
    for _ in range(5):
        shape = random_sizes(rng, math.prod(layout.shape))
        axes = layout.blocking_axes(shape)
        assert layout.drop(axes).view(shape) is not None
        assert (axes == ()) == (layout.view(shape) is not None)
        for kept in axes:
            assert layout.drop([axis for axis in axes if axis != kept]).view(shape) is None


# Views that models make.


def plain(shape, *placements, mesh_shape=(2, 2)):
    return Layout.from_placements(mesh_shape, shape, placements)


@pytest.mark.parametrize(
    ("layout", "shape", "dims"),
    [
        # (b, s, h) -> (b s, h) and back, batch cut unevenly, sequence cut
        (plain((7, 12, 8), "S0", "S1"), (84, 8), [((7, (0,)), (2, (1,)), (6, ())), ((8, ()),)]),
        (plain((8, 12, 8), "S1", "R"), (96, 8), [((8, ()), (2, (0,)), (6, ())), ((8, ()),)]),
        (plain((84, 8), "S0", "R"), (7, 12, 8), None),
        (plain((96, 8), "S0", "R"), (8, 12, 8), [((2, (0,)), (4, ())), ((12, ()),), ((8, ()),)]),
        # heads
        (
            plain((3, 5, 16), "R", "S2"),
            (3, 5, 4, 4),
            [((3, ()),), ((5, ()),), ((2, (1,)), (2, ())), ((4, ()),)],
        ),
        (plain((3, 5, 12), "R", "S2"), (3, 5, 3, 4), None),
        (plain((3, 5, 4, 4), "S3", "R"), (3, 5, 16), [((3, ()),), ((5, ()),), ((4, ()), (2, (0,)), (2, ()))]),
        # sizes of 1 keep their cut, exactly where the dim stays
        (plain((1, 2), "S0", "R"), (1, 2), [((1, (0,)),), ((2, ()),)]),
        (plain((1, 4), "S0", "R"), (4, 1), [((1, (0,)), (4, ())), ((1, ()),)]),
        (plain((4, 1), "S1", "R"), (1, 4), [((1, (0,)),), ((4, ()),)]),
        (plain((1, 2, 3), "S0", "S1"), (1, 6), [((1, (0,)),), ((2, (1,)), (3, ()))]),
        (plain((6, 1, 5), "S1", "R"), (6, 5), [((1, (0,)), (6, ())), ((5, ()),)]),
        (plain((1, 5), "S0", "R"), (5,), [((1, (0,)), (5, ()))]),
        (plain((1,), "S0", "R"), (), None),
        (plain((1,), "R", "R"), (), []),
        (plain((1, 1, 6), "S1", "R"), (1, 6, 1), [((1, ()),), ((1, (0,)), (6, ())), ((1, ()),)]),
        (plain((4, 1), "S0", "S1"), (4,), [((1, (1,)), (4, (0,)))]),
        # empty batches
        (plain((0, 4, 1), "S1", "S2"), (0, 4), [((0, ()),), ((1, (1,)), (4, (0,)))]),
        (plain((0, 5, 8), "S0", "S2"), (0, 8), [((0, (0,)),), ((2, (1,)), (4, ()))]),
        (plain((0, 5, 8), "S0", "S2"), (0, 5, 2, 4), [((0, (0,)),), ((5, ()),), ((2, (1,)),), ((4, ()),)]),
        (plain((0, 4), "S0", "S1"), (0,), [((0, (0, 1)),)]),
        (plain((0, 4), "S1", "R"), (3, 0), [((3, ()),), ((0, (0,)),)]),
        (plain((0, 0), "S0", "S1"), (0,), [((0, (0, 1)),)]),
        # one axis never cuts two dims
        (plain((4,), "S0", mesh_shape=(4,)), (2, 2), None),
    ],
)
def test_view(layout, shape, dims):
    new = layout.view(shape)
    assert new is (None if dims is None else Layout.of(layout.mesh_shape, dims))


def test_fused_query_key_value():
    """GPT-2: rows (3 h), each h cut by tp; split, chunk and view keep the cut."""
    h, rows = 12, ((3, ()), (12, (1,)))
    fused = Layout.of((2, 2), [((4, (0,)),), rows])
    single = Layout.of((2, 2), [((4, (0,)),), ((h, (1,)),)])
    assert [fused.slice(1, i * h, (i + 1) * h) for i in range(3)] == [single] * 3
    assert [fused.local_slice(1, h, 2 * h, 1, coord) for coord in coords_of((2, 2))] == [(6, 12)] * 4
    assert fused.slice(1, h, 3 * h) is Layout.of((2, 2), [((4, (0,)),), ((2, ()), (h, (1,)))])
    assert fused.slice(1, 1, h + 1) is None
    assert fused.view((4, 3, h)) is Layout.of((2, 2), [((4, (0,)),), ((3, ()),), ((h, (1,)),)])
    assert fused.view((4, 3, h)).view((4, 3 * h)) is fused


def test_a_slice_of_a_cut_dim_is_local_only_where_no_device_lacks_anything():
    layout = plain((8, 6), "S0", "R")
    assert layout.slice(0, 0, 4) is None
    assert layout.slice(0, 0, None) is layout
    assert layout.slice(0, -100, 100) is layout
    assert layout.slice(0, None, None, 2) is plain((4, 6), "S0", "R")
    assert layout.slice(0, 3, 3).dims == (((0, (0,)),), ((6, ()),))
    assert layout.slice(1, 1, 4) is plain((8, 3), "S0", "R")
    assert layout.select(0, 3) is None
    assert layout.select(1, -1) is plain((8,), "S0", "R")


@pytest.mark.parametrize("mesh_shape", [(2,), (3,), (2, 2), (2, 3)])
def test_every_slice_of_every_small_dim(mesh_shape):
    for n in (1, 2, 3, 4, 6, 8)[: 7 - len(mesh_shape)]:
        tensor = torch.arange(n)
        layouts = {Layout.of(mesh_shape, [factors]) for factors in all_dims(n, mesh_shape)}
        for start, stop, step in itertools.product(range(n + 1), range(n + 1), (1, 2, 3)):
            for layout in layouts:
                new = layout.slice(0, start, stop, step)
                assert new is None or new.shape == tensor[start:stop:step].shape
                for coord in coords_of(mesh_shape) if new is not None else ():
                    low, high = layout.local_slice(0, start, stop, step, coord)
                    got = cut(tensor, layout, coord)[low:high:step]
                    assert got.equal(cut(tensor[start:stop:step], new, coord)), (layout, start, stop, step)


def test_squeeze_moves_a_cut_to_the_dim_before():
    layout = plain((6, 1, 5), "S1", "S0")
    assert layout.squeeze(1) is Layout.of((2, 2), [((1, (0,)), (6, (1,))), ((5, ()),)])
    assert layout.squeeze([0, 2]) is layout
    assert plain((1, 1), "S1", "R").squeeze() is None
    assert plain((1, 1), "S1", "R").squeeze(0) is plain((1,), "S0", "R")
    assert plain((), "R", "R").squeeze(0) is plain((), "R", "R")


def test_expand_of_a_cut_dim_of_size_one_keeps_who_holds_it():
    layout = plain((1, 5), "S0", "R").expand((3, 4, -1))
    assert layout is Layout.of((2, 2), [((3, ()),), ((1, (0,)), (4, ())), ((5, ()),)])
    assert [layout.local_shape(coord) for coord in coords_of((2, 2))] == [(3, 4, 5)] * 2 + [(3, 0, 5)] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda layout: layout.view((4, 4)),
            r"view of shape \[3, 4\] as \[4, 4\]: another number of elements",
        ),
        (lambda layout: layout.permute((0, 0)), r"permute \[0, 0\] of a tensor with 2 dims: every dim once"),
        (lambda layout: layout.permute((0,)), "every dim once"),
        (lambda layout: layout.permute((0, 2)), "every dim once"),
        (lambda layout: layout.unsqueeze(3), "unsqueeze at 3 of a tensor with 2 dims"),
        (lambda layout: layout.squeeze(2), "dim 2 of a tensor with 2 dims"),
        (lambda layout: layout.expand((4,)), r"expand of shape \[3, 4\] to \[4\]"),
        (lambda layout: layout.expand((4, 4)), "only sizes of 1 can grow"),
        (lambda layout: layout.expand((-1, 3, 4)), "only sizes of 1 can grow"),
        (lambda layout: layout.slice(0, 0, 3, 0), "slice with step 0: torch takes positive steps only"),
        (lambda layout: layout.select(0, 3), "index 3 of dim 0 with size 3"),
    ],
)
def test_what_torch_refuses_is_refused(call, message):
    with pytest.raises(ShapeError, match=message):
        call(plain((3, 4), "R", "R"))
