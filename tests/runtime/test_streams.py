"""Compute and communicate streams, by a recorder in their place: who waits for whom, what memory is held.

Virtual CPU devices stand for simulated ones on one GPU; tests/gpu has the same on real streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Partial, Replicate, Shard, redistribute
from dtorch.op.stream import StreamKey
from dtorch.plan.codegen import write
from dtorch.plan.structure import Numbered, Structure
from dtorch.runtime import streams

MESH = DeviceMesh("cpu", [0, 1])
FULL = torch.arange(12.0).reshape(4, 3)


class FakeStream:
    """Notes what is asked of it; an event is the number of the note that made it."""

    def __init__(self, name: str, log: list[tuple[Any, ...]]) -> None:
        self.name = name
        self.log = log

    def record_event(self) -> int:
        self.log.append(("record", self.name))
        return len(self.log) - 1

    def wait_event(self, event: int) -> None:
        self.log.append(("wait", self.name, self.log[event][1]))


class Fake:
    """A backend that only notes."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.streams: dict[StreamKey, FakeStream] = {}
        self.held: list[tuple[int, str]] = []

    def stream(self, key: StreamKey) -> FakeStream:
        return self.streams.setdefault(key, FakeStream(f"{key.kind} {key.device_id}", self.log))

    @contextmanager
    def using(self, chosen: list[FakeStream]) -> Iterator[None]:
        self.log.append(("begin", *(stream.name for stream in chosen)))
        yield
        self.log.append(("end",))

    def hold(self, tensor: Any, stream: FakeStream) -> None:
        self.held.append((id(tensor), stream.name))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    monkeypatch.setattr(streams, "BACKEND", found)
    return found


@pytest.fixture
def x(fake: Fake, graph: dtorch.Graph) -> dtorch.Tensor:
    found = dtorch.Tensor(FULL, MESH, [Shard(0)], graph=graph)
    fake.log.clear()
    return found


ISSUED = [
    ("record", "compute 0"),
    ("wait", "communicate 0", "compute 0"),
    ("begin", "communicate 0"),
    ("end",),
    ("record", "communicate 0"),
]
WAITED = [("wait", "compute 0", "communicate 0")]


class Part(NamedTuple):
    """As much of a tensor as streams look at."""

    device: torch.device


# -- one conversion ---------------------------------------------------------------------


def test_a_conversion_waits_for_each_devices_computation_and_holds_what_crosses(fake: Fake) -> None:
    devices = [torch.device("cpu", i) for i in (0, 1, 1, 0)]
    given, made = [Part(device) for device in devices[:2]], [Part(device) for device in devices[:2]]
    assert streams.issue(5, devices, [*given, given[0]], lambda: made) is made
    assert fake.log == [
        ("record", "compute 0"),
        ("wait", "communicate 0", "compute 0"),
        ("record", "compute 1"),
        ("wait", "communicate 1", "compute 1"),
        ("begin", "communicate 0", "communicate 1"),
        ("end",),
        ("record", "communicate 0"),
        ("record", "communicate 1"),
    ]
    assert fake.held == [
        (id(given[0]), "communicate 0"),
        (id(given[1]), "communicate 1"),
        (id(made[0]), "compute 0"),
        (id(made[1]), "compute 1"),
    ]
    fake.log.append(("elsewhere",))
    streams.wait_for(5, 6)
    streams.wait_for(5)
    streams.join()
    assert fake.log[9:] == [*WAITED, ("wait", "compute 1", "communicate 1")]


def test_devices_without_streams_are_left_out(fake: Fake) -> None:
    part = Part(torch.device("meta"))
    streams.issue(1, [torch.device("meta")], [part], lambda: [part])
    assert fake.log == [("begin",), ("end",)]
    assert fake.held == []
    streams.join()


def test_only_what_sends_is_communication(x: dtorch.Tensor) -> None:
    with x.graph.record() as graph:
        whole = x.redistribute(placements=[Replicate()])
        whole.redistribute(placements=[Shard(1)])
        x + 1.0
    kinds = [{key.kind for key in operator.streams} for operator in graph.operators]
    assert kinds == [{"communicate"}, {"compute"}, {"compute"}]
    assert {key.device_id for operator in graph.operators for key in operator.streams} == {0, 1}


# -- plans ------------------------------------------------------------------------------


def reads_later(x: dtorch.Tensor) -> list[dtorch.Tensor]:
    whole = x.redistribute(placements=[Replicate()])
    other = x * 2.0
    return [other.sum(1), whole + 1.0, whole + 2.0]


def writes_between(x: dtorch.Tensor) -> list[dtorch.Tensor]:
    y = x + 1.0
    whole = y.redistribute(placements=[Replicate()])
    y.mul_(2.0)
    return [y, whole + 1.0]


def two_at_once(x: dtorch.Tensor) -> list[dtorch.Tensor]:
    whole = x.redistribute(placements=[Replicate()])
    columns = x.redistribute(placements=[Shard(1)])
    return [columns + 1.0, whole + 1.0]


def sums_of_sums(x: dtorch.Tensor) -> list[dtorch.Tensor]:
    total = (x.t() @ x).redistribute(placements=[Replicate()])
    return [total.redistribute(placements=[Shard(0)]) * 2.0, x.exp()]


def never_read(x: dtorch.Tensor) -> list[dtorch.Tensor]:
    return [x.redistribute(placements=[Replicate()]), x + 1.0]


EXPECTED = {
    reads_later: [FULL.sum(1) * 2, FULL + 1, FULL + 2],
    writes_between: [FULL * 2 + 2, FULL + 2],
    two_at_once: [FULL + 1, FULL + 1],
    sums_of_sums: [FULL.t() @ FULL * 2, FULL.exp()],
    never_read: [FULL, FULL + 1],
}


def steps(x: dtorch.Tensor, program: Callable[..., Any]) -> list[str]:
    """What the plan of a program does, in order: operators by type, sends, waits."""
    for _ in range(2):
        [t.to_torch() for t in program(x)]
    held = program(x)
    nodes = x.graph.constructor.pending.nodes
    numbered = Numbered(nodes)
    structure = Structure.of(nodes, numbered)
    source = write(structure, structure.select(structure.wanted(numbered)))
    assert source.lines[-2].strip() == f"{_name_of(source, streams.join)}()"
    del numbered
    found: list[str] = []
    for line, node in zip(source.lines, source.node_of, strict=True):
        called = [value for name, value in source.constants.items() if f"{name}(" in line]
        function = getattr(called[0], "func", None) if called else None
        if function is streams.wait_for:
            found += [f"wait {structure.recipes[i].operator.describe()}" for i in called[0].args]
        elif node >= 0 and called and (not found or found[-1] != str(node)):
            found.append(str(node))
    names = [recipe.operator.describe().partition("(")[0] for recipe in structure.recipes]
    del held
    return [names[int(step)] if step.isdigit() else step.partition("(")[0] for step in found]


def _name_of(source: Any, value: Any) -> str:
    return next(name for name, constant in source.constants.items() if constant is value)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (reads_later, ["Convert", "Mul", "Sum", "wait Convert", "Add", "Add"]),
        (writes_between, ["Add", "Convert", "wait Convert", "Mul", "Add"]),
        (two_at_once, ["Convert", "Convert", "wait Convert", "Add", "wait Convert", "Add"]),
        (sums_of_sums, ["Transpose", "Matmul", "Convert", "wait Convert", "Convert", "Mul", "Exp"]),
        (never_read, ["Convert", "Add"]),
    ],
)
def test_waits_stand_before_the_first_reader_and_before_writes(
    x: dtorch.Tensor, program: Callable[..., Any], expected: list[str]
) -> None:
    assert steps(x, program) == expected


@pytest.mark.parametrize("eager", [False, True], ids=["recorded", "at once"])
@pytest.mark.parametrize("program", EXPECTED)
def test_values_are_right_and_nothing_is_under_way_afterwards(
    fake: Fake, x: dtorch.Tensor, program: Callable[..., Any], eager: bool
) -> None:
    x.graph.constructor.eager = eager
    results = []
    for _ in range(4):
        fake.log.clear()
        results = program(x)
        x.graph.sync()
        sent = fake.log.count(("record", "communicate 0"))
        assert sent > 0
        assert fake.log.count(*WAITED) == sent
        assert not streams._UNDER_WAY.events
    for a, b in zip(results, EXPECTED[program], strict=True):
        torch.testing.assert_close(a.to_torch(), b)


def test_run_at_once_a_conversion_is_waited_for_at_once(fake: Fake, x: dtorch.Tensor) -> None:
    x.graph.constructor.eager = True
    x.redistribute(placements=[Replicate()])
    assert fake.log == ISSUED + WAITED


def test_parts_that_cross_are_held_on_both_sides(
    fake: Fake, x: dtorch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []
    execute = redistribute.execute

    def noting(parts: Any, *args: Any, **kwargs: Any) -> Any:
        made = execute(parts, *args, **kwargs)
        seen.extend((id(part), "communicate 0") for part in {id(p): p for p in parts}.values())
        seen.extend((id(part), "compute 0") for part in {id(p): p for p in made}.values())
        return made

    monkeypatch.setattr(redistribute, "execute", noting)
    for _ in range(3):
        seen.clear(), fake.held.clear()
        result = reads_later(x)
        x.graph.sync()
        assert fake.held == seen
        assert len(seen) == 3
    assert len(result) == 3


def test_after_a_failure_the_rest_waits_first(fake: Fake, x: dtorch.Tensor) -> None:
    def program(row: int) -> list[dtorch.Tensor]:
        index = dtorch.Tensor(torch.tensor([0, row]), MESH, graph=x.graph)
        whole = x.redistribute(placements=[Replicate()])
        bad = (x * 1.0).t().contiguous().t().index_select(1, index)
        return [bad, whole + 1.0]

    for _ in range(3):
        [t.to_torch() for t in program(1)]
    fake.log.clear()
    bad, good = program(99)
    with pytest.raises((IndexError, RuntimeError), match="IndexSelect"):
        bad.to_torch()
    assert fake.log == ISSUED + WAITED
    assert torch.equal(good.to_torch(), FULL + 1)


def test_on_real_cpu_devices_there_are_no_streams(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("a stream was asked for")

    monkeypatch.setattr(streams.Cuda, "stream", refuse)
    x = dtorch.Tensor(FULL, MESH, [Partial()], graph=graph)
    for _ in range(3):
        assert torch.equal(x.redistribute(placements=[Shard(0)]).to_torch(), FULL)
