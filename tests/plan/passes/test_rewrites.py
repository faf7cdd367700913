"""Each rewrite: what it makes of a program, and the programs that it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, OperatorError, Partial, Replicate, Shard
from dtorch.errors import UnsupportedError
from dtorch.plan.explain import after, before

MESH = DeviceMesh("cpu", [0, 1])
FULL = torch.arange(12.0).reshape(4, 3) - 5.5
R, S0, S1 = Replicate(), Shard(0), Shard(1)

Function = Callable[[Any], Any]


def on(graph: dtorch.Graph, placement: Any = S0, full: torch.Tensor = FULL) -> dtorch.Tensor:
    return dtorch.Tensor(full, MESH, [placement], graph=graph)


def moved(x: Any, placement: Any) -> Any:
    """The same under another placement; of a plain tensor a copy."""
    return x.redistribute(placements=[placement]) if isinstance(x, dtorch.Tensor) else x.clone()


def rewrites(function: Function, graph: dtorch.Graph, placement: Any = S0) -> list[str]:
    """Names of the passes that changed the plan of a function; its value must be torch's, three times."""
    for _ in range(2):
        check(function, on(graph, placement))
    with dtorch.plan.cache.watched() as plans:
        check(function, on(graph, placement))
    return [change.by for plan in plans for change in plan.rewritten.changes]


def check(function: Function, x: dtorch.Tensor) -> None:
    expected = function(FULL.clone())
    found = function(x)
    x.graph.sync()
    for mine, theirs in zip(as_list(found), as_list(expected), strict=True):
        assert torch.equal(mine.to_torch(), theirs)


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


# -- the same call on the same values ---------------------------------------------------


def test_the_same_call_is_made_once(graph: dtorch.Graph) -> None:
    assert "equal" in rewrites(lambda x: x.exp() + x.exp(), graph)


def test_chains_of_the_same_calls_are_made_once(graph: dtorch.Graph) -> None:
    assert rewrites(lambda x: x.exp().tanh() + x.exp().tanh(), graph).count("equal") == 2


def write_between(x: Any) -> Any:
    first = x.exp()
    x.neg_()
    return first + x.exp()


def write_through_a_view_between(x: Any) -> Any:
    y, view = x + 1, None
    first = y.exp()
    view = y.view(-1)
    view.neg_()
    return first + y.exp()


def one_is_written(x: Any) -> Any:
    first, second = x.exp(), x.exp()
    second.neg_()
    return first - second


def both_are_given(x: Any) -> Any:
    return x.exp(), x.exp()


def a_view_of_one_is_given(x: Any) -> Any:
    first, second = x.exp(), x.exp()
    return first + second, second.t()


@pytest.mark.parametrize(
    "function",
    [write_between, write_through_a_view_between, one_is_written, both_are_given, a_view_of_one_is_given],
)
def test_calls_that_only_look_the_same_are_all_made(graph: dtorch.Graph, function: Function) -> None:
    assert "equal" not in rewrites(function, graph)


def test_two_results_that_are_given_can_be_written_apart(graph: dtorch.Graph) -> None:
    for _ in range(3):
        x = on(graph)
        first, second = x.exp(), x.exp()
        graph.sync()
        first.zero_()
        assert torch.equal(second.to_torch(), FULL.exp())


def test_an_alias_from_an_earlier_sequence_is_seen(graph: dtorch.Graph) -> None:
    for _ in range(3):
        x = on(graph)
        view = x.t()
        graph.sync()
        first = x.exp()
        view.neg_()
        found = first + x.exp()
        assert torch.equal(found.to_torch(), FULL.exp() + (-FULL).exp())


def test_what_a_checkpoint_computes_again_is_computed_again(graph: dtorch.Graph) -> None:
    x = on(graph).requires_grad_()

    def step() -> Any:
        y = torch.utils.checkpoint.checkpoint(lambda t: t.exp().tanh(), x, use_reentrant=False)
        (grad,) = torch.autograd.grad(y.sum(), x)
        return grad

    for _ in range(2):
        step().to_torch()
    with dtorch.plan.cache.watched() as plans:
        step().to_torch()
    assert sum(recipe.operator.name == "aten.exp" for p in plans for recipe in _run(p)) == 2


def _run(plan: Any) -> list[Any]:
    return [plan.structure.recipes[node] for node in plan.selection.nodes]


def test_a_users_operator_is_called_as_often_as_written(graph: dtorch.Graph) -> None:
    calls = []

    @torch.library.custom_op("dtorch_passes::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x + 1

    counted.register_fake(lambda x: torch.empty_like(x))
    x = on(graph, R)
    for _ in range(3):
        calls.clear()
        found = counted(x) + counted(x)
        assert torch.equal(found.to_torch(), 2 * (FULL + 1))
    assert len(calls) == 2


# -- redistributions --------------------------------------------------------------------


def test_two_redistributions_become_one(graph: dtorch.Graph) -> None:
    with dtorch.plan.cache.watched() as plans:
        for _ in range(2):
            found = moved(moved(on(graph), R), S1) + 1
            assert torch.equal(found.to_torch(), FULL + 1)
    was, now = before(plans[-1]), after(plans[-1])
    assert (was.calls, now.calls, now.sent) == (3, 2, was.sent // 2)


def test_one_that_leads_back_becomes_none(graph: dtorch.Graph) -> None:
    with dtorch.plan.cache.watched() as plans:
        for _ in range(2):
            found = moved(moved(on(graph), S1), S0) + 1
            assert torch.equal(found.to_torch(), FULL + 1)
    assert (after(plans[-1]).calls, after(plans[-1]).sent) == (1, 0)


def test_what_is_given_is_no_alias_of_what_it_was_made_of(graph: dtorch.Graph) -> None:
    for _ in range(3):
        x = on(graph)
        back = moved(moved(x, S1), S0)
        graph.sync()
        back.zero_()
        assert torch.equal(x.to_torch(), FULL)


def the_first_is_given(x: Any) -> Any:
    first = moved(x, R)
    return first, moved(first, S1)


def written_before_the_second(x: Any) -> Any:
    first = moved(x, S1)
    x.neg_()
    return moved(first, S0) + 1


def the_first_is_written(x: Any) -> Any:
    first = moved(x, S1)
    first.neg_()
    return moved(first, S0) + 1


@pytest.mark.parametrize("function", [the_first_is_given, written_before_the_second, the_first_is_written])
def test_redistributions_that_stay(graph: dtorch.Graph, function: Function) -> None:
    assert "redistributes" not in rewrites(function, graph)


def test_the_same_redistribution_is_made_once(graph: dtorch.Graph) -> None:
    with dtorch.plan.cache.watched() as plans:
        for _ in range(2):
            x = on(graph) * 1
            found = moved(x, S1).exp() + moved(x, S1).neg()
            assert torch.equal(found.to_torch(), FULL.exp() - FULL)
    assert after(plans[-1]).sent == before(plans[-1]).sent // 2


# -- reductions -------------------------------------------------------------------------


def test_a_reduction_sinks_below_a_view(graph: dtorch.Graph) -> None:
    with dtorch.plan.cache.watched() as plans:
        for _ in range(2):
            product = on(graph, S1) @ on(graph, S0, FULL.t().contiguous())
            found = moved(moved(product, R).t(), S1).exp()
            assert torch.allclose(found.to_torch(), (FULL @ FULL.t()).t().exp())
    assert "sinking" in [change.by for change in plans[-1].rewritten.changes]
    assert after(plans[-1]).sent == before(plans[-1]).sent // 2


def two_sums(x: Any) -> Any:
    return moved(torch.mm(x, x.t()), R) + moved(torch.mm(x.exp(), x.t()), R)


def test_sums_are_added_first_under_fast_alone(graph: dtorch.Graph) -> None:
    def run() -> Any:
        with dtorch.plan.cache.watched() as plans:
            for _ in range(2):
                x = on(graph, S1)
                y = two_sums(x).to_torch()
        assert torch.allclose(y, two_sums(FULL), rtol=1e-6)
        return plans[-1]

    assert "add_first" not in [change.by for change in run().rewritten.changes]
    with dtorch.optimize("fast"):
        plan = run()
    assert "add_first" in [change.by for change in plan.rewritten.changes]
    assert after(plan).sent < before(plan).sent


# -- errors, values that stay, and the listing ------------------------------------------


def test_a_failure_behind_rewrites_names_the_users_line(graph: dtorch.Graph) -> None:
    def program(row: int) -> Any:
        x = on(graph, S1)
        index = on(graph, R, torch.tensor([0, row]))
        twice = x.exp() + x.exp()
        back = moved(moved(twice, S0), S1).tanh()
        taken = back.index_select(0, index)  # the line
        return back, taken, twice.neg()

    for _ in range(3):
        held = program(1)
        graph.sync()
        del held
    expected = (FULL.exp() * 2).tanh()
    back, taken, other = program(7)
    with pytest.raises((OperatorError, IndexError, RuntimeError), match=r"test_rewrites\.py:") as raised:
        taken.to_torch()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.endswith("  # the line"))
    assert f"test_rewrites.py:{number}" in str(raised.value)
    assert torch.equal(back.to_torch(), expected)
    assert torch.equal(other.to_torch(), -(FULL.exp() * 2))


def test_what_was_recorded_is_counted_as_recorded(graph: dtorch.Graph) -> None:
    for _ in range(3):
        with graph.record() as recorded:
            found = moved(moved(on(graph), R), S1) + 1
        found.to_torch()
        assert [sent.kind for sent in recorded.communications()][:1] == ["all_gather"]


def test_a_pass_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError, match="there are equal, "):
        dtorch.passes(inlining=False)
    with pytest.raises(UnsupportedError, match="switched by True or False"):
        dtorch.passes(reuse="no")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="switched by name"):
        dtorch.passes("reuse")


def test_switches_hold_inside(graph: dtorch.Graph) -> None:
    with dtorch.passes(equal=False):
        assert "equal          off" in str(dtorch.passes())
        assert "equal" not in rewrites(lambda x: x.exp() + x.exp(), graph)
    assert "equal          on" in str(dtorch.passes())


@pytest.mark.parametrize(
    ("mode", "off"),
    [
        ("off", ["add_first", "fusion"]),
        ("exact", ["add_first"]),
        ("fast", []),
    ],
)
def test_passes_run_under_their_modes_and_the_option_counts_as_it_is(
    mode: str, off: list[str], graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTORCH_OPTIMIZE", mode)
    lines = [line.split() for line in str(dtorch.passes()).splitlines()]
    assert [name for name, switch, *_ in lines if switch == "off"] == off
    with dtorch.plan.cache.watched() as plans:
        for _ in range(2):  # the first time, calls may be new
            check(lambda x: (x * 2 + 1).exp() - x, on(graph))
    assert bool(plans[-1].rewritten.candidates) == (mode != "off")


def test_without_dead_everything_runs(graph: dtorch.Graph) -> None:
    def program() -> Any:
        x = on(graph)
        x.exp()
        return x + 1

    def calls() -> int:
        with dtorch.plan.cache.watched() as plans:
            for _ in range(2):
                program().to_torch()
        return after(plans[-1]).calls

    assert calls() == 1
    with dtorch.passes(dead=False):
        assert calls() == 2


@pytest.mark.recorded
def test_explained() -> None:
    x = dtorch.Tensor(FULL, MESH, [S0])
    told = dtorch.explain(lambda t: moved(moved(t.exp() + t.exp(), R), S1).neg(), x)
    text = str(told)
    assert "equal:\n  call 1: the same as call 0\n" in text
    assert "  + Convert([4, 3] -> [4, 3])  [Shard(0)] -> [Shard(1)]" in text
    assert len(told.plans) == 1


def test_a_captured_step_goes_through_the_same_door(graph: dtorch.Graph) -> None:
    x = on(graph)
    step = dtorch.capture(lambda t: (moved(moved(t.exp() + t.exp(), R), S1) * 2).neg())
    for _ in range(6):
        assert torch.equal(step(x).to_torch(), -(4 * FULL.exp()))
    assert step.stats().replays
    (plan,) = dtorch.explain(step, x).plans
    assert {"equal", "redistributes", "reuse"} <= {change.by for change in plan.rewritten.changes}


@pytest.mark.parametrize("placement", [R, S0, Partial()], ids=str)
def test_pending_sums_keep_their_addends(graph: dtorch.Graph, placement: Any) -> None:
    found = []
    for choice in ({}, {}, {"redistributes": False}, {"redistributes": False}):
        with dtorch.passes(**choice):
            x = moved(on(graph), placement)
            graph.sync()
            back = moved(moved(x, S1), Partial()).neg()
            found.append([back.to_local(i) for i in range(2)])
    for parts in found[1:]:
        assert all(map(torch.equal, parts, found[0]))


def test_what_runs_at_once_has_no_plan_to_explain(graph: dtorch.Graph) -> None:
    graph.constructor.eager = True
    with pytest.raises(dtorch.UnsupportedError, match="each call runs at once"):
        dtorch.explain(lambda x: x.exp(), on(graph, S0))
