"""Which regions are found, where they end, what decides, and what they cost."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Replicate
from dtorch.op.operator import Operator
from dtorch.plan import cache
from dtorch.plan.fuse import rates
from dtorch.plan.fuse.candidate import Candidate, fuse_of
from dtorch.plan.fuse.operator import Fuse
from dtorch.plan.fuse.rates import ASSUMED, Rates
from dtorch.plan.passes.draft import Draft
from tests.programs import Program
from tests.support import cases

MESH = DeviceMesh("cpu", [0, 1])
LARGE = torch.rand(512, 1024) + 0.5
SMALL = torch.rand(4, 8) + 0.5


def on(graph: dtorch.Graph, full: torch.Tensor = LARGE, placement: Any = "S0") -> dtorch.Tensor:
    return dtorch.Tensor(full, MESH, [placement], graph=graph)


@dataclass(frozen=True)
class Found(Candidate):
    """A candidate, and its calls as one operator; None where nobody reads what it gives."""

    operator: Fuse | None


def regions(function: Any, *tensors: dtorch.Tensor) -> list[Found]:
    """The candidates of the plan of a function."""
    with cache.watched() as plans:
        for _ in range(2):
            found = function(*tensors)
            tensors[0].graph.sync()
    del found
    plan = plans[-1]
    return [
        Found(**vars(one), operator=fuse_of(plan.structure, one) if one.outputs else None)
        for one in plan.rewritten.candidates
    ]


def names(candidate: Found) -> list[str]:
    assert candidate.operator is not None
    return [call.name.removeprefix("aten.") for call in candidate.operator.calls]


def test_a_chain(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: ((x * 1.5 + 0.5).relu() - 1.0).sigmoid(), on(graph))
    assert names(found) == ["mul", "add", "relu", "sub", "sigmoid"]
    assert (found.kind, found.fused, found.reason) == ("chain", True, "ends with the sequence")
    assert (len(found.inputs), len(found.outputs)) == (4, 1)
    assert found.saving_ns > 0
    assert found.operator is not None
    assert found.operator.describe() == "Fuse([512, 1024] -> [512, 1024], calls=5, dominant=Mul)"


def test_a_broadcast(graph: dtorch.Graph) -> None:
    row = on(graph, LARGE[0].clone(), Replicate())
    (found,) = regions(lambda x, b: (x + b).relu() * x, on(graph), row)
    assert (found.kind, names(found)) == ("broadcast", ["add", "relu", "mul"])


def test_an_epilogue_leaves_the_product_out_and_says_so(graph: dtorch.Graph) -> None:
    w = on(graph, torch.rand(1024, 256), Replicate())
    (found,) = regions(lambda x, w: ((x @ w) * 2.0).relu() + 1.0, on(graph), w)
    assert (found.kind, names(found)) == ("epilogue", ["mul", "relu", "add"])
    assert "the product before it stays a call of its own" in found.reason


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, w, b: (torch.mm(x, w) + b).relu(), ["add", "relu"]),
        (lambda x, w, b: torch.addmm(b, x, w).relu() * 2.0, ["relu", "mul"]),
        (lambda x, w, b: torch.mm(x, w).relu() + torch.mm(x, w + 1.0), ["relu", "add"]),
    ],
    ids=["bias and activation", "activation", "residual"],
)
def test_what_a_product_and_the_calls_behind_it_would_save(
    graph: dtorch.Graph, function: Any, expected: list[str], mode: str
) -> None:
    given = [dtorch.Tensor(t, graph=graph) for t in (LARGE, torch.rand(1024, 256), torch.rand(256))]
    with dtorch.optimize(mode):
        found = [c for c in regions(function, *given) if c.kind == "epilogue"]
    (one,) = found
    products = 2 if expected[-1] == "add" and expected[0] == "relu" else 1
    assert names(one) == expected
    assert one.reason.endswith(": it is no larger than two blocks")
    assert f"({products * 2 * 512 * 256 * 4:,} bytes, {products} calls)" in one.reason
    assert one.unfused_ns > 0


def test_norms_and_softmax_under_fast_alone(graph: dtorch.Graph) -> None:
    def norm(x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def softmax(x: Any) -> Any:
        return torch.softmax(x * 0.5, -1) * 2.0

    x = on(graph)
    assert [names(c) for c in regions(norm, x)] == [["add", "rsqrt", "mul"]]
    with dtorch.optimize("fast"):
        (found,) = regions(norm, x)
        assert (found.kind, names(found)) == ("norm", ["mul", "mean", "add", "rsqrt", "mul"])
        (found,) = regions(softmax, x)
        assert (found.kind, names(found)) == ("softmax", ["mul", "_softmax", "mul"])


@pytest.mark.parametrize(
    ("function", "expected", "why"),
    [
        (lambda x: (x * 2.0 + 1.0).exp(), [["mul", "add"]], "compiled it rounds otherwise"),
        (lambda x: (x * 2.0 + 1.0).sum(0), [["mul", "add"]], "compiled it sums in another order"),
        (lambda x: (x * 2.0 + 1.0).t(), [["mul", "add"]], "it gives a view"),
        (
            lambda x: (x * 2.0 + 1.0).redistribute(placements=[Replicate()]),
            [["mul", "add"]],
            "it communicates",
        ),
        (lambda x: torch.lerp(x * 2.0 + 1.0, x, 0.3), [["mul", "add"]], "weight is a number"),
        (lambda x: (x * 2.0 + 1.0).clamp_(0.1), [["mul", "add"]], "it writes"),
    ],
)
def test_where_a_region_ends(graph: dtorch.Graph, function: Any, expected: Any, why: str) -> None:
    found = regions(function, on(graph))
    assert [names(c) for c in found] == expected
    assert why in found[0].reason


def test_a_number_that_torch_takes_alone_is_handed_over_as_a_tensor(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: torch.add(x * 2.0 + 1.0, x, alpha=0.3), on(graph))
    assert names(found) == ["mul", "add", "add"]


def test_a_write_ends_regions_that_read_what_it_may_write(graph: dtorch.Graph) -> None:
    def function(x: Any) -> Any:
        y = x * 2.0 + 1.0
        x.neg_()
        return (y + x).relu() * 2.0

    assert [names(c) for c in regions(function, on(graph))] == [["mul", "add"], ["add", "relu", "mul"]]


def test_several_readers_and_results_that_are_wanted(graph: dtorch.Graph) -> None:
    def function(x: Any) -> Any:
        y = x * 2.0
        z = y.relu()
        return y + z, z

    (found,) = regions(function, on(graph))
    assert (names(found), len(found.outputs)) == (["mul", "relu", "add"], 2)


def test_two_regions_meet(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: (x * 2.0).relu() + (x - 1.0).sigmoid(), on(graph))
    assert names(found) == ["mul", "relu", "sub", "sigmoid", "add"]


def test_small_regions_are_refused_by_price(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: x * 2.0 + 1.0, on(graph, SMALL))
    assert not found.fused
    assert found.reason.startswith("saves less than one part in 8")


def test_off(graph: dtorch.Graph) -> None:
    with dtorch.optimize("off"):
        assert regions(lambda x: x * 2.0 + 1.0, on(graph)) == []
    with dtorch.passes(fusion=False):
        assert regions(lambda x: x * 2.0 + 1.0, on(graph)) == []


def test_a_plan_and_its_candidates_keep_no_draft(graph: dtorch.Graph) -> None:
    found = regions(lambda x: (x * 2.0).relu() + 1.0, on(graph))
    gc.collect()
    assert found
    assert not [held for held in gc.get_objects() if type(held) is Draft]


def test_prices_are_whole_numbers_and_stable(graph: dtorch.Graph) -> None:
    x = on(graph)
    first = regions(lambda x: (x * 2.0).relu() + 1.0, x)
    cache.forget()
    again = regions(lambda x: (x * 2.0).relu() + 1.0, x)
    assert [(c.nodes, c.unfused_ns, c.fused_ns, c.fused, c.reason) for c in first] == [
        (c.nodes, c.unfused_ns, c.fused_ns, c.fused, c.reason) for c in again
    ]
    assert all(type(c.unfused_ns) is int and type(c.fused_ns) is int for c in first)


@pytest.mark.parametrize("chip", [15_000, 60_000])
def test_where_caches_are_no_faster_less_is_saved(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch, chip: int
) -> None:
    measured = Rates(ASSUMED.call_ns, chip, ASSUMED.memory, ASSUMED.cache_bytes)
    monkeypatch.setattr(rates, "measured", lambda: measured)
    (found,) = regions(lambda x: (x * 2.0).relu() + 1.0, on(graph))
    moved = LARGE.nbytes * 1000 // chip  # half of each, read and written: the sum over its operand too
    unfused = 3 * (measured.call_ns + moved)
    assert found.unfused_ns == 2 * unfused  # two devices in one process, one after the other
    assert found.fused


def test_compiled_code_that_is_faster_than_the_kernel_is_worth_it(graph: dtorch.Graph) -> None:
    """Two calls whose bytes are in the caches: what is saved is arithmetic."""
    with dtorch.optimize("fast"):
        (found,) = regions(lambda x: x.sqrt() / 3.0, on(graph))
    assert found.fused
    saved = ASSUMED.element_ps["aten.sqrt"] - ASSUMED.compiled_ps["aten.sqrt"]
    calls = 2 * (ASSUMED.region_ns + 2 * ASSUMED.input_ns)  # of compiled code, on two devices
    assert found.saving_ns > LARGE.numel() * saved // 1000 - calls


def test_the_price_of_calls_is_that_of_the_plan_without_the_region(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `reuse` writes over operands, and that alone, takes half the memory: it may stay in the caches."""
    step = lambda x: (x * 2.0).relu() + 1.0  # noqa: E731
    cached = replace(ASSUMED, cache_bytes=LARGE.nbytes // 2)  # what one shard takes, but not two
    monkeypatch.setattr(rates, "measured", lambda: cached)
    (over,) = regions(step, on(graph))
    with dtorch.passes(reuse=False):
        (fresh,) = regions(step, on(graph))
    with dtorch.passes(fusion=False), cache.watched() as plans:
        for _ in range(2):
            found = step(on(graph))
            graph.sync()
    del found
    reused = [change.node for change in plans[-1].rewritten.changes if change.by == "reuse"]
    assert reused == [2]
    now = rates.present()
    saved = now.moved_ns(LARGE.nbytes) - now.moved_ns(LARGE.nbytes, LARGE.nbytes // 2)
    assert saved > 0
    assert fresh.unfused_ns - over.unfused_ns == 2 * saved  # of two devices


def test_cost_of_the_operator(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: (x * 2.0).relu() + 1.0, on(graph))
    fuse = found.operator
    assert fuse is not None
    assert fuse.type == "Fuse"
    assert fuse.get_operator_cost() == dtorch.OperatorCost.memory(2 * LARGE.nbytes)
    assert fuse.price().traffic_bytes == 2 * LARGE.nbytes
    assert fuse.local_price((0,)).traffic_bytes == LARGE.nbytes
    assert fuse.price_max().traffic_bytes == LARGE.nbytes


def test_to_bytes_and_back(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: (x * 2.0).relu() + 1.0, on(graph))
    fuse = found.operator
    assert fuse is not None
    for back in (Operator.from_bytes(fuse.to_bytes()), Operator.from_json(fuse.to_json())):
        assert isinstance(back, Fuse)
        assert back.describe() == fuse.describe()
        assert back.price() == fuse.price()
        assert back.to_bytes() == fuse.to_bytes()


def test_it_runs_as_an_operator(graph: dtorch.Graph) -> None:
    (found,) = regions(lambda x: (x * 2.0).relu() + 1.0, on(graph))
    fuse = found.operator
    assert fuse is not None
    x = on(graph)
    numbers = [dtorch.op.operand.Scalar(v) for v in (2.0, 1.0)]
    given = iter(numbers)
    inputs = [x._operand if spec is not None else next(given) for spec in fuse.given]
    runner = graph.constructor.runner
    parts = runner.prepare(fuse, fuse.layouts).run([operand.parts for operand in inputs])
    assert torch.equal(torch.cat(parts[0]), (LARGE * 2.0).relu() + 1.0)


@pytest.mark.parametrize("seed", range(cases(10)))
def test_fusing_changes_no_flops(seed: int) -> None:
    """Of random programs, every stretch of calls that may be one operator has the FLOPs of the calls."""
    with cache.watched() as plans, dtorch.optimize("fast"):
        Program(seed, eager=False).run(24)
        Program(seed, eager=False).run(24)
    for plan in plans:
        structure = plan.structure
        for candidate in plan.rewritten.candidates:
            if not candidate.outputs:
                continue
            fuse = fuse_of(structure, candidate)
            calls = [structure.recipes[node].operator for node in candidate.nodes]
            assert (fuse.price().flops or 0) == sum(call.price().flops or 0 for call in calls)
            assert fuse.price().traffic_bytes <= sum(call.price().traffic_bytes or 0 for call in calls)
