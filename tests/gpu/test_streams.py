"""Communication beside computation on a GPU: values where either stream is late, memory, and overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Partial, Replicate, Shard, redistribute

pytestmark = pytest.mark.gpu

LONG = 50_000_000
"""Cycles that a stream is kept busy for: some 30 ms."""


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> dtorch.DeviceMesh:
    """Four devices, all simulated on one GPU."""
    monkeypatch.setenv("DTORCH_DTENSOR_IN_SAME_DEVICE", "1")
    return dtorch.DeviceMesh("cuda", [0, 1, 2, 3])


@pytest.fixture(params=["recorded", "at once"])
def graph(request: pytest.FixtureRequest) -> dtorch.Graph:
    found = dtorch.Graph()
    found.constructor.eager = request.param == "at once"
    return found


class Conversions:
    """Stands in for `redistribute.execute`.

    Attributes:
        seen: the current stream of each conversion.
        before: called there first.
    """

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.before: Callable[[], None] | None = None
        self._execute = redistribute.execute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(torch.cuda.current_stream())
        if self.before is not None:
            self.before()
        return self._execute(*args, **kwargs)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> Conversions:
    found = Conversions()
    monkeypatch.setattr(redistribute, "execute", found)
    return found


def program(x: dtorch.Tensor) -> list[dtorch.Tensor]:
    """Made late, sent, computed beside, read, written."""
    y = x * 2.0
    whole = y.redistribute(placements=[Replicate()])
    other = (x @ x.t()).sum()
    y.add_(1.0)
    return [whole + 1.0, other, y, whole.sum(0)]


def expected(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 2 + 1, (x @ x.t()).sum(), x * 2 + 1, (x * 2).sum(0)]


def busy() -> None:
    torch.cuda._sleep(LONG)


@pytest.mark.parametrize("late", ["neither", "compute", "communicate"])
def test_values_are_right_whichever_stream_is_late(
    mesh: dtorch.DeviceMesh, graph: dtorch.Graph, conversions: Conversions, late: str
) -> None:
    values = torch.randn(1024, 1024, device="cuda", dtype=torch.float64)
    x = dtorch.Tensor(values, mesh, [Shard(0)], graph=graph)
    for _ in range(4):
        if late == "communicate":
            conversions.before = busy
        found = program(x)
        if late == "compute":
            busy()
        graph.sync()
        conversions.before = None
        for a, b in zip(found, expected(values), strict=True):
            torch.testing.assert_close(a.to_torch(), b)


def test_communication_has_a_stream_of_its_own(mesh: dtorch.DeviceMesh, conversions: Conversions) -> None:
    x = dtorch.Tensor(torch.ones(8, 8, device="cuda"), mesh, [Partial()])
    for _ in range(3):
        x.redistribute(placements=[Shard(0)]).graph.sync()
    assert {s.cuda_stream for s in conversions.seen}.isdisjoint({torch.cuda.current_stream().cuda_stream})
    assert len({s.cuda_stream for s in conversions.seen}) == 1


def test_memory_is_not_given_out_while_it_crosses(
    mesh: dtorch.DeviceMesh, graph: dtorch.Graph, conversions: Conversions
) -> None:
    """What is sent dies at once, and its memory would be written by what comes next."""
    conversions.before = busy
    base = torch.ones(1 << 20, device="cuda")
    x = dtorch.Tensor(base, mesh, [Shard(0)], graph=graph)
    for _ in range(4):
        kept = []
        for k in range(4):
            kept.append((x + float(k)).redistribute(placements=[Replicate()]))
            for _ in range(4):
                x * 100.0
        for k, whole in enumerate(kept):
            assert bool((whole.to_torch() == 1.0 + k).all())


def test_computation_goes_on_while_something_is_sent(
    mesh: dtorch.DeviceMesh, conversions: Conversions
) -> None:
    """Two busy streams take less than twice as long as one."""
    graph = dtorch.Graph()
    graph.constructor.eager = False
    x = dtorch.Tensor(torch.randn(4096, 4096, device="cuda"), mesh, [Shard(0)], graph=graph)
    w = dtorch.Tensor(torch.randn(4096, 4096, device="cuda"), mesh, graph=graph)

    def sends() -> dtorch.Tensor:
        return x.redistribute(placements=[Replicate()])

    def computes() -> dtorch.Tensor:
        y = x
        for _ in range(20):
            y = y @ w * 1e-2
        return y

    conversions.before = busy
    alone = max(_seconds(graph, lambda: [sends()]), _seconds(graph, lambda: [computes()]))
    both = _seconds(graph, lambda: [sends(), computes()])
    total = _seconds(graph, lambda: [sends()]) + _seconds(graph, lambda: [computes()])
    assert both < 0.5 * (alone + total), f"{both:.3f} s together, {total:.3f} s one after the other"


def _seconds(graph: dtorch.Graph, work: Callable[[], list[Any]]) -> float:
    """The least of some runs, by the device's clock."""
    taken = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        held = work()
        graph.sync()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
        del held
    return min(taken)


def test_sums_that_arrive_on_the_cpu_are_there(mesh: dtorch.DeviceMesh, conversions: Conversions) -> None:
    """The parts are added on the cpu, which may read them as soon as they are brought."""
    values = torch.randn(1 << 20, device="cuda")
    x = dtorch.Tensor(values, mesh, [Partial()])
    conversions.before = busy
    for _ in range(4):
        moved = (x * 2.0).redistribute(dtorch.DeviceMesh("cpu", [0, 1]), [Replicate()])
        torch.testing.assert_close(moved.to_torch(), values.cpu() * 2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_several_gpus_wait_for_each_other(graph: dtorch.Graph, conversions: Conversions) -> None:
    mesh = dtorch.DeviceMesh("cuda", [0, 1])
    values = torch.randn(512, 512, device="cuda", dtype=torch.float64)
    x = dtorch.Tensor(values, mesh, [Shard(0)], graph=graph)
    conversions.before = busy
    for _ in range(4):
        for a, b in zip(program(x), expected(values), strict=True):
            torch.testing.assert_close(a.to_torch(), b)
