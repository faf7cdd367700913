"""CUDA graphs of captured plans, on cpu: the choice, and the buffers, with a double for CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch.replay import capture
from dtorch.replay.cuda_graph import GraphedPlan, Measured, choose, copier

US = 1e-6
MESH = dtorch.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))

pytestmark = pytest.mark.recorded


# -- the choice -------------------------------------------------------------------------------------------


def choice(**changes: Any) -> Any:
    """700 kernels of 2 us, launched in 3 us each: the timeline of docs/launch.md, without copies."""
    given = {
        "calls": 700, "launch_s": 2100 * US, "execution_s": 1400 * US, "copied_bytes": 0, "copies": 0,
        "pool_bytes": 0, "free_bytes": 2**30, "bytes_per_second": 1e12,
    }  # fmt: skip
    return choose(**(given | changes))


def test_short_kernels_are_graphed_and_the_times_are_the_models() -> None:
    found = choice()
    assert found.graphed
    assert found.plain_s == pytest.approx(2102 * US)
    assert found.graphed_s == pytest.approx(1753 * US)
    assert found.reason.startswith("a CUDA graph: by the launch model 700 kernels take 2102 us")


def test_kernels_longer_than_launches_are_not() -> None:
    found = choice(execution_s=3500 * US)
    assert not found.graphed
    assert found.reason.startswith("no CUDA graph: by the launch model")


@pytest.mark.parametrize(
    "changes",
    [
        {"copies": 120},  # each is a launch: 360 us
        {"copies": 1, "copied_bytes": 300 * 10**6},  # 300 us at 1 TB/s
        {"pool_bytes": 2**29},
    ],
    ids=["launches of copies", "bytes of copies", "memory"],
)
def test_what_a_graph_costs_is_counted(changes: dict[str, int]) -> None:
    assert not choice(**changes).graphed


def test_too_much_memory_is_told() -> None:
    assert choice(pool_bytes=2**29).reason == (
        "no CUDA graph: it would keep 512 MiB, more than 20% of the 1024 MiB that are free"
    )


# -- the buffers, with a double for CUDA ------------------------------------------------------------------


class Graph:
    """Stands for a CUDA graph: replaying runs the work again on the same tensors, into the same results."""

    def __init__(self, run: Callable[[], Any], made: Any) -> None:
        self.run = run
        self.made = made
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for parts, news in zip(self.made, self.run(), strict=True):
            for part, new in zip(parts, news, strict=True):
                if part.data_ptr() != new.data_ptr():
                    part.copy_(new)


class Double:
    """Stands for CUDA; `state` is what a capture must leave as it is, since it runs nothing.

    Attributes:
        done: names of what was asked, in order.
        measured: what a run is said to take; None for an out of memory.
        ordered: how often a replay was put behind the one before.
    """

    def __init__(self, *state: torch.Tensor) -> None:
        self.state = state
        self.done: list[str] = []
        self.measured: Measured | None = Measured(2100 * US, 1 * US, 0)
        self.graphs: list[Graph] = []
        self.fails = False
        self.ordered = 0

    def measure(self, run: Callable[[], Any]) -> Measured:
        self.done.append("measure")
        run()
        if self.measured is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.measured

    def warm_up(self, run: Callable[[], Any]) -> None:
        self.done.append("warm up")
        run()

    def capture(self, run: Callable[[], Any]) -> tuple[Any, Any]:
        self.done.append("capture")
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        before = [tensor.clone() for tensor in self.state]
        graph = Graph(run, run())
        for tensor, value in zip(self.state, before, strict=True):
            tensor.copy_(value)
        self.graphs.append(graph)
        return graph, graph.made

    def order(self) -> None:
        self.ordered += 1

    def free_bytes(self) -> int:
        return 2**30

    bytes_per_second = 1e12

    def opened(self, device: torch.device) -> Double:
        self.done.append(f"open {device}")
        return self


def test_inputs_are_copied_in_and_results_out() -> None:
    weight = torch.ones(3)
    graphed = GraphedPlan(lambda v: [[v[0] * v[1]], [v[1]]], [weight, torch.zeros(3)], 1, Double())
    first, second = torch.full((3,), 2.0), torch.full((3,), 5.0)
    product, given = graphed([weight, first])
    again, _ = graphed([weight, second])
    assert torch.equal(product[0], first)  # not written over by the next replay
    assert torch.equal(again[0], second)
    assert torch.equal(given[0], first)


def test_results_that_are_state_stay_state_and_views_share_memory() -> None:
    weight = torch.ones(4)

    def run(values: list[Any]) -> list[list[Any]]:
        made = values[0] + values[1]
        return [[values[0].view(2, 2)], [made], [made[:2]], [made]]

    graphed = GraphedPlan(run, [weight, torch.zeros(4)], 1, Double())
    view, made, part, twice = (parts[0] for parts in graphed([weight, torch.ones(4)]))
    assert view.data_ptr() == weight.data_ptr()
    assert part.data_ptr() == made.data_ptr() == twice.data_ptr()
    assert part.tolist() == [2.0, 2.0]


def test_state_at_another_address_is_seen() -> None:
    weight = torch.ones(3)
    graphed = GraphedPlan(lambda v: [[v[0] * v[1]]], [weight, torch.zeros(3)], 1, Double())
    assert graphed.serves([weight, torch.ones(3)])
    assert not graphed.serves([weight.clone(), torch.ones(3)])


def test_copies_of_one_storage_share_one() -> None:
    base, copy = torch.arange(6.0), copier()
    whole, part = copy(base), copy(base[2:4])
    part.fill_(9)
    assert whole.tolist() == [0.0, 1.0, 9.0, 9.0, 4.0, 5.0]
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# -- in a captured function -------------------------------------------------------------------------------


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Double:
    """A captured function's programs on cpu see the double in place of CUDA."""
    double = Double()
    monkeypatch.setattr("dtorch.replay.cuda_graph.cuda_device", lambda program: torch.device("cpu"))
    monkeypatch.setattr("dtorch.replay.cuda_graph.Cuda", double.opened)
    monkeypatch.setattr("dtorch.replay.program.obstacle", lambda program: "")
    return double


def distributed(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH)


def drawn_out(x: torch.Tensor) -> torch.Tensor:
    """The same by ten kernels, so that a graph saves more launches than its copies take."""
    for _ in range(10):
        x = x + 0
    return x


def counting() -> tuple[Any, torch.Tensor]:
    total = dtorch.zeros(2, device_mesh=MESH)

    def count(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return drawn_out(total * 2)

    return capture(count), total


def test_a_replay_is_one_launch_and_state_is_no_step_ahead(simulated: Double) -> None:
    count, total = counting()
    simulated.state = (total._operand.parts[0],)  # type: ignore[attr-defined]
    seen = [count(distributed(torch.full((2,), float(n)))).to_torch()[0].item() for n in range(8)]
    assert seen == [0.0, 2.0, 6.0, 12.0, 20.0, 30.0, 42.0, 56.0]
    assert simulated.done == ["open cpu", "warm up", "measure", "capture"]
    assert simulated.graphs[0].replays == simulated.ordered == 5
    assert count.why().startswith(
        "replayed: a plan of 12 calls, a CUDA graph: by the launch model 12 kernels"
    )
    assert count.stats().bytes_held == 16


def test_another_shape_has_a_graph_of_its_own_by_the_same_door(simulated: Double) -> None:
    double = capture(lambda x: drawn_out(x * 2))
    for size in (2, 3):
        for _ in range(5):
            double(distributed(torch.ones(size)))
    assert len(simulated.graphs) == 2
    assert simulated.done.count("capture") == 2
    assert simulated.done.count("open cpu") == 1


def test_state_that_moved_gets_another_graph(simulated: Double) -> None:
    weight = distributed(torch.ones(2))
    scaled = capture(lambda x: drawn_out(x * weight))
    for _ in range(5):
        scaled(distributed(torch.ones(2)))
    weight.data = distributed(torch.full((2,), 3.0))
    for _ in range(5):
        assert scaled(distributed(torch.ones(2))).to_torch().tolist() == [3.0, 3.0]
    assert len(simulated.graphs) == 2


def test_where_it_does_not_pay_the_plan_runs(simulated: Double) -> None:
    simulated.measured = Measured(2 * US, 4000 * US, 0)
    double = capture(lambda x: drawn_out(x * 2))
    for _ in range(5):
        double(distributed(torch.ones(2)))
    assert not simulated.graphs
    assert "no CUDA graph: by the launch model" in double.why()
    simulated.measured = Measured(2100 * US, 1 * US, 0)
    double.instantiate()
    double(distributed(torch.ones(2)))
    assert len(simulated.graphs) == 1


def test_copies_of_results_are_counted(simulated: Double) -> None:
    """One input, two results, one of them in two parts of one memory."""
    several = capture(lambda x: (drawn_out(x * 2), *drawn_out(x + 1).split(1)))
    for _ in range(5):
        several(distributed(torch.ones(2)))
    assert ", a CUDA graph: by the launch model" in several.why()
    assert several.why().endswith("as a graph with 3 copies of 0.0 MiB")


def test_where_memory_is_short_the_plan_runs(simulated: Double) -> None:
    simulated.measured = None
    double = capture(lambda x: drawn_out(x * 2))
    for _ in range(5):
        assert double(distributed(torch.ones(2))).to_torch().tolist() == [2.0, 2.0]
    assert double.why().endswith("no memory to measure the plan on copies of what it reads")


def test_what_cannot_be_captured_runs_by_the_plan(simulated: Double) -> None:
    simulated.fails = True
    double = capture(lambda x: drawn_out(x * 2))
    for _ in range(5):
        assert double(distributed(torch.ones(2))).to_torch().tolist() == [2.0, 2.0]
    assert double.why().endswith("could not be captured (operation not permitted when stream is capturing)")


@pytest.mark.parametrize(
    ("function", "given", "reason"),
    [
        (lambda x: x * 2, (), "does not run on a CUDA device"),
        (lambda x, s: x * s, (0.5, 0.25, 0.75), "numbers that change from call to call"),
        (lambda x: x.add_(1) * 2, (), "writes or returns views of what each call brings"),
        (lambda x: (x * 2, x.view(1, 2)), (), "writes or returns views of what each call brings"),
    ],
)
def test_obstacles(
    function: Any, given: tuple[float, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "CUDA" not in reason:
        monkeypatch.setattr("dtorch.replay.cuda_graph._devices", lambda program: {torch.device("cuda:0")})
    monkeypatch.setattr("dtorch.replay.cuda_graph.cuda_device", lambda program: torch.device("cpu"))
    monkeypatch.setattr("dtorch.replay.cuda_graph.Cuda", lambda device: Double())
    captured = capture(function)
    for number in range(6):
        captured(distributed(torch.ones(2)), *given[number % 3 : number % 3 + 1])
    assert f"no CUDA graph: {reason}" in captured.why() or f"no CUDA graph: it {reason}" in captured.why()
