"""Where a slice starts is an input of plans on a whole dim, and part of the key on one that is cut."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

import dtorch
from dtorch import Graph, LogicalGraph, Replicate, Shard
from dtorch.graph.constructor import GraphConstructor
from dtorch.op.operand import Operand, Scalar
from tests.places import randn

MESH = dtorch.DeviceMesh("cpu", [0, 1])
ROWS, WHOLE, COLUMNS = [Shard(0)], [Replicate()], [Shard(1)]
STARTS = [0, 3, 1, 7, 2, 6, 5, 4, -8, -3]


@pytest.fixture(autouse=True)
def _records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that records, also under DTORCH_EAGER=1."""
    graph = Graph()
    graph.constructor.eager = False
    monkeypatch.setattr(Graph, "default_graph", staticmethod(lambda: graph))


def put(full: torch.Tensor, placements: list[dtorch.Placement] = ROWS, grad: bool = False) -> dtorch.Tensor:
    return dtorch.Tensor(full, MESH, placements, requires_grad=grad)


def made() -> tuple[int, int]:
    """How many recipes and plans there are."""
    return len(GraphConstructor._recipes), dtorch.plan_stats().made


READS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "slice": lambda x, i: x[:, i : i + 2 if i != -2 else None] * 2,
    "select": lambda x, i: x.select(1, i) * 2,
    "narrow": lambda x, i: x.narrow(1, i, 1) + 1,
    "a view of a view": lambda x, i: x[:, i:][:, :1].t()[0] + 1 if i >= 0 else x[:, i : i + 1].t()[0] + 1,
    "three dims": lambda x, i: x.view(4, 10, 1)[:, i : i + 1].expand(4, 1, 3) * 2,
    "steps": lambda x, i: x.t()[i % 7 : i % 7 + 4 : 2] + 1,
    "slice_scatter": lambda x, i: torch.slice_scatter(x, x[:, :1], 1, i % 10, i % 10 + 1),
    "select_scatter": lambda x, i: torch.select_scatter(x, x[:, 0], 1, i),
    "written": lambda x, i: writing(x.clone(), i),
    "written through a view of it": lambda x, i: writing_deeper(x.clone(), i),
}


def writing(x: torch.Tensor, i: int) -> torch.Tensor:
    x[:, i] = x[:, 0] + 1
    x[:, i : i + 1 if i != -1 else None] *= 3
    return x


def writing_deeper(x: torch.Tensor, i: int) -> torch.Tensor:
    part = x[:, i % 8 : i % 8 + 3]
    part[:, 1:2].unsqueeze(0).add_(7)
    part.select(1, 2).zero_()
    return x


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("placements", [ROWS, WHOLE, COLUMNS], ids=str)
@pytest.mark.parametrize("name", READS)
def test_values_for_any_start(
    name: str, placements: list[dtorch.Placement], eager: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = Graph()
    graph.constructor.eager = eager
    monkeypatch.setattr(Graph, "default_graph", staticmethod(lambda: graph))
    full, read = randn(4, 10), READS[name]
    x = put(full, placements)
    for i in STARTS * 2:
        assert torch.equal(read(x, i).to_torch(), read(full, i)), i
        assert torch.equal(x.to_torch(), full)


@pytest.mark.parametrize("name", [name for name in READS if name != "a view of a view"])
def test_another_start_is_the_same_plan(name: str) -> None:
    x, read = put(randn(4, 10)), READS[name]
    for i in (0, 3, 1, 2):
        read(x, i).to_torch()
    before = made()
    for i in (7, 4, -3, 5, 6, -4):
        read(x, i).to_torch()
    assert made() == before


def test_on_a_cut_dim_the_start_is_part_of_the_key() -> None:
    full = torch.arange(10.0)
    x = put(full, [Shard(0)])
    before = len(GraphConstructor._recipes)
    for i in (1, 2, 3, 1, 2, 3):
        assert torch.equal((x[i : i + 2] * 2).to_torch(), full[i : i + 2] * 2)
        assert torch.equal((x[i] * 2).to_torch(), full[i] * 2)
    assert len(GraphConstructor._recipes) >= before + 6


CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], ...]] = {
    "length": (lambda x: x[:, 1:3], lambda x: x[:, 1:4]),
    "length of the scattered": (
        lambda x: torch.slice_scatter(x, x[:, :2], 1, 1, 3),
        lambda x: torch.slice_scatter(x, x[:, :1], 1, 1, 2),
    ),
    "dim": (lambda x: x[1:3], lambda x: x[:, 1:3], lambda x: x.select(0, 1), lambda x: x.select(1, 1)),
    "step": (lambda x: x[:, 1:4:2], lambda x: x[:, 1:3], lambda x: x[:, 1:5:2], lambda x: x[:, 1:4:3]),
    "all or nothing": (lambda x: x[:, 0:6], lambda x: x[:, 3:3], lambda x: x[:, 5:2], lambda x: x[:, 2:]),
    "beyond the ends": (
        lambda x: x[:, -99:2],
        lambda x: x[:, 4:99],
        lambda x: x[:, 99:],
        lambda x: x[:, -2:],
    ),
}


@pytest.mark.parametrize("placements", [WHOLE, ROWS, COLUMNS], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_else_is_in_the_key(name: str, placements: list[dtorch.Placement]) -> None:
    full = randn(6, 6)
    x = put(full, placements)
    for _ in range(3):
        for call in CALLS[name]:
            found, wanted = call(x), call(full)
            assert (found.shape, found.stride()) == (wanted.shape, wanted.stride())
            if placements != COLUMNS:
                assert found.storage_offset() == wanted.storage_offset()
            assert torch.equal((found * 2).to_torch(), wanted * 2)


def test_an_index_out_of_range_is_told_at_once() -> None:
    x = put(randn(4, 6))
    for i in (0, 1, 5):
        x[:, i].to_torch()
    for i in (6, -7):
        with pytest.raises(IndexError):
            x[:, i]
        with torch.no_grad(), pytest.raises(IndexError):
            torch.ops.aten.select.int(x, 1, i)


def test_offsets_are_those_of_one_device() -> None:
    full = torch.arange(60.0).view(3, 4, 5)
    x = put(full)
    for i in (0, 2, 1, 2):
        for a, b in [
            (x[:, i : i + 2], full[:, i : i + 2]),
            (x[:, i : i + 2][..., i], full[:, i : i + 2][..., i]),
            (x[..., i][:, i : i + 1], full[..., i][:, i : i + 1]),
            (x[:, i].t()[i : i + 2], full[:, i].t()[i : i + 2]),
        ]:
            assert a.storage_offset() == b.storage_offset()
            assert torch.equal(a.to_torch(), b)
            assert torch.equal(a.as_strided((2,), (1,)).to_torch(), b.as_strided((2,), (1,)))


def test_operands_that_partly_overlap_are_refused_wherever_they_start() -> None:
    x = dtorch.Tensor(torch.arange(9.0), dtorch.DeviceMesh("cpu", [0, 1]), WHOLE)
    for i in (3, 4, 5):
        x[0:3].copy_(x[i : i + 3])
        x.to_torch()
    overlapping = x[1:4]

    def write() -> None:
        x[0:3].copy_(overlapping)
        x.to_torch()

    with pytest.raises(RuntimeError, match="single memory location"):
        write()


@pytest.mark.parametrize("placements", [ROWS, WHOLE, COLUMNS], ids=str)
def test_gradients_through_a_moving_slice(placements: list[dtorch.Placement]) -> None:
    full, other = randn(4, 10), randn(4, 2, seed=1)

    def loss(x: torch.Tensor, v: torch.Tensor, i: int) -> torch.Tensor:
        y = x * 2
        y[:, i : i + 2] = v * 3
        y[:, i + 1] += 1
        return (y[:, i + 1] * y[:, i : i + 1].squeeze(1)).sum() + (y**2).sum()

    counts = []
    for i in (0, 4, 2, 8, 1, 5, 3):
        leaves = put(full, placements, True), put(other, placements, True)
        plain = full.clone(), other.clone()
        for p in plain:
            p.requires_grad_()
        found, wanted = loss(*leaves, i), loss(*plain, i)
        found.backward()
        wanted.backward()
        torch.testing.assert_close(found.to_torch(), wanted)
        for mine, theirs in zip(leaves, plain, strict=True):
            torch.testing.assert_close(mine.grad.to_torch(), theirs.grad)
        counts.append(made())
    if placements != COLUMNS:
        assert counts[3:] == [counts[3]] * 4


def test_the_text_of_a_call_tells_its_start() -> None:
    x = put(randn(4, 10))
    for i in (1, 2, 5):
        with dtorch.record() as graph:
            x[:, i : i + 3].select(1, -1)
        first, second = str(graph).splitlines()
        assert f"Slice([4, 10] -> [4, 3], dim=1, start={i}, end={i + 3})  [Shard(0)]" in first
        assert "Select([4, 3] -> [4], dim=1, index=2)  [Shard(0)]" in second


@pytest.mark.parametrize("form", ["json", "bytes"])
def test_a_saved_graph_keeps_its_own_start(form: str) -> None:
    full = randn(4, 10)
    x = put(full)
    for i in (1, 6, 3):
        with dtorch.record() as graph:
            y = x[:, i : i + 2] + x[:, i : i + 1]
        if form == "json":
            loaded = LogicalGraph.from_json(graph.to_json([x], [y]))
        else:
            loaded = LogicalGraph.from_bytes(graph.to_bytes([x], [y]))
        assert str(loaded) == str(graph)
        assert torch.equal(loaded.run(x)[0].to_torch(), full[:, i : i + 2] + full[:, i : i + 1])
        found = dtorch.operators.add_operator(graph.as_param([x], [y]), x)
        assert torch.equal(found.to_torch(), full[:, i : i + 2] + full[:, i : i + 1])


def test_a_captured_function_with_another_start_is_right() -> None:
    full = randn(4, 10)
    x, state = put(full), {"at": 0}
    by_argument = dtorch.capture(lambda x, i: x[:, i : i + 2] * 2)
    by_closure = dtorch.capture(lambda x: x[:, state["at"]].neg())
    views = dtorch.capture(lambda x, i: x[:, i])
    with torch.no_grad():
        for i in [1, 1, 1, 1, 4, 4, 4, 4, 1, 4, 7]:
            state["at"] = i
            assert torch.equal(by_argument(x, i).to_torch(), full[:, i : i + 2] * 2)
            assert torch.equal(by_closure(x).to_torch(), -full[:, i])
            found = views(x, i)
            assert found.storage_offset() == i
            assert torch.equal(found.to_torch(), full[:, i])
    assert by_argument.stats().replays
    assert by_closure.stats().replays


def test_starts_keep_nothing_alive() -> None:
    x = put(randn(4, 64))

    def step(i: int) -> None:
        y = x[:, i : i + 2] * x[:, i][:, None]
        x[:, i : i + 2] = y * 0
        x.to_torch()

    def alive() -> list[int]:
        gc.collect()
        held = [sum(type(o) is kind for o in gc.get_objects()) for kind in (Operand, Scalar, torch.Tensor)]
        return [*held, len(x._operand.buffer.live_members()), *made()]

    for i in range(8):
        step(i)
    before = alive()
    for i in range(8, 60):
        step(i)
    assert alive() == before


def test_described_devices() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (2,))
    with dtorch.record() as graph:
        x = dtorch.zeros(4, 10, device_mesh=mesh, placements=ROWS)
        for i in (1, 5, 2):
            assert x[:, i : i + 2].storage_offset() == i
            assert x[:, i : i + 2][:, 1].storage_offset() == i + 1
    assert f"start={5}, end={7}" in str(graph)
    assert Graph.default_graph() is x.graph
