"""Regions beside each other: which become one, where, what keeps them apart, and that every bit stays."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh
from dtorch.inductor.region import Region
from dtorch.plan.fuse import planner
from dtorch.plan.fuse.candidate import fuse_of
from dtorch.plan.fuse.region import Waiting
from tests.plan.fuse.test_planner import Found, names, on, regions
from tests.plan.test_differential import same
from tests.programs import Program
from tests.support import cases

ONE = DeviceMesh("cpu", [0], mesh_dim_names=("dp",))
VALUES = torch.rand(512, 1024) + 0.5


def siblings(found: list[Found]) -> list[Found]:
    return [one for one in found if one.kind == "siblings"]


def test_calls_that_read_the_same(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: (x.relu(), x + 1.0), on(graph))
    assert (found.kind, names(found), found.fused) == ("siblings", ["relu", "add"], True)
    assert found.reason.startswith("2 siblings, ")
    assert (len(found.inputs), len(found.outputs)) == (2, 2)
    assert found.operator is not None
    assert found.operator.describe().startswith("Fuse([512, 1024] -> ")
    assert found.operator.price().traffic_bytes == 3 * VALUES.nbytes


def test_they_have_the_flops_of_their_calls(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: (x * 2.0, x + 1.0, x * x), on(graph))
    assert found.operator is not None
    assert (found.operator.price().flops or 0) == sum(call.flops() or 0 for call in found.operator.calls)


def test_regions_that_read_the_same_with_a_call_between_that_feeds_neither(graph: dtorch.Graph) -> None:
    def function(x: Any, y: Any) -> Any:
        a = (x * 2.0).relu()
        h = y.exp()
        return a, h, (x + 1.0).relu()

    (found,) = regions(function, on(graph), on(graph))
    assert names(found) == ["mul", "relu", "add", "relu"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (a := x.relu(), h := a.exp(), x + h),
        lambda x: (x.relu(), x.neg_(), x + 1.0),
        lambda x: (x.relu(), x.t() + 1.0),
    ],
    ids=["the second waits for a call behind the first", "written in between", "another input"],
)
def test_what_keeps_calls_apart(graph: dtorch.Graph, function: Any) -> None:
    assert not siblings(regions(function, on(graph)))


def test_a_sibling_that_does_not_pay_is_refused_with_the_price(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: (x.sigmoid(), torch.nn.functional.silu(x)), on(graph))
    assert (found.kind, names(found), found.fused) == ("siblings", ["sigmoid", "silu"], False)
    assert found.reason.startswith("2 siblings save ")
    assert "less than one part in 8" in found.reason


def test_regions_are_bounded(graph: dtorch.Graph) -> None:
    small = [on(graph, VALUES[:64, :64] + i) for i in range(101)]
    found = siblings(regions(lambda x, *others: [x + other for other in others], *small))
    sizes = [len(one.nodes) for one in found if one.fused]
    assert max(sizes) <= planner.MAX_CALLS
    assert sum(sizes) == 100


def test_the_choice_is_stable(graph: dtorch.Graph) -> None:
    def found() -> Any:
        dtorch.plan.cache.forget()
        made = regions(lambda x: [x + 1.0, x * 2.0, x.relu(), (x - 1.0).relu()], on(graph))
        return [(one.nodes, one.at, one.fused, one.unfused_ns, one.fused_ns, one.reason) for one in made]

    assert found() == found()


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("seed", range(cases(4)))
def test_whichever_are_left_out_every_bit_stays(
    seed: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regions move calls; each must be right whether others move theirs or not."""
    numbers = count()

    def start(region: Region) -> Region:
        region.state = ("compiled", "refused", "compiled")[next(numbers) % 3]
        return region

    def tick(waiting: Waiting) -> bool:
        waiting.start()
        return True

    monkeypatch.setattr(Region, "start", start)
    monkeypatch.setattr(Waiting, "tick", tick)
    monkeypatch.setattr("dtorch.plan.fuse.price.pays", lambda unfused, fused: True)
    monkeypatch.setattr("dtorch.plan.fuse.price.LEAST_SHARE", 10**9)
    with dtorch.optimize(mode), dtorch.passes(add_first=False):
        for number in range(seed * 5, seed * 5 + 5):
            expected = Program(number, eager=True).run(24)
            for _ in range(4):
                program = Program(number, eager=False)
                same(program.run(24), expected, program)
    assert next(numbers) > 1


# -- updates of many parameters


class Steps:
    """Captured steps over state that lies apart, and the same steps at once."""

    def __init__(self, function: Any, sizes: list[int]) -> None:
        make = [torch.rand(n, generator=torch.Generator().manual_seed(n + i)) for i, n in enumerate(sizes)]
        self.plain = [full.clone() for full in make]
        self.state = [dtorch.Tensor(full, device_mesh=ONE) for full in make]
        self.function = function
        self.run = dtorch.capture(lambda a: function(self.state, a))

    def __call__(self, a: float) -> None:
        self.run(a)
        self.function(self.plain, a)
        for mine, theirs in zip(self.state, self.plain, strict=True):
            assert torch.equal(mine.to_torch(), theirs)

    @property
    def plan(self) -> Any:
        (course,) = self.run._courses.values()  # type: ignore[attr-defined]
        return course.programs[0].plan

    def joined(self) -> list[list[str]]:
        """The calls of each region of siblings that is to be fused."""
        plan = self.plan
        found = [c for c in plan.rewritten.candidates if c.kind == "siblings" and c.fused]
        return [[call.kind_name() for call in fuse_of(plan.structure, c).calls] for c in found]


def updates(state: Any, a: float) -> None:
    for x in state:
        x.mul_(a)
        x.add_(1.0)


def test_updates_of_equal_structure_are_one_region(ended: dict[str, Any]) -> None:
    steps = Steps(updates, [128] * 5 + [256] * 4)
    for number in range(9):
        steps(0.5 + number)
    assert steps.run.stats().replays > 4  # type: ignore[attr-defined]
    plan = steps.plan
    assert ended["calls"]
    assert sorted(len(call.candidate.nodes) for call in plan.rewritten.fused.values()) == [8, 10]
    assert "siblings of 10 calls" in plan.explain()


def test_a_call_between_that_reads_what_they_write_keeps_updates_apart(ended: dict[str, Any]) -> None:
    def function(state: Any, a: float) -> None:
        for before, x in zip([*state[-1:], *state], state, strict=False):
            x.mul_(a)
            x.add_(before.exp())

    steps = Steps(function, [128] * 4)
    for number in range(9):
        steps(0.1 + number / 10)
    assert not steps.joined()


@pytest.mark.parametrize("fails", [False, True])
def test_no_write_moves_over_a_call_that_may_fail(ended: dict[str, Any], fails: bool) -> None:
    """A lookup may be out of range, and state is to be as it was left there; exp fails for no value."""
    ids = torch.tensor([1, 2, 3])

    def function(state: Any, a: float) -> None:
        *parameters, table, out = state
        updates(parameters[:4], a)
        places = ids if type(out) is torch.Tensor else dtorch.Tensor(ids, device_mesh=ONE)
        out.add_(table[places] if fails else table[1:4].exp())
        updates(parameters[4:], a)

    steps = Steps(function, [128] * 8 + [8, 3])
    for number in range(9):
        steps(0.5 + number)
    assert [len(calls) for calls in steps.joined()] == ([8, 8] if fails else [16])


def test_whichever_updates_are_left_out_every_bit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(state: Any, a: float) -> None:
        half = len(state) // 2
        for p, m in zip(state[:half], state[half:], strict=True):
            m.mul_(a)
            m.add_(p)
            h = m.sqrt() + 1.0
            p.mul_(0.5)
            p.add_(m / h)

    numbers = count()

    def start(region: Region) -> Region:
        region.state = ("refused", "compiled")[next(numbers) % 2]
        return region

    monkeypatch.setattr(Region, "start", start)
    monkeypatch.setattr("dtorch.inductor.worth.SAVED_NS", 1)
    for _ in range(3):
        steps = Steps(step, [64, 128, 64, 128, 64] * 2)
        for number in range(8):
            steps(0.5 + number / 8)
        assert steps.joined()
        assert steps.plan.rewritten.fused
        next(numbers)


@pytest.mark.compiler
def test_really_compiled() -> None:
    steps = Steps(updates, [128] * 5)
    for number in range(5):
        steps(0.5 + number)
    steps.run.instantiate()  # type: ignore[attr-defined]
    assert not steps.plan.refused
    assert len(steps.plan.rewritten.fused) == 1
    for number in range(5, 9):
        steps(0.5 + number)
