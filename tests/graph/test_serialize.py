"""Recorded graphs into files and back: they print, have a price, and run again, on other values too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Graph, LogicalGraph, SerializationError, Shard
from tests.dist import place

X, W, B = torch.randn(7, 6), torch.randn(4, 6), torch.randn(4)
GRID = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def tensors(scale: float = 1.0) -> list[dtorch.Tensor]:
    made = [(X * scale, ["S0", "R"]), (W * scale, ["R", "S0"]), (B * scale, ["R", "R"])]
    found = [dtorch.Tensor(full, device_mesh=GRID, placements=p) for full, p in made]
    found[1].requires_grad_()
    return found


def linear(x: Any, w: Any, b: Any) -> list[Any]:
    return [torch.nn.functional.linear(x, w, b).relu()]


def step(x: Any, w: Any, b: Any) -> list[Any]:
    y = torch.nn.functional.linear(x, w, b).tanh()
    loss = torch.nn.functional.mse_loss(y, torch.full_like(y, 0.3))
    loss.backward()
    grad, w.grad = w.grad, None
    return [loss, grad]


def writes(x: Any, w: Any, b: Any) -> list[Any]:
    y = x.clone()
    view, other = y[1:], y.view(-1)
    view.mul_(2)
    y += 1
    other[3:9].zero_()
    y[:, 2].copy_(x[:, 0])
    return [y, view, other.sum(), y.t()[1:]]


def several(x: Any, w: Any, b: Any) -> list[Any]:
    values, where = x.topk(3)
    first, second = x.split([2, 5])
    return [values, where, first @ w.detach().t(), torch.cat([second, x]).softmax(-1), x.var(0), x.argmax()]


def plain_operands(x: Any, w: Any, b: Any) -> list[Any]:
    mask = torch.arange(6.0) > 2
    return [torch.where(mask, x, torch.tensor(-1.0)) * torch.tensor(3, dtype=torch.int32), x + torch.ones(6)]


def moves(x: Any, w: Any, b: Any) -> list[Any]:
    y = x.redistribute(placements=["S1", "S0"])
    return [y.exp(), y.redistribute(placements=["R", "R"]) + x, (x @ w.detach().t()).sum(0)]


def optimizer(x: Any, w: Any, b: Any) -> list[Any]:
    w = w.detach().clone().requires_grad_()
    adam = torch.optim.AdamW([w], lr=0.01)
    for _ in range(2):
        linear(x, w, b)[0].square().sum().backward()
        adam.step()
        adam.zero_grad()
    return [w.detach()]


def complex_numbers(x: Any, w: Any, b: Any) -> list[Any]:
    y = torch.complex(x, x + 1)
    return [y.conj().resolve_conj(), torch.fft.fft(y, dim=1).abs(), y.mul(1 - 2j).real]


PROGRAMS: dict[str, Callable[..., list[Any]]] = {
    f.__name__: f for f in (linear, step, writes, several, plain_operands, moves, optimizer, complex_numbers)
}


def record(program: Callable[..., list[Any]]) -> tuple[LogicalGraph, list[Any], list[Any]]:
    given = tensors()
    with dtorch.record() as graph:
        made = program(*given)
    return graph, given, made


def assert_alike(found: list[Any], wanted: list[Any]) -> None:
    assert [t.placements for t in found] == [t.placements for t in wanted]
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine.to_torch(), theirs.to_torch())


def calls_of(graph: LogicalGraph) -> list[str]:
    """What is printed of a graph but for the lines of the program, which are others when it runs again."""
    return [line.rpartition("  ")[0] for line in str(graph).splitlines()]


@pytest.mark.parametrize("suffix", ["dtorch", "json"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loaded_graph_prints_and_runs_as_the_recorded_one(name: str, suffix: str, tmp_path: Path) -> None:
    graph, given, made = record(PROGRAMS[name])
    used = [t for t in given if graph.wiring.knows(t._operand)]
    graph.save(tmp_path / f"graph.{suffix}", inputs=used, outputs=made)
    loaded = Graph.load(tmp_path / f"graph.{suffix}")
    assert str(loaded) == str(graph)
    assert loaded.cost() == graph.cost()
    assert loaded.communications() == graph.communications()
    fresh = [t for t, old in zip(tensors(), given, strict=True) if any(old is u for u in used)]
    with dtorch.record() as again:
        found = loaded.run(*fresh)
    assert_alike(found, made)
    assert calls_of(again) == calls_of(graph)


@pytest.mark.parametrize("name", PROGRAMS)
def test_other_values(name: str) -> None:
    graph, given, made = record(PROGRAMS[name])
    used = [t for t in given if graph.wiring.knows(t._operand)]
    loaded = LogicalGraph.from_bytes(graph.to_bytes(inputs=used, outputs=made))
    other = tensors(-0.5)
    wanted = PROGRAMS[name](*tensors(-0.5))
    chosen = [t for t, old in zip(other, given, strict=True) if any(old is u for u in used)]
    assert_alike(loaded.run(*chosen), wanted)
    spread = loaded.run(*(t.detach().to_torch() for t in chosen))
    assert_alike(spread, wanted)


def test_a_recorded_graph_runs_again_without_a_file() -> None:
    with torch.no_grad():
        graph, (x, w, b), made = record(linear)
        assert_alike(graph.run(w, b, x), made)  # as they are first used: x @ w.t() + b is addmm
        x, w, b = tensors(2.0)
        assert_alike(graph.run(w, b, x), linear(x, w, b))


def test_inputs_and_outputs_by_default() -> None:
    given = tensors()
    with dtorch.record() as graph, torch.no_grad():
        made = linear(*given)
    loaded = LogicalGraph.from_json(graph.to_json())
    by_first_use = [given[1], given[2], given[0]]
    assert [s.shape for s in (loaded.wiring.outside[n] for n in loaded.wiring.inputs or [])] == [
        tuple(t.shape) for t in by_first_use
    ]
    assert_alike(loaded.run(*by_first_use), made)


def test_inputs_are_checked() -> None:
    graph, given, made = record(linear)
    loaded = LogicalGraph.from_bytes(graph.to_bytes(inputs=given, outputs=made))
    x, w, b = tensors()
    with pytest.raises(
        dtorch.ShapeError, match=r"2 inputs for a graph of 3: it takes \[.*\], \[.*\], \[.*\], in this order"
    ):
        loaded.run(x, w)
    with pytest.raises(dtorch.ShapeError, match=r"input 0 is \[3, 6\] torch.float32, \[7, 6\]"):
        loaded.run(x[:3], w, b)
    with pytest.raises(dtorch.ShapeError, match=r"input 2 is .* torch.float64"):
        loaded.run(x, w, b.double())
    with pytest.raises(dtorch.MeshMismatchError, match="input 0 is on"):
        loaded.run(place(X, (3,), ("R",)), w, b)
    moved = x.redistribute(placements=["R", "S1"])
    assert loaded.run(moved, w, b)[0].placements == [Shard(0), Shard(1)]


def test_what_is_left_out_is_named() -> None:
    graph, (x, w, b), made = record(linear)
    with pytest.raises(
        SerializationError, match=r"also reads operand \d, .*, in node \d; name its tensor among"
    ):
        graph.to_bytes(inputs=[x, w], outputs=made)
    with pytest.raises(SerializationError, match=r"operand \d is made by the graph, so it is no input"):
        graph.to_bytes(inputs=[x, w, b, made[0]], outputs=made)
    with pytest.raises(SerializationError, match="took no part"):
        graph.to_bytes(inputs=tensors(), outputs=made)
    with pytest.raises(SerializationError, match="nothing is recorded"):
        Graph().save("nowhere")


def test_recording_keeps_no_value_alive() -> None:
    import weakref

    given = tensors()
    with dtorch.record() as graph:
        seen = weakref.ref(linear(*given)[0]._operand)
        Graph.default_graph().sync()
    assert seen() is None
    assert len(graph) > 0


CHANGES = {
    "a reader before the maker": ('"reads": [2, 1]', '"reads": [2, 99]', "reads operands .99. that nothing"),
    "an operand too few": ('"reads": [2, 1]', '"reads": [2]', "reads operands"),
    "an output of nobody": (
        '"outputs": [3],\n    "results',
        '"outputs": [77],\n    "results',
        "gives operands",
    ),
    "an input of nobody": (
        '"inputs": [2, 0]',
        '"inputs": [2, 55]',
        "inputs or constants that are no operand",
    ),
    "an operator beyond": ('"operator": 1', '"operator": 44', "IndexError"),
    "another kind": ('"type": "graph"', '"type": "plan"', "not well formed"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_text_that_contradicts_itself(name: str) -> None:
    before, after, match = CHANGES[name]
    with dtorch.record() as graph, torch.no_grad():
        x, w, _ = tensors()
        y = x @ w.t()
    text = graph.to_json(inputs=[x, w], outputs=[y])
    assert before in text, text
    with pytest.raises(SerializationError, match=match):
        LogicalGraph.from_json(text.replace(before, after))


def test_damaged_files() -> None:
    graph, given, made = record(linear)
    data = graph.to_bytes(inputs=given, outputs=made)
    for damaged in (data[:-1], data[: len(data) // 2], data[:50] + b"\0\0\0" + data[53:], b""):
        with pytest.raises(SerializationError):
            LogicalGraph.from_bytes(damaged)
    with pytest.raises(SerializationError, match="this is the file of a operator, not of a graph"):
        LogicalGraph.from_bytes(graph.operators[0].to_bytes())
