"""Redistribution: right values on every device, and the price known beforehand equal to a count of sets."""

import math
import random
from itertools import product

import pytest
import torch

from dtorch.errors import MeshMismatchError, ShapeError
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh, init_device_mesh
from dtorch.redistribute import assemble, cost, execute, memory_order, plan, split
from tests.redistribute.oracle import (
    Cut,
    assert_holds,
    bounds,
    exchanged,
    indices,
    parts_of,
    plain,
    random_factors,
    random_plain,
    reduced,
)
from tests.support import sample

MESHES = [(1,), (2,), (3,), (4,), (2, 2), (3, 2), (1, 3), (4, 2), (2, 2, 2), (2, 3, 2)]
SHAPES = [(), (5,), (1,), (0,), (4, 6), (7, 5), (3, 0), (1, 4), (2, 3, 5), (4, 1, 6), (8, 8)]
SEEDS = range(20_000)


def value(shape: tuple[int, ...]) -> torch.Tensor:
    """Distinct integers, in a type that adds them exactly."""
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).view(shape)


def check_values(src: Cut, dst: Cut, src_mesh: DeviceMesh, dst_mesh: DeviceMesh) -> None:
    full = value(src.shape)
    parts = parts_of(full, src)
    before = [part.clone() for part in parts]
    results = execute(parts, src.layout, dst.layout, src_mesh, dst_mesh)
    assert_holds(results, full, dst)
    assert all(map(torch.equal, parts, before))
    if results is not parts:
        storages = {part.untyped_storage().data_ptr() for part in parts if part.numel()}
        assert not any(part.untyped_storage().data_ptr() in storages for part in results if part.numel())
    assert torch.equal(assemble(results, dst.layout, dst_mesh), full)


def check_price(src: Cut, dst: Cut, exact_pieces: bool = True) -> None:
    found = plan(src.layout, dst.layout, 4)
    assert (
        found.bytes_total == cost(src.layout, dst.layout, 4) == sum(step.bytes_total for step in found.steps)
    )
    assert found.bytes_total / math.prod(src.mesh_shape) <= found.bytes_max <= found.bytes_total
    assert all((step.kind == "local") == (step.bytes_total == 0) for step in found.steps)
    small = {axis for axis, size in enumerate(src.mesh_shape) if size == 1}
    gone = set(src.partial) - set(dst.partial) - small
    new = set(dst.partial) - set(src.partial) - small
    if not gone:
        assert found.bytes_total == 4 * exchanged(src, dst)
    elif not new and src.dims and exact_pieces:
        assert (found.bytes_total, found.bytes_max) == tuple(4 * n for n in reduced(src, dst))
    elif not new:
        low, high = bounds(src, dst)
        assert 4 * low <= found.bytes_total <= 4 * high


def one_axis_pairs() -> list[tuple[tuple[int, ...], tuple[int, ...], object, object]]:
    return [
        (mesh, shape, a, b)
        for mesh in [(2,), (3,), (4,)]
        for shape in SHAPES
        for a, b in product(["R", "P", *range(len(shape))], repeat=2)
    ]


@pytest.mark.parametrize(("mesh_shape", "shape", "a", "b"), one_axis_pairs())
def test_every_pair_on_one_axis(
    mesh_shape: tuple[int, ...], shape: tuple[int, ...], a: object, b: object
) -> None:
    src, dst = plain(mesh_shape, shape, [a]), plain(mesh_shape, shape, [b])
    mesh = init_device_mesh("cpu", mesh_shape)
    check_values(src, dst, mesh, mesh)
    check_price(src, dst)


@pytest.mark.parametrize("seed", sample(SEEDS, 400))
def test_random_placements(seed: int) -> None:
    rng = random.Random(seed)
    mesh_shape, shape = rng.choice(MESHES), rng.choice(SHAPES)
    src, dst = (random_plain(rng, mesh_shape, shape, partial=True) for _ in range(2))
    mesh = init_device_mesh("cpu", mesh_shape)
    check_values(src, dst, mesh, mesh)
    check_price(src, dst)


@pytest.mark.parametrize("seed", sample(SEEDS, 400))
def test_random_factors(seed: int) -> None:
    rng = random.Random(seed)
    mesh_shape, shape = rng.choice(MESHES), rng.choice([*SHAPES, (24,), (36, 2), (12, 18), (210,)])
    src, dst = (random_factors(rng, mesh_shape, shape, partial=True) for _ in range(2))
    mesh = init_device_mesh("cpu", mesh_shape)
    check_values(src, dst, mesh, mesh)
    # Pieces of a ragged dim may be cut along one factor only, so the oracle's pieces are not always the same.
    check_price(src, dst, exact_pieces=False)


OTHER_MESHES = [
    ([0, 1, 2, 3], [4, 5]),
    ([0, 1], [0, 1, 2, 3]),
    ([0, 1], [1, 2]),
    ([0, 1, 2, 3], [2, 3, 4]),
    ([[0, 1], [2, 3]], [1]),
    ([3], [[0, 1], [2, 3]]),
    ([0, 1, 2, 3], [3, 1, 0, 2]),
    ([0, 1, 2, 3], [[0, 1], [2, 3]]),
    ([[0, 1], [2, 3]], [[2, 3], [4, 5]]),
    ([[0, 1, 2], [3, 4, 5]], [[5, 0], [7, 1], [8, 2]]),
]


@pytest.mark.parametrize("seed", sample(SEEDS, 200))
def test_other_meshes(seed: int) -> None:
    rng = random.Random(seed)
    src_mesh, dst_mesh = (DeviceMesh("cpu", ids) for ids in rng.choice(OTHER_MESHES))
    shape = rng.choice(SHAPES)
    src = random_plain(rng, src_mesh.shape, shape, partial=True)
    dst = random_plain(rng, dst_mesh.shape, shape, partial=True)
    check_values(src, dst, src_mesh, dst_mesh)
    found = plan(src.layout, dst.layout, 2, src_mesh, dst_mesh)
    assert found.bytes_total == sum(step.bytes_total for step in found.steps)
    if not src.partial and not dst.partial:
        at = {id: position for position, id in enumerate(src_mesh.device_ids)}
        received = []
        for id, coord in zip(dst_mesh.device_ids, dst.coords):
            have = set(indices(src, src.coords[at[id]]).flatten().tolist()) if id in at else set()
            received.append(len(set(indices(dst, coord).flatten().tolist()) - have))
        assert (found.bytes_total, found.bytes_max) == (2 * sum(received), 2 * max(received))


@pytest.mark.parametrize("shape", [(5, 10), (5,), (4, 4), (3, 0, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_cut_and_whole_again_is_the_same_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    mesh = init_device_mesh("cpu", 4)
    full = torch.randn(shape).to(dtype)
    whole = Layout.replicate((4,), shape)
    for dim in range(len(shape)):
        cut = Layout.from_placements((4,), shape, [f"S{dim}"])
        parts = execute(split(full, cut, mesh), cut, whole, mesh)
        assert all(torch.equal(part, full) and part.stride() == full.stride() for part in parts)


@pytest.mark.parametrize("size", [1, 4, 5, 6, 7])
def test_inner_axis_cuts_first(size: int) -> None:
    mesh, full = init_device_mesh("cpu", (2, 2)), torch.arange(size)
    cut = Layout.from_placements((2, 2), (size,), ["S0", "S0"], axis_order=(1, 0))
    parts = split(full, cut, mesh)
    outer = full.chunk(2)
    if size == 5:
        assert [part.tolist() for part in parts] == [[0, 1], [3], [2], [4]]
    assert torch.equal(torch.cat([parts[0], parts[2]]), outer[0])
    assert torch.equal(assemble(parts, cut, mesh), full)
    plain_order = Layout.from_placements((2, 2), (size,), ["S0", "S0"])
    moved = execute(parts, cut, plain_order, mesh)
    assert torch.equal(torch.cat(moved), full)


def test_nothing_to_do_gives_the_parts_themselves() -> None:
    mesh, layout = init_device_mesh("cpu", 2), plain((2,), (6,), [0]).layout
    parts = split(torch.arange(6), layout, mesh)
    assert execute(parts, layout, layout, mesh) is parts
    elsewhere = execute(parts, layout, layout, mesh, DeviceMesh("cpu", [7, 0]))
    assert [part.tolist() for part in elsewhere] == [[0, 1, 2], [3, 4, 5]]
    assert elsewhere[0] is not parts[0]


def test_replicas_are_one_tensor_and_addends_are_not() -> None:
    mesh, full = init_device_mesh("cpu", (2, 2)), torch.arange(6.0)
    parts = split(full, plain((2, 2), (6,), ["R", 0]).layout, mesh)
    assert parts[0] is parts[2]
    assert parts[1] is parts[3]
    first, second, third, fourth = split(full, plain((2, 2), (6,), "PR").layout, mesh)
    assert first is second
    assert third is fourth
    assert torch.equal(first, full)
    assert not third.any()
    first, second, third, fourth = split(full, plain((2, 2), (6,), "PP").layout, mesh)
    assert not second.any()
    assert len({id(second), id(third), id(fourth)}) == 3


def test_devices_with_their_own_memory_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceMesh, "shares_storage", property(lambda mesh: False))
    mesh, full = init_device_mesh("cpu", (2, 2)), value((5, 4))
    src, dst = plain((2, 2), (5, 4), [0, "P"]), plain((2, 2), (5, 4), ["R", 1])
    parts = execute(parts_of(full, src), src.layout, dst.layout, mesh)
    assert_holds(parts, full, dst)
    whole = split(full, Layout.replicate((2, 2), (5, 4)), mesh)
    assert len({part.untyped_storage().data_ptr() for part in [*parts, *whole]}) == 8


def test_a_cut_tensor_becomes_a_sum_where_it_lies() -> None:
    mesh = init_device_mesh("cpu", 3)
    cut, pending = plain((3,), (4,), [0]).layout, plain((3,), (4,), "P").layout
    parts = execute(split(torch.arange(1, 5), cut, mesh), cut, pending, mesh)
    assert [part.tolist() for part in parts] == [[1, 2, 0, 0], [0, 0, 3, 4], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int32]
)
@pytest.mark.parametrize("after", [["R", "R"], [0, "R"], [1, 0], ["R", 1]])
def test_sums_do_not_depend_on_how_the_result_is_cut(dtype: torch.dtype, after: list) -> None:
    mesh, shape = init_device_mesh("cpu", (2, 2)), (5, 3)
    parts = [(torch.randn(shape) * 100).to(dtype) for _ in range(4)]
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    expected = (((parts[0].to(wide) + parts[1]) + parts[2]) + parts[3]).to(dtype)
    dst = plain((2, 2), shape, after).layout
    found = execute(parts, plain((2, 2), shape, "PP").layout, dst, mesh)
    assert torch.equal(assemble(found, dst, mesh), expected)


def test_a_pending_bool_is_whether_any_is_true() -> None:
    mesh = init_device_mesh("cpu", 3)
    parts = [torch.tensor(row) for row in ([True, False, True], [True, False, False], [False, False, True])]
    found = assemble(parts, plain((3,), (3,), "P").layout, mesh)
    assert found.tolist() == [True, False, True]


@pytest.mark.parametrize("after", ["R", "P", 0, 2])
@pytest.mark.parametrize("before", ["P", 0, 1])
def test_memory_order_is_kept(before: object, after: object) -> None:
    mesh, shape = init_device_mesh("cpu", 2), (4, 6, 3, 5)
    full = value(shape).to(memory_format=torch.channels_last)
    src, dst = (plain((2,), shape, [role]).layout for role in (before, after))
    parts = execute(split(full, src, mesh), src, dst, mesh)
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in parts)
    assert assemble(parts, dst, mesh).stride() == full.stride()


@pytest.mark.parametrize("seed", sample(SEEDS, 50))
def test_memory_order_of_a_copy_is_torch_s(seed: int) -> None:
    rng = random.Random(seed)
    full = torch.zeros([rng.choice([1, 2, 3]) for _ in range(4)]).permute(rng.sample(range(4), 4))
    full = full.expand([rng.choice([n, 2]) if n == 1 else n for n in full.shape])
    order = memory_order(full.shape, full.stride())
    ours, torchs = torch.empty_permuted(full.shape, order).stride(), torch.empty_like(full).stride()
    long = [dim for dim, size in enumerate(full.shape) if size > 1]
    assert [ours[dim] for dim in long] == [torchs[dim] for dim in long]


def test_memory_order_may_be_said() -> None:
    mesh, full = init_device_mesh("cpu", 4), torch.arange(16).view(4, 4)
    cut, whole = plain((4,), (4, 4), [0]).layout, plain((4,), (4, 4), "R").layout
    parts = execute(split(full, cut, mesh), cut, whole, mesh, order=(1, 0))
    assert torch.equal(parts[0], full)
    assert parts[0].stride() == (1, 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: x[:, :1].expand(x.shape),
        lambda x: torch.cat([x, x])[::2],
        lambda x: torch.complex(x, x).conj(),
        lambda x: torch.complex(x, x).conj().imag,
        lambda x: x.requires_grad_(),
    ],
)
def test_parts_of_any_stride(make) -> None:
    mesh, full = init_device_mesh("cpu", 2), torch.arange(24.0).view(4, 6)
    src, dst = plain((2,), (4, 6), "P").layout, plain((2,), (4, 6), [1]).layout
    parts = [make(full.clone()), make(full.clone() + 1)]
    found = execute(parts, src, dst, mesh)
    assert torch.equal(torch.cat(found, 1), (parts[0] + parts[1]).detach())
    assert not any(part.requires_grad for part in found)


RAGGED = [
    (((101, ()), (2, (0,))), ((202, (1,)),)),
    (((3, ()), (67, (0,))), ((201, (1,)),)),
    (((1500, ()), (2, (0,)), (1, ())), ((1000, (1,)), (3, ()))),
]


@pytest.mark.parametrize("partial", [(), (2,)])
@pytest.mark.parametrize(("before", "after"), [*RAGGED, *[pair[::-1] for pair in RAGGED]])
def test_cuts_that_do_not_fit_each_other(before: tuple, after: tuple, partial: tuple[int, ...]) -> None:
    src, dst = (
        Cut((2, 4, 2), (((3, ()),), factors, ((2, ()),)), p)
        for factors, p in ((before, partial), (after, ()))
    )
    mesh = init_device_mesh("cpu", (2, 4, 2))
    check_values(src, dst, mesh, mesh)
    check_price(src, dst, exact_pieces=False)


def test_what_is_remembered_does_not_depend_on_modes() -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    src, dst = Cut((2, 2), (((107, ()), (2, (0,))),)), Cut((2, 2), (((214, (1,)),),))
    with torch.device("meta"):
        plan(src.layout, dst.layout, 4)
        execute(split(torch.zeros(214, device="cpu"), src.layout, mesh), src.layout, dst.layout, mesh)
    check_values(src, dst, mesh, mesh)


def test_a_pending_sum_moves_addend_by_addend() -> None:
    pending = plain((2,), (8,), "P")
    check_values(pending, pending, DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [1, 2]))


def test_two_dims_that_do_not_fit() -> None:
    src = Cut((2, 2), (((35, ()), (2, (0,))), ((33, ()), (2, (1,)))))
    dst = Cut((2, 2), (((70, (1,)),), ((66, (0,)),)))
    mesh = init_device_mesh("cpu", (2, 2))
    check_values(src, dst, mesh, mesh)
    check_price(src, dst)


def test_what_does_not_fit_is_refused() -> None:
    mesh, other = init_device_mesh("cpu", 2), init_device_mesh("cpu", 3)
    two, three = plain((2,), (6,), [0]).layout, plain((3,), (6,), [0]).layout
    with pytest.raises(ShapeError, match=r"shape \[6\] to shape \[5\]"):
        plan(two, plain((2,), (5,), [0]).layout, 4)
    with pytest.raises(MeshMismatchError, match="meshes of different shapes"):
        cost(two, three, 4)
    with pytest.raises(MeshMismatchError, match=r"on DeviceMesh\(\(3,\)"):
        plan(two, two, 4, mesh, other)
    with pytest.raises(MeshMismatchError, match="1 parts"):
        execute([torch.zeros(6)], two, three, mesh, other)
    with pytest.raises(MeshMismatchError, match="1 parts"):
        assemble([torch.zeros(6)], two, mesh)
    with pytest.raises(MeshMismatchError):
        split(torch.zeros(6), plain((2,), (6,), "R").layout, other)
