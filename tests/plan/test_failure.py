"""Operators that fail when they run: what is spoiled, what stands, and who is told."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, OperatorError, Shard, redistribute
from dtorch.graph.recipe import Recipe
from dtorch.plan import cache
from dtorch.runtime.kernel import Kernel
from dtorch.runtime.runner import Program

MESH = DeviceMesh("cpu", [0, 1])
PLANNED = pytest.mark.parametrize("runs", [1, 2, 3], ids=["interpreted", "planned", "planned again"])


def on(values: torch.Tensor, graph: dtorch.Graph, *placements: Any) -> dtorch.Tensor:
    return dtorch.Tensor(values, MESH, list(placements) or None, graph=graph)


@pytest.fixture
def x(graph: dtorch.Graph) -> dtorch.Tensor:
    return on(torch.arange(12.0).reshape(4, 3), graph, Shard(1))


def line() -> int:
    """The caller's line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def chain(x: dtorch.Tensor, row: int) -> dict[str, Any]:
    """Some calls, among them one that fails where there is no such row."""
    before = x * 1.5
    index = on(torch.tensor([0, row]), x.graph)
    at = line() + 1
    taken = x.index_select(0, index)
    after = taken + 1.0
    return {"before": before, "taken": taken, "after": after, "other": before - 2.0, "line": at}


def warmed(x: dtorch.Tensor, runs: int) -> None:
    """Run the chain so often that the next time it goes the way that is wanted."""
    for _ in range(runs):
        found = chain(x, 1)
        x.graph.sync()
        del found


def fails(read: Callable[[], Any], at: int) -> str:
    """The text with which reading fails: it names the operator, the placements and the line."""
    with pytest.raises(IndexError) as caught:
        read()
    text = str(caught.value)
    assert re.search(r"in IndexSelect\(.*\) with placements \[Shard\(1\)\], \[Replicate\(\)\]", text), text
    assert text.count("called from") == 1
    assert f"called from {__file__}:{at}" in text
    return text


@PLANNED
def test_a_failure_spoils_what_depends_on_it_and_nothing_else(x: dtorch.Tensor, runs: int) -> None:
    warmed(x, runs)
    found = chain(x, 99)
    assert torch.equal(found["other"].to_torch(), torch.arange(12.0).reshape(4, 3) * 1.5 - 2)
    assert torch.equal(found["before"].to_torch(), torch.arange(12.0).reshape(4, 3) * 1.5)
    for _ in range(2):  # each time it is read
        fails(found["after"].to_torch, found["line"])
        fails(found["taken"].to_torch, found["line"])
    # The graph stays usable, and what is made of spoiled values is spoiled.
    fails(lambda: (found["after"] * 3.0).to_torch(), found["line"])
    assert torch.equal((x + 1.0).to_torch(), torch.arange(12.0).reshape(4, 3) + 1)
    fails(lambda: found["taken"].sum().item(), found["line"])
    assert "IndexError" in repr(found["taken"])  # printing never raises


@PLANNED
def test_sync_raises_a_failure_once_and_not_one_that_was_read(x: dtorch.Tensor, runs: int) -> None:
    warmed(x, runs)
    found = chain(x, 99)
    fails(x.graph.sync, found["line"])
    x.graph.sync()
    found = chain(x, 99)
    fails(found["taken"].to_torch, found["line"])
    x.graph.sync()


@PLANNED
def test_a_failure_that_nobody_reads_is_told_by_sync(x: dtorch.Tensor, runs: int) -> None:
    warmed(x, runs)
    found = chain(x, 99)
    assert found["other"].to_torch().shape == (4, 3)
    fails(x.graph.sync, found["line"])


@pytest.mark.parametrize("through", ["itself", "a view", "a view that is gone"])
@PLANNED
def test_what_a_failing_node_was_to_write_is_spoiled_with_its_aliases(
    graph: dtorch.Graph, runs: int, through: str
) -> None:
    def program(row: int) -> tuple[dtorch.Tensor, dtorch.Tensor, dtorch.Tensor, dtorch.Tensor]:
        old = on(torch.zeros(4, 4), graph, Shard(1))
        made = old + 1.0
        alias, view = made.t(), made.view(2, 2, 4)
        target = {"itself": made, "a view": alias.t(), "a view that is gone": made.view(4, 4)}[through]
        source = on(torch.ones(2, 4), graph, Shard(1))
        earlier = made * 2.0
        target.index_add_(0, on(torch.tensor([0, row]), graph), source)
        later = made * 3.0
        del target
        return earlier, made, view, later

    for _ in range(runs):
        [t.to_torch() for t in program(1)]
    earlier, *spoiled = program(99)
    assert torch.equal(earlier.to_torch(), torch.full((4, 4), 2.0))
    for tensor in spoiled:
        with pytest.raises((IndexError, RuntimeError), match="IndexAdd"):
            tensor.to_torch()


@PLANNED
def test_earlier_writes_stand_and_parameters_stay_whole(x: dtorch.Tensor, runs: int) -> None:
    for _ in range(runs):
        x.add_(1.0)
        chain(x, 1)["taken"].to_torch()
    x.add_(1.0)
    found = chain(x, 99)
    x.mul_(2.0)
    fails(found["taken"].to_torch, found["line"])
    assert torch.equal(x.to_torch(), (torch.arange(12.0).reshape(4, 3) + runs + 1) * 2)


def test_the_line_is_that_of_the_call_though_the_failure_shows_in_another_function(x: dtorch.Tensor) -> None:
    warmed(x, 2)

    def reader(tensor: dtorch.Tensor) -> float:
        return (tensor * 2.0).sum().item()

    found = chain(x, 99)
    fails(lambda: reader(found["taken"]), found["line"])


def test_a_failure_holds_no_values(x: dtorch.Tensor) -> None:
    warmed(x, 2)
    found = chain(x, 99)
    with pytest.raises(IndexError):
        found["after"].to_torch()
    error = found["after"]._operand.parts.error
    assert error.__traceback__ is None or not _plans(error)
    assert error.__context__ is None


def _plans(error: BaseException) -> list[Any]:
    """Frames of plans and of dtorch's runs that an error keeps."""
    found, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<dtorch plan>" or "values" in trace.tb_frame.f_locals:
            found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


# -- interrupts -------------------------------------------------------------------------


class Stop:
    """Interrupts the n-th local call of what runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, calls: int) -> None:
        self.left = calls
        original = getattr(kind, name)

        def method(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, name, method)


# Which of the results below the n-th node was writing, or depend on that.
HALF_WRITTEN = {2: (0, 2, 3), 5: (2, 3)}


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5, 6])
def test_an_interrupt_loses_nothing(graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    """Interrupted before the n-th node: what had run stands, the rest runs when it is asked for."""

    def program() -> list[dtorch.Tensor]:
        x = on(torch.arange(6.0), graph, Shard(0))
        y = x + 1.5
        x.mul_(2.0)
        z = x * y
        view = z[None]
        z.add_(y)
        return [x, y, z, view.sum(0) - 1.0]

    monkeypatch.setattr(Recipe, "meet", lambda *_: False)  # nothing is familiar, so it is interpreted
    for _ in range(2):  # so that all of them may be recorded
        wanted = [t.to_torch() for t in program()]
        cache_forget()
    found = program()
    with monkeypatch.context() as patch:
        stop = Stop(patch, Program, "run", calls)
        with pytest.raises(KeyboardInterrupt):
            graph.sync()
        assert stop.left == 0
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if number in HALF_WRITTEN.get(calls, ()):
            with pytest.raises(OperatorError, match=r"interrupted while .* wrote it"):
                a.to_torch()
        else:
            assert torch.equal(a.to_torch(), b), number


def cache_forget() -> None:
    cache.forget()


def test_an_interrupt_inside_a_plan(graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convert node is the place: everything else is a call of torch's, which an interrupt cannot cut."""

    def program() -> list[dtorch.Tensor]:
        x = on(torch.arange(6.0), graph, Shard(0))
        y = x + 1.5
        x.mul_(3.0)
        z = y.redistribute(placements=[dtorch.Replicate()])
        x.add_(z.redistribute(placements=[Shard(0)]))
        return [x, y, z]

    for _ in range(4):
        wanted = [t.to_torch() for t in program()]
        graph.sync()
    found = program()
    before = dtorch.plan_stats().hits
    state = {"left": 1}

    def interrupting(*args: Any, **kwargs: Any) -> Any:
        if state["left"]:
            state["left"] = 0
            raise KeyboardInterrupt
        return execute(*args, **kwargs)

    execute = redistribute.execute
    monkeypatch.setattr(redistribute, "execute", interrupting)
    with pytest.raises(KeyboardInterrupt):
        graph.sync()
    assert dtorch.plan_stats().hits == before + 1
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a.to_torch(), b)


def test_a_half_written_tensor_does_not_look_whole(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device has written when the other is interrupted."""

    def program() -> tuple[dtorch.Tensor, dtorch.Tensor]:
        x = on(torch.arange(6.0), graph, Shard(0))
        y = x + 1.0
        x.add_(10.0)
        return x, y

    [t.to_torch() for t in program()]
    x, y = program()
    at_most = {"left": 4}
    compute = Kernel.compute

    def interrupted(self: Any, inputs: Any, outputs: Any) -> None:
        at_most["left"] -= 1
        if at_most["left"] == 0:
            raise KeyboardInterrupt
        compute(self, inputs, outputs)

    cache_forget()
    monkeypatch.setattr(Kernel, "compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph.sync()
    assert torch.equal(y.to_torch(), torch.arange(6.0) + 1)
    with pytest.raises(OperatorError, match=r"interrupted while .* wrote it\n  called from .*test_failure"):
        x.to_torch()
    x.data = torch.zeros(6)  # a new value makes it whole
    assert torch.equal((x + 1.0).to_torch(), torch.ones(6))


# -- memory -----------------------------------------------------------------------------


def test_out_of_memory_at_once_says_where_and_what_was_held(graph: dtorch.Graph) -> None:
    x = on(torch.ones(1000), graph, Shard(0))
    with pytest.raises(RuntimeError) as caught:
        x[None].expand(2**45, -1).clone()
    text = str(caught.value)
    assert "in Clone(" in text
    assert "held meanwhile: 2 storages, 4000 bytes; the largest" in text


@PLANNED
def test_out_of_memory_says_where_and_what_was_held(
    graph: dtorch.Graph, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program() -> tuple[dtorch.Tensor, dtorch.Tensor, int]:
        x = on(torch.ones(1000), graph, Shard(0))
        y = x * 2.0
        at = line() + 1
        z = y.redistribute(placements=[dtorch.Replicate()])
        return y, z, at

    for _ in range(runs):
        program()[1].to_torch()

    def full(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    y, z, at = program()
    monkeypatch.setattr(redistribute, "execute", full)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        z.to_torch()
    monkeypatch.undo()
    text = str(caught.value)
    assert "in Convert(" in text
    assert f"called from {__file__}:{at}" in text
    assert re.search(
        r"held meanwhile: \d storages, \d+ bytes; the largest \[500\] torch.float32, 2000 bytes", text
    ), text
    assert y.to_torch().sum() == 2000
