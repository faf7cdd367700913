"""Plans: when they are made and used, what their key holds, what they hold on to, and what is left out."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Replicate, Shard
from dtorch.graph import constructor
from dtorch.graph.pending import Pending
from dtorch.plan import cache
from dtorch.testing import assert_tensor_equal as equal

MESH = DeviceMesh("cpu", [0, 1])
FOUR = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
VALUES = torch.arange(12.0).reshape(4, 3) - 5.5


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Types of the operators of each sequence that ran."""
    found: list[list[str]] = []
    run = cache._run

    def noted(running: Any, *args: Any) -> None:
        recipes = running.structure.recipes
        found.append([recipes[node].operator.type for node in running.selection.nodes])
        run(running, *args)

    monkeypatch.setattr(cache, "_run", noted)
    return found


def pending(tensor: dtorch.Tensor) -> bool:
    return tensor._operand.parts is None


# -- when plans are made ---------------------------------------------------------------------------------


def test_a_sequence_is_interpreted_then_planned_then_found(x: dtorch.Tensor) -> None:
    constructor.GraphConstructor.forget()  # other tests' recipes would be recorded the first time

    def step() -> torch.Tensor:
        return ((x + 1.5) * x).to_torch()

    expected = (VALUES + 1.5) * VALUES
    equal(step(), expected)  # each call alone, at once
    before = dtorch.plan_stats()
    for plans, made, hits, interpreted in [(0, 0, 0, 1), (1, 1, 1, 1), (1, 1, 2, 1), (1, 1, 3, 1)]:
        equal(step(), expected)
        now = dtorch.plan_stats()
        assert now.plans - before.plans == plans
        assert now.made - before.made == made
        assert now.hits - before.hits == hits
        assert now.interpreted - before.interpreted == interpreted


def test_the_number_of_plans_is_bounded(x: dtorch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_PLANS", 3)
    monkeypatch.setattr(cache, "MAX_MET", 5)
    for length in [*range(1, 9), *range(8, 0, -1), *range(1, 9)]:
        y = x
        for _ in range(length):
            y = y + 1.0
        equal(y.to_torch(), VALUES + length)
        assert dtorch.plan_stats().plans <= 3
        assert len(cache._MET) <= 5
    assert dtorch.plan_stats().made > 3


def test_calls_whose_sizes_grow_leave_the_others_their_plans(
    x: dtorch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    interpreted: list[list[str]] = []
    interpret = cache.interpret

    def noting(running: Any, nodes: Any, *args: Any) -> None:
        interpreted.append([running.structure.recipes[node].operator.describe() for node in nodes])
        interpret(running, nodes, *args)

    def body(y: dtorch.Tensor) -> dtorch.Tensor:
        return (y.relu() * 1.5).tanh() @ (y.t() @ y)

    def step(longer: dtorch.Tensor) -> tuple[dtorch.Tensor, dtorch.Tensor, dtorch.Tensor]:
        longer = torch.cat([longer, x[:1]])
        [longer[-1:] + 1.0 for _ in range(2)]
        y = body(x)
        row = longer[-1:] * 2.0
        return longer, body(y), row

    for _ in range(3):
        body(body(x)).to_torch()
    monkeypatch.setattr(cache, "interpret", noting)
    longer = x
    for _ in range(8):
        made = dtorch.plan_stats().made
        interpreted.clear()
        longer, y, row = step(longer)
        equal(y.to_torch(), body(body(x)).to_torch())
        equal(row.to_torch(), VALUES[:1] * 2)
    assert dtorch.plan_stats().made == made
    assert not [line for calls in interpreted for line in calls if line.startswith("Relu")]


def test_layers_whose_sizes_grow_make_no_plan_each_time(x: dtorch.Tensor) -> None:
    """The first layer makes each new call alone, the others make it together: once, and never again."""
    longer, made = x, []
    for step in range(8):
        longer = torch.cat([longer, x[:1]])
        layers = [(longer * 2.0).relu() for _ in range(4)]
        stable = [(x * 3.0).relu() for _ in range(4)]
        for layer in layers:
            equal(layer.to_torch(), (torch.cat([VALUES, *[VALUES[:1]] * (step + 1)]) * 2).relu())
        equal(stable[-1].to_torch(), (VALUES * 3).relu())
        made.append(dtorch.plan_stats().made)
    assert made[3:] == [made[3]] * 5


# -- what is an input, what is part of the key -----------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: x + a,
        lambda x, a: x * a,
        lambda x, a: x / a,
        lambda x, a: x - a,
        lambda x, a: torch.add(x, x, alpha=a),
        lambda x, a: torch.sub(x, x + 1.0, alpha=a),
        lambda x, a: x.clone().mul_(a),
        lambda x, a: x.clone().add_(x, alpha=a),
        lambda x, a: torch._foreach_mul([x, x], a)[1],
        lambda x, a: torch._foreach_add([x, x], [x, x], alpha=a)[0],
        lambda x, a: x.clone().addcmul_(x, x, value=a),
        lambda x, a: torch.lerp(x, x * 2.0, a),
        lambda x, a: x.clamp(-abs(a), abs(a)),
        lambda x, a: x.masked_fill(x > 0, a),
        lambda x, a: torch.where(x > 0, x, a),
        lambda x, a: x**a,
        lambda x, a: torch.full_like(x, a) + x,
    ],
)
def test_numbers_have_the_values_of_each_call(
    x: dtorch.Tensor, function: Callable[[Any, float], Any]
) -> None:
    for a in [1.5, 2.0, -0.0, 0.0, -3.25, float("inf"), float("nan"), 1e-45, 1.0, 1, 2, 2.5]:
        found, expected = function(x, a).to_torch(), function(VALUES, a)
        assert found.dtype == expected.dtype
        same = (found == expected) | (found.isnan() & expected.isnan())
        assert same.all()
        assert torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())


def test_a_number_that_changes_makes_no_plan(x: dtorch.Tensor) -> None:
    def step(lr: float) -> dtorch.Tensor:
        y = (x * lr).add_(x, alpha=-lr)
        return torch._foreach_add([y], lr)[0]

    for lr in (0.1, 0.2, 0.3):
        step(lr).to_torch()
    made = dtorch.plan_stats().made
    for lr in (0.4, 0.5, 0.6):
        equal(step(lr).to_torch(), (VALUES * lr).add_(VALUES, alpha=-lr) + lr)
    assert dtorch.plan_stats().made == made


KEYS: dict[str, Callable[[dtorch.Graph, Any], Any]] = {
    "the program": lambda g, on: on(VALUES, Shard(0)) - 1.0,
    "shape": lambda g, on: on(VALUES[:3], Shard(0)) - 1.0,
    "strides": lambda g, on: on(VALUES.t().contiguous(), Shard(1)).t() - 1.0,
    "dtype": lambda g, on: on(VALUES.double(), Shard(0)) - 1.0,
    "placement": lambda g, on: on(VALUES, Shard(1)) - 1.0,
    "kind of number": lambda g, on: on(VALUES, Shard(0)) - 1,
    "two operands": lambda g, on: (lambda x, y: x - y)(on(VALUES, Shard(0)), on(VALUES * 3, Shard(0))),
    "the same twice": lambda g, on: (lambda x, y: x - x)(on(VALUES, Shard(0)), on(VALUES * 3, Shard(0))),
    "the other way round": lambda g, on: (lambda x, y: y - x)(on(VALUES, Shard(0)), on(VALUES * 3, Shard(0))),
    "two results": lambda g, on: (lambda x: (x - 1.0, (x - 1.0) * 2.0))(on(VALUES, Shard(0))),
    "the last result": lambda g, on: (lambda x: [(x - 1.0) * 2.0])(on(VALUES, Shard(0))),
    "a list of sizes": lambda g, on: on(VALUES, Shard(0)).view(2, 2, 3) - 1.0,
    "another operator": lambda g, on: on(VALUES, Shard(0)) + 1.0,
}


@pytest.mark.parametrize("first", KEYS)
def test_programs_that_differ_in_one_thing_do_not_share_a_plan(graph: dtorch.Graph, first: str) -> None:
    def spread(values: torch.Tensor, placement: Any) -> dtorch.Tensor:
        return dtorch.Tensor(values, MESH, [placement], graph=graph)

    def plain(values: torch.Tensor, placement: Any) -> torch.Tensor:
        return values

    for name in (first, first, first, *KEYS, *KEYS):
        found, expected = KEYS[name](graph, spread), KEYS[name](graph, plain)
        if isinstance(expected, torch.Tensor):
            found, expected = [found], [expected]
        for a, b in zip(found, expected, strict=True):
            equal(a.to_torch(), b)


def test_meshes_do_not_share_a_plan(graph: dtorch.Graph) -> None:
    for mesh, placements in [
        (MESH, [Shard(0)]),
        (FOUR, [Shard(0), Replicate()]),
        (FOUR, [Shard(0), Shard(1)]),
    ] * 3:
        x = dtorch.Tensor(VALUES, mesh, placements, graph=graph)
        equal((x * x - 1.0).to_torch(), VALUES * VALUES - 1)


# -- liveness --------------------------------------------------------------------------------------------


def test_what_nobody_can_see_does_not_run(x: dtorch.Tensor, ran: list[list[str]]) -> None:
    def step() -> dtorch.Tensor:
        (x + 1.0).relu().sum()
        x.t()
        return x * 2.0

    step().to_torch()
    ran.clear()
    equal(step().to_torch(), VALUES * 2)
    assert ran == [["BroadcastBinary"]]


def test_a_conversion_for_a_dead_value_does_not_run(x: dtorch.Tensor, ran: list[list[str]]) -> None:
    def step() -> dtorch.Tensor:
        made = x * 3.0
        made @ made.t()  # converts one of them
        return x * 2.0

    step().to_torch()
    step().to_torch()
    ran.clear()
    equal(step().to_torch(), VALUES * 2)
    assert ran == [["BroadcastBinary"]]


def test_writes_run_even_if_nobody_holds_the_result(x: dtorch.Tensor) -> None:
    for times in range(1, 4):
        x.view(-1).add_(1.0)
        equal(x.to_torch(), VALUES + times)


CHAINS: dict[str, Callable[[dtorch.Tensor], dtorch.Tensor]] = {
    "operators": lambda t: t + 1.0,
    "views between": lambda t: (t.view(997, 1) + 1.0).view(1, 997),
    "writes between": lambda t: (t + 0.5).add_(0.5),
    "conversions between": lambda t: (t.redistribute(placements=[Replicate()]) + 1.0).redistribute(
        placements=[Shard(1)]
    ),
}


@pytest.mark.parametrize("runs", [1, 2, 3], ids=["interpreted", "planned", "planned again"])
@pytest.mark.parametrize("chain", CHAINS)
def test_values_are_freed_as_soon_as_nothing_wants_them(
    graph: dtorch.Graph, chain: str, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted at conversions, which run in between: local tensors of a size that nothing else has."""
    alive: list[int] = []
    execute = dtorch.redistribute.execute

    def counting(*args: Any, **kwargs: Any) -> Any:
        storages = {
            t.untyped_storage().data_ptr()
            for t in gc.get_objects()
            if type(t) is torch.Tensor and t.numel() in (997, 499, 498)
        }
        alive.append(len(storages))
        return execute(*args, **kwargs)

    gc.freeze()  # what is older need not be looked through
    source = dtorch.Tensor(torch.zeros(1, 997), MESH, [Shard(1)], graph=graph)

    def step() -> dtorch.Tensor:
        t = source
        for _ in range(8):
            t = CHAINS[chain](t)
            t = t.redistribute(placements=[Replicate()])
            t = t.redistribute(placements=[Shard(1)])
        return t

    for _ in range(runs):
        step().to_torch()
    monkeypatch.setattr(dtorch.redistribute, "execute", counting)
    result = step()
    assert pending(result)
    graph.sync()
    monkeypatch.undo()
    gc.unfreeze()
    assert max(alive) <= 8, alive  # two shards and what is made of them, beside the source's
    equal(result.to_torch(), torch.full((1, 997), 8.0))


def test_replicas_share_storage(graph: dtorch.Graph) -> None:
    x = dtorch.Tensor(VALUES, FOUR, [Shard(0), Replicate()], graph=graph)
    for _ in range(4):
        y = (x + 1.0) * 2.0
        whole = y.redistribute(placements=[Replicate(), Replicate()]) - 1.0
        parts = graph.parts(y._operand)
        assert parts[0] is parts[1]
        assert parts[2] is parts[3]
        assert parts[0].data_ptr() != parts[2].data_ptr()
        assert len({part.data_ptr() for part in graph.parts(whole._operand)}) == 1


# -- when what is pending runs ---------------------------------------------------------------------------


def test_the_number_of_pending_calls_is_bounded(x: dtorch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    x.t()
    monkeypatch.setattr(Pending, "max_nodes", 30)
    y = x
    for _ in range(101):
        y = y.t()
        assert len(x.graph.constructor.pending.nodes) <= 30
    equal(y.to_torch(), VALUES.t())


def test_the_end_of_a_backward_runs_it(x: dtorch.Tensor) -> None:
    leaf = dtorch.Tensor(VALUES, MESH, [Shard(0)], graph=x.graph, requires_grad=True)
    for times in range(1, 4):
        (leaf * x).tanh().sum().backward()
        assert leaf.grad is not None
        assert not pending(leaf.grad)
        assert not x.graph.constructor.pending.nodes
        del times


def test_moves_and_views_wait(x: dtorch.Tensor) -> None:
    def step() -> dtorch.Tensor:
        return (x * 2.0).redistribute(placements=[Replicate()]).t() + 1.0

    step().to_torch()
    y = step()
    assert pending(y)
    assert len(x.graph.constructor.pending.nodes) == 4
    equal(y.to_torch(), (VALUES * 2).t() + 1)


def test_the_listing_of_what_is_pending(x: dtorch.Tensor) -> None:
    def step() -> dtorch.Tensor:
        return x * 2.0 + 1.0

    step().to_torch()
    y = step()
    first, second = x.graph.listing().splitlines()
    assert "0  Mul([4, 3] -> [4, 3], other=2.0)  [Shard(0)] -> [Shard(0)]  OperatorCost[" in first
    assert "1  Add([4, 3] -> [4, 3], other=1.0)" in second
    line = step.__code__.co_firstlineno + 1
    assert first.endswith(f"{__file__}:{line}")
    assert str(x.graph) == f"{x.graph!r}, 2 pending\n{first}\n{second}"
    y.to_torch()
    assert x.graph.listing() == ""
