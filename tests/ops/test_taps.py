"""Dims cut under what moves along them: rolls, flips, padding, interpolation fetch what they lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch import Shard
from dtorch.graph.graph import Graph
from dtorch.ops.standard.taps import Taps
from tests.dist import assert_like_torch, flat, place, plain, ways
from tests.support import sample


def grad(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_()


MESHES = [(2,), (3,), (4,), (2, 2)]
X = grad(2, 3, 7, 8)
MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flip": lambda x: x.flip(2),
    "flip both": lambda x: x.flip(2, -1),
    "roll": lambda x: x.roll(3, 2),
    "roll both": lambda x: x.roll((-2, 9), (2, 3)),
    "roll twice": lambda x: x.roll((1, 5), (2, 2)),
    "roll all": lambda x: x.roll(5),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0)),
    "pad with two": lambda x: F.pad(x, (0, 4), value=2.0),
    "pad much": lambda x: F.pad(x, (20, 0)),
    "crop": lambda x: F.pad(x, (-1, -2, 2, -3)),
    "crop to nothing": lambda x: F.pad(x, (0, 0, -4, -3)),
    "reflect": lambda x: F.pad(x, (1, 3, 2, 1), "reflect"),
    "reflect far": lambda x: F.pad(x, (7, 7, 6, 6), "reflect"),
    "replicate": lambda x: F.pad(x, (0, 3, 2, 1), "replicate"),
    "replicate far": lambda x: F.pad(x, (9, 0, 0, 11), "replicate"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest, odd": lambda x: F.interpolate(x, size=(5, 11)),
    "nearest, smaller": lambda x: F.interpolate(x, scale_factor=0.4),
    "nearest-exact": lambda x: F.interpolate(x, size=(3, 13), mode="nearest-exact"),
}
SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, size=(5, 11), mode="bilinear", align_corners=True),
    "bilinear, smaller": lambda x: F.interpolate(x, size=(2, 3), mode="bilinear"),
    "bilinear, one": lambda x: F.interpolate(x, size=(1, 16), mode="bilinear", align_corners=True),
    "bilinear, a scale": lambda x: F.interpolate(
        x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=False
    ),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "bicubic, corners": lambda x: F.interpolate(x, size=(11, 4), mode="bicubic", align_corners=True),
    "bicubic, smaller": lambda x: F.interpolate(x, size=(3, 3), mode="bicubic"),
}
BOTH = MOVES | SUMS


def over(names: Iterable[str], count: int = 3) -> list[Any]:
    return [
        pytest.param(name, mesh, way, id=f"{name}-{mesh}-{''.join(way)}")
        for name in names
        for mesh in MESHES
        for way in [("S2", "S3")[: len(mesh)], *sample(ways(4, mesh), count, seed=len(name))]
    ]


@pytest.mark.parametrize(("name", "mesh", "way"), over(BOTH))
def test_like_torch(name: str, mesh: tuple[int, ...], way: Any) -> None:
    assert_like_torch(BOTH[name], [X], mesh, [way])


# Pending sums are added up in another order.
@pytest.mark.parametrize(
    ("name", "mesh", "way"), [case for case in over(MOVES, 1) if "P" not in case.values[2]]
)
def test_what_moves_keeps_its_bits(name: str, mesh: tuple[int, ...], way: Any) -> None:
    assert torch.equal(plain(MOVES[name](place(X.detach(), mesh, way))), MOVES[name](X.detach()))


LINE, BODY = grad(2, 3, 9), grad(1, 2, 5, 4, 7)
OTHERS: dict[str, tuple[Callable[..., Any], torch.Tensor, int]] = {
    "flat roll of a line": (lambda x: x.roll(4), grad(9), 0),
    "1d reflect": (lambda x: F.pad(x, (2, 5), "reflect"), LINE, 2),
    "1d linear": (lambda x: F.interpolate(x, size=14, mode="linear"), LINE, 2),
    "1d nearest": (lambda x: F.interpolate(x, size=4), LINE, 2),
    "3d replicate": (lambda x: F.pad(x, (1, 2, 0, 3, 2, 2), "replicate"), BODY, 2),
    "3d trilinear": (lambda x: F.interpolate(x, size=(7, 3, 9), mode="trilinear"), BODY, 4),
    "3d nearest": (lambda x: F.interpolate(x, scale_factor=2), BODY, 3),
    "1d nearest, a scale": (lambda x: F.interpolate(x, scale_factor=1.1), LINE, 2),
    "3d nearest, a scale": (lambda x: F.interpolate(x, scale_factor=(2.3, 1.3, 1.1)), BODY, 2),
    "no batch": (lambda x: F.pad(x, (1, 2), "reflect"), grad(3, 9), 1),
    "whole numbers": (lambda x: (x * 9).long().roll(2, 0).flip(0), grad(7, 2).detach(), 0),
    "of one element": (lambda x: F.interpolate(F.pad(x, (0, 5)), size=3), grad(2, 3, 1), 2),
    "of nothing": (lambda x: F.pad(x, (0, 0, 2, 3)).flip(0), grad(0, 3), 0),
    "a line, cropped to nothing": (lambda x: F.pad(x, (-4, -5)), grad(9), 0),
    "a line of nothing, padded": (lambda x: F.pad(x, (1, 2), value=3.0), grad(0), 0),
    "channels last": (
        lambda x: F.interpolate(x.contiguous(memory_format=torch.channels_last), scale_factor=2),
        X,
        2,
    ),
    "doubles": (lambda x: F.interpolate(x.double(), size=(18, 5)), grad(1, 1, 10, 9), 2),
    "bfloat16": (lambda x: F.interpolate(x.bfloat16(), size=(5, 9), mode="nearest").float(), X.detach(), 3),
    "infinite": (
        lambda x: F.interpolate(x.log(), size=(7, 16), mode="bilinear"),
        torch.eye(8)[None, None, 1:],
        3,
    ),
}


@pytest.mark.parametrize("mesh", [(2,), (3,), (4,), (5,)], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_others_like_torch(name: str, mesh: tuple[int, ...]) -> None:
    fn, x, dim = OTHERS[name]
    assert_like_torch(fn, [x], mesh, [(f"S{dim}",)])


@pytest.mark.parametrize("mesh", [(2,), (3,)], ids=str)
@pytest.mark.parametrize("name", [*BOTH, *OTHERS])
def test_gradients_that_come_cut(name: str, mesh: tuple[int, ...]) -> None:
    """A sum's gradient comes whole, so that the backward of its tests is torch's own on each device."""
    fn, x, dim = OTHERS.get(name, (BOTH.get(name), X, 2))
    x = x.detach().requires_grad_(x.requires_grad)
    wanted = fn(x)
    if not wanted.requires_grad:
        return
    dy = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=wanted.dtype)
    wanted.backward(dy)
    for cut in range(wanted.ndim):
        placed = place(x.detach(), mesh, (f"S{dim}",)).requires_grad_()
        fn(placed).backward(place(dy, mesh, (f"S{cut}",)))
        torch.testing.assert_close(plain(placed.grad), x.grad, rtol=1e-5, atol=1e-5, equal_nan=True)


STAYS = [name for name in BOTH if name not in ("roll all",)]


@pytest.mark.parametrize("name", STAYS)
def test_it_stays_cut_and_converts_nothing(name: str) -> None:
    x = place(X, (2, 2), ("S2", "S3"))
    with Graph.default_graph().record() as graph, dtorch.strict():
        (y,) = flat(BOTH[name](x))
        y.backward(place(torch.ones(y.shape), (2, 2), ("S2", "S3")))
    assert list(y.placements) == list(x.grad.placements) == [Shard(2), Shard(3)]
    assert {sent.kind for sent in graph.communications()} <= {"halo"}


def read_by_hand(fn: Callable[[torch.Tensor], torch.Tensor], dim: int) -> torch.Tensor:
    """[place, element] of one dim: whether the place changes when the element does."""
    x = torch.ones(X.shape, dtype=torch.float64)
    found = []
    for i in range(x.shape[dim]):
        changed = x.clone()
        changed.select(dim, i).fill_(3)
        differs = (fn(changed) - fn(x)).abs() > 1e-12
        found.append(differs.movedim(dim, 0).flatten(1).any(1))
    return torch.stack(found, 1)


# What reads an element with weight 0 (beside a place that falls on another) is fetched, and seen by nobody.
SEEN = [name for name in STAYS if "far" not in name and name not in SUMS] + ["bilinear", "bicubic"]


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("name", SEEN)
def test_each_device_receives_what_it_reads_and_lacks(name: str, devices: int) -> None:
    fn, per_row = BOTH[name], 2 * 3 * 8 * 4
    with Graph.default_graph().record() as graph:
        fn(place(X.detach(), (devices,), ("S2",)))
    (operator,) = graph.operators
    read = read_by_hand(fn, 2)
    places, elements = (torch.arange(n).chunk(devices) for n in read.shape)
    wanted = []
    for device in range(devices):
        mine = elements[device].tolist() if device < len(elements) else []
        rows = read[places[device]].any(0).nonzero().flatten().tolist() if device < len(places) else []
        wanted.append(per_row * len(set(rows) - set(mine)))
    assert [operator.local_price((i,)).sent_bytes for i in range(devices)] == wanted
    assert graph.cost().sent_bytes == operator.price().sent_bytes == sum(wanted)


def test_backward_receives_places_only() -> None:
    """8 rows become 16: every row goes into two places of the same device, so nothing is sent."""
    x = place(grad(1, 2, 8, 3), (4,), ("S2",))
    y = F.interpolate(x, scale_factor=(2, 1))
    with Graph.default_graph().record() as graph, dtorch.strict():
        y.backward(place(torch.ones(y.shape), (4,), ("S2",)))
    assert graph.communications() == []


def test_a_roll_of_whole_shards_fetches_them_and_nothing_else() -> None:
    x = place(grad(8, 2).detach(), (4,), ("S0",))
    with Graph.default_graph().record() as graph, dtorch.strict():
        x.roll(2, 0)
    assert [(sent.kind, sent.bytes) for sent in graph.communications()] == [("halo", 8 * 2 * 4)]


def test_a_described_mesh_prices_it() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (4,))
    with dtorch.dry_run(mesh) as run:
        x = dtorch.zeros(1, 8, 1024, 64, device_mesh=mesh, placements=[Shard(2)])
        F.pad(x, (0, 0, 1, 1), "reflect").roll(1, 2)
    assert [sent.kind for sent in run.communications()] == ["halo", "halo"]


def test_taps_of_many_gaps() -> None:
    """Every third element: nothing that lies between."""
    taps = Taps.of(30, torch.arange(0, 30, 3))
    assert taps.reads((0, 3)) == ((0, 1), (3, 4), (6, 7))
    assert taps.read_by((3, 7)) == ((1, 3),)
    assert taps.reads((2, 2)) == taps.read_by((1, 3)) == ()
