"""What devices hold, per device, and ranges for profilers: visible nodes, no operands, no price."""

from __future__ import annotations

import gc

import pytest
import torch

import dtorch
from dtorch import Graph, OperatorCost, Partial, Replicate, Shard

IDS = [71, 72, 73]
MESH = dtorch.DeviceMesh("cpu", IDS)
"""Virtual devices that no other test uses."""


def held() -> list[int]:
    gc.collect()
    stats = Graph.default_graph().get_memory_stats(MESH)
    return [stats.find(number).memory_allocated for number in IDS]


@pytest.mark.parametrize(
    ("placement", "rows"),
    [(Replicate(), [7, 7, 7]), (Shard(0), [3, 3, 1]), (Partial(), [7, 7, 7])],
    ids=str,
)
def test_each_device_holds_its_parts(placement: dtorch.Placement, rows: list[int]) -> None:
    assert held() == [0, 0, 0]
    x = dtorch.Tensor(torch.ones(7, 5), device_mesh=MESH, placements=[placement])
    assert held() == [n * 20 for n in rows]
    view = x.view(35) if placement != Shard(0) else x[:, 1:]
    assert held() == [n * 20 for n in rows]
    twice = x * 2.0
    assert held() == [n * 40 for n in rows]
    del x, view, twice
    assert held() == [0, 0, 0]


def test_other_meshes_share_the_devices() -> None:
    other = dtorch.DeviceMesh("cpu", [73, 90])
    x = dtorch.Tensor(torch.ones(4, 4), device_mesh=other, placements=[Shard(0)])
    assert held() == [0, 0, 32]
    assert len(Graph.default_graph().get_memory_stats(other)) == 2
    del x


def test_the_peak_is_the_most_that_was_found() -> None:
    graph = Graph.default_graph()
    graph.get_memory_stats(MESH, reset_peak=True)
    x = dtorch.ones(1000, device_mesh=MESH)
    assert graph.get_memory_stats(MESH).find(71).max_memory_allocated == 4000
    del x
    gc.collect()
    before = graph.get_memory_stats(device_mesh=MESH, reset_peak=True).find(71)
    assert (before.memory_allocated, before.memory_reserved) == (0, 0)
    assert (before.max_memory_allocated, before.max_memory_reserved) == (4000, 4000)
    assert graph.get_memory_stats(MESH).find(71).max_memory_allocated == 0


def test_the_graphs_mesh_is_the_default() -> None:
    graph = Graph()
    assert [number for number, _ in graph.get_memory_stats()] == [0]
    with graph.device_mesh_guard(MESH):
        stats = graph.get_memory_stats()
    assert [number for number, _ in stats] == IDS
    assert str(stats).splitlines()[1].startswith("  71: memory_allocated 0, memory_reserved 0")
    with pytest.raises(
        dtorch.DeviceError, match=r"no device 5 in these statistics, they are of \[71, 72, 73\]"
    ):
        stats.find(5)
    with pytest.raises(dtorch.DeviceError, match="holds nothing, it is described"):
        graph.get_memory_stats(dtorch.described_mesh("h100-sxm", (2,)))


def test_control_operators_are_visible_and_free() -> None:
    graph = Graph.default_graph()
    with dtorch.record() as recorded:
        with dtorch.cuda.nvtx.range("step"):
            dtorch.cuda.nvtx.mark("here")
        graph.empty_cache()
        graph.get_memory_stats(MESH, reset_peak=True)
    assert [operator.describe() for operator in recorded.operators] == [
        "Nvtx(action=range_push, message=step)",
        "Nvtx(action=mark, message=here)",
        "Nvtx(action=range_pop)",
        "Memory(action=empty_cache)",
        "Memory(action=stats, reset_peak=True)",
        "Sync()",
    ]
    assert recorded.cost() == OperatorCost()
    assert all(operator.price() == OperatorCost() for operator in recorded.operators)


def test_ranges_do_nothing_without_cuda_and_end_on_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple] = []
    for name in ("range_push", "range_pop", "mark"):
        monkeypatch.setattr(torch.cuda.nvtx, name, lambda *given, name=name: called.append((name, *given)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with dtorch.cuda.nvtx.range("nothing"):
        pass
    assert called == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="inside"), dtorch.cuda.nvtx.range("step"):
        raise ValueError("inside")
    assert called == [("range_push", "step"), ("range_pop",)]


def test_a_range_holds_what_was_called_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph.default_graph()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    seen: list[int] = []
    for name in ("range_push", "range_pop"):
        monkeypatch.setattr(
            torch.cuda.nvtx, name, lambda *given: seen.append(len(graph.constructor.pending.nodes))
        )
    x = dtorch.ones(4, device_mesh=MESH)
    for _ in range(3):
        x = x + 1
        with dtorch.cuda.nvtx.range("step"):
            x = x * 2
    assert seen == [0] * 6


def test_torchs_cuda_is_there_too() -> None:
    assert dtorch.cuda.is_available is torch.cuda.is_available
    assert "is_available" in dir(dtorch.cuda)
