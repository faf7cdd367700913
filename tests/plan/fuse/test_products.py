"""Products that a region takes in: which, where they are cut, to which bits, and why others stay outside."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Partial, Replicate, Shard
from dtorch.inductor.listing import compute
from dtorch.inductor.region import Region
from dtorch.op.operator import Operator
from dtorch.plan import cache
from dtorch.plan.codegen import Plan
from dtorch.plan.fuse import blocked, price
from dtorch.plan.fuse.candidate import Candidate, fuse_of
from dtorch.plan.fuse.rates import ASSUMED
from dtorch.plan.fuse.region import Waiting

MESH = DeviceMesh("cpu", [0, 1])
ONE = DeviceMesh("cpu", [0])
THREE = DeviceMesh("cpu", [0, 1, 2])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows, whatever they save."""
    monkeypatch.setattr(blocked, "BLOCK_BYTES", 16 * 64 * 4)
    monkeypatch.setattr(blocked, "LEAST_ROWS", 16)
    monkeypatch.setattr(price, "pays", lambda unfused, fused: True)
    monkeypatch.setattr(Waiting, "tick", _at_once)


def _at_once(waiting: Waiting) -> bool:
    waiting.start()
    return all(call.has_ended for call in waiting.calls)


@pytest.fixture
def by_blocks(ended: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    """Regions run by blocks, but for the compiler; those that did."""
    ran: list[Region] = []
    code: dict[int, Any] = {}
    start = Region.start

    def listed(region: Region) -> Region:
        if region.blocks is not None:  # listed on another thread, as by the compiler
            with ThreadPoolExecutor(1) as pool:
                parts = pool.submit(region.blocks.listed, region.inputs).result()
            code[id(region)] = parts.around(compute(parts.rest))
        return start(region)

    def call(region: Region, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        made = code.get(id(region), region.function)(inputs)
        if id(region) in code:
            ran.append(region)
        return list(made)

    monkeypatch.setattr(Region, "start", listed)
    monkeypatch.setattr(Region, "__call__", call)
    return ran


def given(graph: dtorch.Graph, *tensors: torch.Tensor, mesh: DeviceMesh = ONE) -> list[dtorch.Tensor]:
    """Tensors on one mesh; the first one is cut along its first dim."""
    cut = [Shard(0) if mesh.size > 1 and i == 0 else Replicate() for i in range(len(tensors))]
    return [dtorch.Tensor(t, mesh, [p], graph=graph) for t, p in zip(tensors, cut, strict=True)]


def plan_of(function: Any, *tensors: dtorch.Tensor) -> Plan:
    with cache.watched() as plans:
        for _ in range(2):
            found = function(*tensors)
            tensors[0].graph.sync()
    del found
    return plans[-1]


def candidate(function: Any, *tensors: dtorch.Tensor) -> Candidate:
    (found,) = plan_of(function, *tensors).rewritten.candidates
    return found


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape))).to(dtype)


def test_a_product_and_what_follows_are_one_operator(graph: dtorch.Graph) -> None:
    x, w, b = randn(4096, 64), randn(64, 4096), randn(4096)
    tensors = given(graph, x, w, b)
    plan = plan_of(lambda x, w, b: (x @ w + b).relu(), *tensors)
    (found,) = plan.rewritten.candidates
    assert (found.kind, found.fused, found.by_blocks) == ("epilogue", True, True)
    assert found.reason == "ends with the sequence; with the product, in blocks of 128"
    fuse = fuse_of(plan.structure, found)
    assert fuse.describe().endswith("calls=3, dominant=Matmul)")
    assert fuse.flops() == 2 * 4096 * 64 * 4096
    y = 4096 * 4096 * 4
    assert fuse.price().traffic_bytes == x.nbytes + w.nbytes + b.nbytes + y
    calls = [plan.structure.recipes[node].operator for node in found.nodes]
    assert sum(call.price().traffic_bytes or 0 for call in calls) - (fuse.price().traffic_bytes or 0) == 4 * y
    assert Operator.from_bytes(fuse.to_bytes()).price() == fuse.price()


PROGRAMS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "bias and activation": (lambda x, w, b: (x @ w + b).relu(), ((121, 20), (20, 64), (64,))),
    "activation": (lambda x, w: torch.relu(x @ w), ((121, 20), (20, 64))),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w).relu() * 2.0, ((121, 20), (20, 64), (64,))),
    "addmm of rows": (
        lambda x, w, b: torch.addmm(b, x, w, alpha=0.5).neg(),
        ((121, 20), (20, 64), (121, 64)),
    ),
    "gate": (lambda x, w, m: torch.relu(x @ w) * m, ((121, 20), (20, 64), (121, 64))),
    "a column": (lambda x, w, m: (x @ w) * m + 1.0, ((121, 20), (20, 64), (121, 1))),
    "one row": (lambda x, w, m: (x @ w) * (m + 1.0), ((121, 20), (20, 64), (1, 64))),
    "residual": (lambda x, w: x + torch.relu(x @ w), ((121, 64), (64, 64))),
    "two results": (lambda x, w: ((y := x @ w * 2.0), y.relu()), ((121, 20), (20, 64))),
    "transposed weight": (lambda x, w: (x @ w.t()).relu() - 1.0, ((121, 20), (64, 20))),
    "transposed rows": (lambda x, w: (x.t() @ w).relu() - 1.0, ((20, 121), (20, 64))),
    "batch": (lambda q, k, m: torch.bmm(q, k) * 0.125 + m, ((8, 16, 8), (8, 8, 64), (16, 64))),
    "batch with a mask for each": (
        lambda q, k, m: torch.bmm(q, k.transpose(1, 2)) * 0.125 + m,
        ((8, 16, 8), (8, 64, 8), (8, 1, 64)),
    ),
    "batch of one": (lambda q, k: torch.bmm(q, k).relu(), ((1, 121, 8), (1, 8, 64))),
    "baddbmm": (lambda q, k, m: torch.baddbmm(m, q, k).relu(), ((8, 16, 8), (8, 8, 64), (8, 16, 64))),
    "more dims behind": (lambda x, w, z: x @ w + z, ((121, 20), (20, 64), (3, 121, 64))),
}


NOT_ROWS = ("batch of one", "transposed rows")
"""Programs whose first tensor has no rows in its first dim: one device makes them."""

CASES = [(name, size) for name in PROGRAMS for size in (1, 2, 3) if size == 1 or name not in NOT_ROWS]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_the_bits_are_those_of_the_calls(
    name: str, size: int, graph: dtorch.Graph, small: None, by_blocks: list[Region]
) -> None:
    """Uneven shards, blocks that overlap, operands that lie otherwise, and more than one result."""
    function, shapes = PROGRAMS[name]
    mesh = {1: ONE, 2: MESH, 3: THREE}[size]
    full = [randn(*shape) for shape in shapes]
    tensors = given(graph, *full, mesh=mesh)
    for _ in range(4):
        found = function(*tensors)
        found = found if isinstance(found, tuple) else (found,)
        made = [y.to_torch() for y in found]
        del found
    expected = function(*full)
    for mine, theirs in zip(made, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    if name != "residual" or size == 1:
        assert by_blocks
    at_once = dtorch.Graph()
    at_once.constructor.eager = True
    parted = function(*given(at_once, *full, mesh=mesh))
    for mine, theirs in zip(made, parted if isinstance(parted, tuple) else (parted,), strict=True):
        assert torch.equal(mine, theirs.to_torch())
    assert all(len(region.blocks.cut.starts) > 1 for region in by_blocks if region.blocks is not None)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: torch.softmax((x @ w) * 0.5, -1), ((75, 20), (20, 64))),
        (lambda q, k: torch.softmax(torch.bmm(q, k) * 0.125, -1), ((5, 16, 8), (5, 8, 64))),
        (lambda x, w: torch.nn.functional.layer_norm(x @ w, (64,)) * 2.0, ((75, 20), (20, 64))),
        (lambda x, w: (x @ w).relu().mean(-1, keepdim=True) + 1.0, ((75, 20), (20, 64))),
    ],
    ids=["softmax", "scores", "norm", "mean of rows"],
)
def test_reductions_of_rows(
    function: Any, shapes: Any, graph: dtorch.Graph, small: None, by_blocks: list[Region]
) -> None:
    full = [randn(*shape) for shape in shapes]
    with dtorch.optimize("fast"):
        for _ in range(4):
            made = function(*given(graph, *full)).to_torch()
    assert by_blocks
    torch.testing.assert_close(made, function(*full), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("function", "shapes", "why"),
    [
        (lambda x, w: ((y := x @ w), y.relu() + 1.0), ((75, 20), (20, 64)), "somebody else reads it"),
        (lambda x, w: (x @ w).relu() + 1.0, ((75, 20), (20, 63)), "it has fewer than 64 columns"),
        (lambda x, w: (x @ w).relu() + 1.0, ((20, 20), (20, 64)), "it is no larger than two blocks"),
        (lambda x, w: (x @ w).relu() + 1.0, ((1, 20), (20, 64)), "it is no larger than two blocks"),
        (lambda x, w: (x @ x).relu() + 1.0, ((75, 75), (75, 75)), "it reads one operand twice"),
        (
            lambda x, w: (x @ w).relu() + w,
            ((75, 75), (75, 75)),
            "one operand is read both whole and in blocks",
        ),
        (
            lambda x, w: ((x @ w).relu(), (w + 1.0)[0] * 1.0)[0] + (w[0] * 2.0),
            ((75, 20), (20, 64)),
            "",
        ),
    ],
)
def test_what_is_not_taken_in(
    function: Any, shapes: Any, why: str, graph: dtorch.Graph, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = given(graph, *(randn(*shape) for shape in shapes))
    if not why:
        assert any(c.by_blocks for c in plan_of(function, *tensors).rewritten.candidates)
        return
    found = candidate(function, *tensors)
    assert not found.by_blocks
    assert "the product before it stays a call of its own" in found.reason
    assert found.reason.endswith(why)


def test_few_columns_on_each_device(graph: dtorch.Graph, small: None) -> None:
    x = dtorch.Tensor(randn(121, 20), MESH, [Replicate()], graph=graph)
    w = dtorch.Tensor(randn(20, 64), MESH, [Shard(1)], graph=graph)
    assert candidate(lambda x, w: (x @ w).relu() + 1.0, x, w).reason.endswith("fewer than 64 columns")


def test_a_reduction_over_what_is_cut(graph: dtorch.Graph, small: None) -> None:
    with dtorch.optimize("fast"):
        found = candidate(
            lambda x, w: torch.softmax((x @ w) * 2.0, 0), *given(graph, randn(75, 20), randn(20, 64))
        )
    assert not found.by_blocks
    assert found.reason.endswith("Softmax needs more than a block")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_outside(graph: dtorch.Graph, small: None, dtype: torch.dtype) -> None:
    tensors = given(graph, randn(75, 20, dtype=dtype), randn(20, 64, dtype=dtype))
    found = candidate(lambda x, w: (x @ w).relu() + 1.0, *tensors)
    assert not found.by_blocks
    assert found.reason.endswith(f"it is in {str(dtype).removeprefix('torch.')}")


def test_a_view_in_between(graph: dtorch.Graph, small: None) -> None:
    tensors = given(graph, randn(121, 20), randn(20, 64))
    (found,) = plan_of(lambda x, w: (x @ w).view(11, 11, 64).relu() + 1.0, *tensors).rewritten.candidates
    assert found.reason.endswith("the product before it stays a call of its own: it is read as a view")


def test_a_write_in_between(graph: dtorch.Graph, small: None) -> None:
    def function(x: Any, w: Any) -> Any:
        y = x @ w
        x.neg_()
        return y.relu() + 1.0

    found = candidate(function, *given(graph, randn(75, 20), randn(20, 64)))
    assert not found.by_blocks
    assert found.reason.endswith("what it reads is written before the region runs")


@pytest.mark.parametrize("rows", [2, 70])
def test_shards_that_are_empty_or_small(
    graph: dtorch.Graph, small: None, by_blocks: list[Region], rows: int
) -> None:
    """Two rows for three devices; and 24, 24, 22, none of which is two blocks."""
    x, w = randn(rows, 20), randn(20, 64)
    tensors = given(graph, x, w, mesh=THREE)
    for _ in range(4):
        made = ((tensors[0] @ tensors[1]).relu() + 1.0).to_torch()
    assert not by_blocks
    torch.testing.assert_close(made, (x @ w).relu() + 1.0)


def partial_product(graph: dtorch.Graph) -> list[dtorch.Tensor]:
    """Operands whose product each device has a summand of."""
    x, w = randn(75, 20), randn(20, 64)
    return [
        dtorch.Tensor(x, MESH, [Shard(1)], graph=graph),
        dtorch.Tensor(w, MESH, [Shard(0)], graph=graph),
    ]


def test_a_product_that_devices_sum_first(graph: dtorch.Graph, small: None, by_blocks: list[Region]) -> None:
    x, w = partial_product(graph)
    assert (x @ w).placements == [Partial()]
    function = lambda x, w: (x @ w).relu() + 1.0  # noqa: E731
    for _ in range(4):
        made = function(x, w).to_torch()
    found = candidate(function, x, w)
    assert not found.by_blocks
    assert not by_blocks
    assert found.reason.endswith("stays a call of its own: devices exchange what it gives")
    torch.testing.assert_close(made, function(x.to_torch(), w.to_torch()))


def test_summands_that_stay_summands(graph: dtorch.Graph, small: None, by_blocks: list[Region]) -> None:
    x, w = partial_product(graph)
    for _ in range(4):
        made = (-((x @ w) * 2.0)).to_torch()
    assert by_blocks
    torch.testing.assert_close(made, -(x.to_torch() @ w.to_torch() * 2.0))


def test_captured(graph: dtorch.Graph, small: None, by_blocks: list[Region]) -> None:
    """A number that changes from step to step is handed over beside the blocks."""
    x, w = given(graph, randn(121, 20), randn(20, 64))
    step = dtorch.capture(lambda x, w, a: (x @ w * a).relu())
    for i in range(8):
        assert torch.equal(step(x, w, 2.0 + i).to_torch(), (x.to_torch() @ w.to_torch() * (2.0 + i)).relu())
    assert step.stats().replays
    assert by_blocks


def test_the_price_decides(graph: dtorch.Graph) -> None:
    """A product whose arithmetic outweighs the bytes: 2 m n k operations, and a result of m n."""
    x, w = given(graph, randn(1024, 2048), randn(2048, 1024))
    found = candidate(lambda x, w: (x @ w).relu() + 1.0, x, w)
    assert found.fused
    assert not found.by_blocks
    assert found.reason.endswith(f"which saves less than one part in {price.LEAST_SHARE}")
    assert "by blocks both take" in found.reason


def test_blocks_have_their_price() -> None:
    """Calls for each block, and the other operand once more for each but the first."""
    graph = dtorch.Graph()
    x, w, b = given(graph, randn(4096, 64), randn(64, 4096), randn(4096))
    plan = plan_of(lambda x, w, b: (x @ w + b).relu(), x, w, b)
    (found,) = plan.rewritten.candidates
    work = 2 * 4096 * 64 * 4096 * 1000 // ASSUMED.flops
    result = 4096 * 4096 * 4
    assert found.fused_ns > work + result * 1000 // ASSUMED.memory
    assert found.fused_ns < work + result * 1500 // ASSUMED.memory
    assert found.unfused_ns > work + result * 1000 // ASSUMED.fresh + 2 * result * 1000 // ASSUMED.memory


@pytest.mark.compiler
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_really_compiled(graph: dtorch.Graph, small: None, mode: str) -> None:
    full = [randn(75, 20), randn(20, 64), randn(64)]
    function = lambda x, w, b: (x @ w + b).relu() * 2.0  # noqa: E731
    with dtorch.optimize(mode):
        tensors = given(graph, *full, mesh=MESH)
        plan = plan_of(function, *tensors)
        assert plan.waiting is not None
        plan.waiting.start()
        done = [region.wait(120) for call in plan.waiting.calls for region in call.regions.values()]
        assert all(done), [call.why() for call in plan.waiting.calls]
        made = function(*tensors).to_torch()
        assert "Fuse" in [operator.type for operator in plan_of(function, *tensors).operators]
    at_once = dtorch.Graph()
    at_once.constructor.eager = True
    assert torch.equal(made, function(*given(at_once, *full, mesh=MESH)).to_torch())
