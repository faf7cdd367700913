"""Blocks of a tensor that devices ask for: what they get, and what they receive, element by element."""

import random

import pytest
import torch

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.group import Group
from dtorch.op.local import Local
from dtorch.redistribute.fetching import closed, held, received
from tests.support import cases

MESHES = [(2,), (3,), (5,), (2, 2), (2, 3)]


def drawn(seed: int) -> tuple[Layout, DeviceMesh, list[tuple]]:
    """A layout of a [7 x 6 x 4] tensor, also cut inside a product, and a block for every device."""
    chance = random.Random(seed)
    shape = chance.choice(MESHES)
    mesh = DeviceMesh("cpu", torch.arange(torch.Size(shape).numel()).reshape(shape).tolist())
    ways = [[(7, ())], [(6, ())], [(4, ())]]
    partial = []
    for axis in chance.sample(range(len(shape)), len(shape)):
        dim = chance.choice([0, 0, 1, 1, 2, None, "P"])
        if dim == "P":
            partial.append(axis)
        elif dim == 1 and ways[1] == [(6, ())] and chance.random() < 0.5:
            ways[1] = [(3, ()), (2, (axis,))]
        elif isinstance(dim, int):
            n, axes = ways[dim][-1]
            ways[dim][-1] = (n, (*axes, axis))
    layout = Layout.of(shape, ways, partial)
    blocks = []
    for _ in mesh.coords:
        block: list = [None, None, None]
        for dim in (0, 1):
            if chance.random() < 0.7:
                block[dim] = intervals(chance)
        blocks.append(tuple(block))
    return layout, mesh, blocks


def intervals(chance: random.Random) -> tuple[tuple[int, int], ...]:
    """None, one or two, ascending, also beyond the ends of a dim and empty."""
    ends = sorted(chance.sample(range(-2, 11), 2 * chance.randrange(0, 3)))
    found = tuple(zip(ends[::2], ends[1::2], strict=True))
    at = chance.randrange(-2, 7)
    return found or ((at, at),) * chance.randrange(0, 2)


def expected(full: torch.Tensor, layout: Layout, block: tuple, coord: tuple[int, ...]) -> torch.Tensor:
    """Element by element."""
    for dim, asked in enumerate(block):
        runs = layout.local_indices(dim, coord) if asked is None else asked
        columns = []
        for i in (i for start, stop in runs for i in range(start, stop)):
            inside = 0 <= i < layout.shape[dim]
            columns.append(full.select(dim, i) if inside else torch.full_like(full.select(dim, 0), -1.0))
        full = torch.stack(columns, dim) if columns else full.narrow(dim, 0, 0)
    return full


@pytest.mark.parametrize("seed", range(cases(150)))
def test_every_device_gets_its_block(seed: int) -> None:
    layout, mesh, blocks = drawn(seed)
    full = torch.arange(1.0, 7 * 6 * 4 + 1).reshape(7, 6, 4)
    parts = redistribute.split(full, layout, mesh)
    group = Group([Local(coord, None, (), {}) for coord in mesh.coords])
    found = group.fetch(parts, layout, blocks, -1.0)
    for coord, block, mine, part in zip(mesh.coords, blocks, found, parts, strict=True):
        # A pending sum is looked at addend by addend: the first device of its axis has it all, others 0.
        mask = torch.tensor(float(not any(coord[axis] for axis in layout.partial)))
        wanted = expected(full * mask, layout, block, coord)
        assert torch.equal(mine, wanted)
        assert mine.is_contiguous() or mine is part


@pytest.mark.parametrize("seed", range(cases(150)))
def test_received_is_what_is_not_held(seed: int) -> None:
    layout, mesh, blocks = drawn(seed)
    found = received(layout, tuple(blocks))
    for count, coord, block in zip(found, mesh.coords, blocks, strict=True):
        wanted, kept = 1, 1
        for dim, asked in enumerate(block):
            have = {i for start, stop in layout.local_indices(dim, coord) for i in range(start, stop)}
            runs = [] if asked is None else [set(range(*run)) for run in asked]
            ask = have if asked is None else set().union(*runs) & set(range(layout.shape[dim]))
            wanted, kept = wanted * len(ask), kept * len(ask & have)
        assert count == wanted - kept


def test_a_part_that_is_the_block_is_not_copied() -> None:
    layout = Layout.of((3,), [[(7, (0,))], [(2, ())]])
    mesh = DeviceMesh("cpu", [0, 1, 2])
    parts = redistribute.split(torch.randn(7, 2), layout, mesh)
    group = Group([Local(coord, None, (), {}) for coord in mesh.coords])
    own = [((held(layout, 0, coord),), None) for coord in mesh.coords]
    assert all(a is b for a, b in zip(group.fetch(parts, layout, own), parts, strict=True))


@pytest.mark.parametrize(("index", "wanted"), [(0, (0, 2)), (2, (4, 5)), (3, (0, 0))])
def test_held(index: int, wanted: tuple[int, int]) -> None:
    assert held(Layout.of((4,), [[(5, (0,))]]), 0, (index,)) == wanted


@pytest.mark.parametrize(
    ("runs", "mine", "wanted"),
    [
        (((0, 1), (3, 4), (6, 7)), (0, 7), ((0, 7),)),
        (((0, 1), (3, 4), (6, 7)), (0, 3), ((0, 4), (6, 7))),
        (((0, 1), (3, 4)), (2, 4), ((0, 1), (3, 4))),
        (((0, 1), (3, 4)), (1, 3), ((0, 4),)),
        (((2, 5),), (0, 0), ((2, 5),)),
        ((), (0, 7), ()),
    ],
)
def test_what_lies_between_is_asked_for_where_it_is_held(runs: tuple, mine: tuple, wanted: tuple) -> None:
    assert closed(runs, mine) == wanted
