"""Regions that run compiled: the same bits, the user's line where one fails, a plan written anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh
from dtorch.plan import cache
from dtorch.plan.codegen import Plan
from dtorch.plan.fuse.region import Waiting

MESH = DeviceMesh("cpu", [0, 1])
FULL = torch.rand(255, 513) + 0.5


def on(graph: dtorch.Graph, full: torch.Tensor = FULL, placement: Any = "S0") -> dtorch.Tensor:
    return dtorch.Tensor(full, MESH, [placement], graph=graph)


def program(x: Any, y: Any, a: float = 1.5) -> Any:
    z = (x * a).relu() + y
    held = z - 0.25
    return z.sum(0), held, (held.sigmoid() * z).t()


def last_plan(graph: dtorch.Graph, function: Any, *given: Any) -> Plan:
    with cache.watched() as plans:
        for _ in range(2):  # the first time, calls may be new
            found = function(*given)
            graph.sync()
    del found
    return plans[-1]


@pytest.mark.parametrize("placement", ["R", "S0", "S1"])
def test_the_same_bits_before_and_after(graph: dtorch.Graph, ended: dict[str, Any], placement: str) -> None:
    at_once = dtorch.Graph()
    at_once.constructor.eager = True
    for i in range(6):
        x, y = on(graph, placement=placement), on(graph, FULL.flip(0), placement)
        given = on(at_once, placement=placement), on(at_once, FULL.flip(0), placement)
        for mine, theirs in zip(program(x, y, 1.5 + i), program(*given, 1.5 + i), strict=True):
            assert torch.equal(mine.to_torch(), theirs.to_torch())
    assert ended["calls"]
    plan = last_plan(graph, program, x, y)
    assert [operator.type for operator in plan.operators if operator.type == "Fuse"]
    assert plan.waiting is None


def test_explained_with_the_operator_in_its_place(graph: dtorch.Graph, ended: dict[str, Any]) -> None:
    x = on(graph)
    for _ in range(4):
        plan = last_plan(graph, lambda x: (x * 2.0).relu() + 1.0, x)
    text = plan.explain()
    assert f"touches  {6 * FULL.nbytes:,} -> {2 * FULL.nbytes:,} bytes" in text
    assert "chain of 3 calls, 0 to 2: runs as one call" in text
    assert "+ Fuse([255, 513] -> [255, 513], calls=3, dominant=Mul)" in text


def test_what_is_not_compiled_stays_as_it_is(graph: dtorch.Graph, ended: dict[str, Any]) -> None:
    ended.update(state="refused", reason="aten.mul gives other bits")
    x = on(graph)
    for _ in range(4):
        plan = last_plan(graph, lambda x: (x * 2.0).relu() + 1.0, x)
    assert not ended["calls"]
    assert "is left as it is: refused: aten.mul gives other bits" in plan.explain()


def test_it_waits_until_it_is_worth_it(graph: dtorch.Graph) -> None:
    plan = last_plan(graph, lambda x: (x * 2.0).relu() + 1.0, on(graph))
    assert isinstance(plan.waiting, Waiting)
    assert "waits to be compiled" in plan.explain()
    assert not plan.waiting.tick()
    assert not plan.waiting.started


def test_numbers_that_vary_are_one_input(graph: dtorch.Graph) -> None:
    plan = last_plan(graph, lambda x, a, b: (x * a + b).relu() * a, on(graph), 2.0, 3.0)
    assert plan.waiting is not None
    (call,) = plan.waiting.calls
    region = call.regions[0]
    assert (len(call.given), len(call.varying)) == (1, 3)
    assert [(meta.shape, meta.dtype) for meta in region.inputs][1:] == [((3,), "float64")]


def test_where_compiled_code_fails_the_calls_are_made_one_by_one(
    graph: dtorch.Graph, ended: dict[str, Any]
) -> None:
    x, y = on(graph), on(graph, FULL.flip(0))
    for _ in range(4):
        last_plan(graph, program, x, y)
    ended["fails"] = True
    _, held, _ = program(x, y)
    assert torch.equal(held.to_torch(), program(FULL, FULL.flip(0))[1])


def test_captured(graph: dtorch.Graph, ended: dict[str, Any]) -> None:
    x = on(graph)
    step = dtorch.capture(lambda t, a: (t * a).relu() + 1.0)
    for i in range(8):
        assert torch.equal(step(x, 2.0 + i).to_torch(), (FULL * (2.0 + i)).relu() + 1.0)
    assert step.stats().replays
    assert ended["calls"]


@pytest.mark.compiler
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_really_compiled(graph: dtorch.Graph, mode: str) -> None:
    pytest.importorskip("torch._inductor")
    with dtorch.optimize(mode):
        x, y = on(graph), on(graph, FULL.flip(0))
        for _ in range(2):
            plan = last_plan(graph, program, x, y)
        assert plan.waiting is not None
        plan.waiting.start()
        done = [region.wait(120) for call in plan.waiting.calls for region in call.regions.values()]
        assert all(done), [call.why() for call in plan.waiting.calls]
        for a in (1.5, 2.5, 0.3):
            expected = program(FULL, FULL.flip(0), a)
            found = program(x, y, a)
            for mine, theirs in zip(found[1:], expected[1:], strict=True):
                if mode == "exact":
                    assert torch.equal(mine.to_torch(), theirs)
                else:
                    torch.testing.assert_close(mine.to_torch(), theirs, rtol=2e-5, atol=2e-5)
        assert "Fuse" in [operator.type for operator in last_plan(graph, program, x, y).operators]
