"""Optimizers, clipping, state, memory, replays.

fused and foreach optimizers with mixed meshes and the scalar step
    `tests/ops/test_optimizer.py`, `test_three_steps_on_two_meshes`
cost of a tiny optimizer step; foreach redistributes one by one
    budgets: `benchmarks/`; `test_a_step_sends_nothing`
safe loading, deepcopy, pickle
    `tests/test_state.py`, `test_copies`
saving one shard writes the whole tensor
    `tests/test_state.py::test_one_shard_on_disk_is_no_larger_than_the_shard`,
    `test_a_shard_holds_itself_alone`
the full copy sits on a device first
    `test_factories_make_parts_alone`
right at once, wrong when recorded or replayed
    `test_at_once_recorded_and_replayed`, `tests/plan/`
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch import Replicate, Shard
from dtorch.graph.graph import Graph
from tests.dist import outcome, place, plain, ways
from tests.hazards.cases import kinds_sent, mesh_of

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "adam foreach": lambda p: torch.optim.Adam(p, 0.1, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, 0.1, fused=True),
    "adamw loop": lambda p: torch.optim.AdamW(p, 0.1, foreach=False),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.1, fused=True, amsgrad=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_steps_on_two_meshes(name: str) -> None:
    values = [torch.randn(5, 3), torch.randn(4), torch.randn(2, 2), torch.randn(3)]
    plain_ones = [torch.nn.Parameter(v.clone()) for v in values]
    where = [((2,), ("S0",)), ((2,), ("R",)), ((2, 2), ("S0", "S1"))]
    placed: list[Any] = [torch.nn.Parameter(place(v, *w)) for v, w in zip(values, where, strict=False)]
    placed.append(torch.nn.Parameter(values[3].clone()))
    optimizers = [OPTIMIZERS[name](p) for p in (plain_ones, placed)]
    for step in range(3):
        for params in (plain_ones, placed):
            for p in params:
                p.grad = None
                (p * p.detach().cos() * (step + 1)).sum().backward()
            torch.nn.utils.clip_grad_value_(params, 0.5)
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(placed, plain_ones, strict=True):
        torch.testing.assert_close(plain(a).detach(), b.detach(), rtol=1e-6, atol=1e-6)
    assert [list(p.placements) for p in placed[:3]] == [[Shard(0)], [Replicate()], [Shard(0), Shard(1)]]


def test_a_step_sends_nothing() -> None:
    module = torch.nn.Linear(32, 5)
    dtorch.parallelize(module, mesh_of(4), {"weight": ["S1"], "bias": ["R"]})
    for make in OPTIMIZERS.values():
        module(dtorch.Tensor(torch.randn(2, 32), device_mesh=mesh_of(4))).sum().backward()
        optimizer = make(module.parameters())
        assert not kinds_sent(optimizer.step)
        optimizer.zero_grad()


@pytest.mark.parametrize("places", ways(2, (2,)), ids="".join)
def test_copies(places: Any) -> None:
    full = torch.randn(5, 3)
    leaf = torch.nn.Parameter(place(full, (2,), places))
    (leaf * leaf).sum().backward()
    file = io.BytesIO()
    torch.save({"x": leaf}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["x"]
    for twin in (copy.deepcopy(leaf), pickle.loads(pickle.dumps(leaf)), loaded):
        assert isinstance(twin, torch.nn.Parameter)
        assert twin.requires_grad
        assert twin.placements == leaf.placements
        with torch.no_grad():
            twin.add_(1)
        torch.testing.assert_close(twin.detach().to_torch(), full + 1)
    torch.testing.assert_close(leaf.detach().to_torch(), full)
    assert torch.equal(copy.deepcopy(leaf).grad.to_torch(), leaf.grad.to_torch())


def _bytes_held(x: dtorch.Tensor) -> list[int]:
    """Storage of each device's part."""
    return [part.untyped_storage().nbytes() for part in Graph.default_graph().parts(x._operand)]


@pytest.mark.parametrize(
    "make",
    [
        lambda m: dtorch.Tensor(torch.randn(10_000), device_mesh=m, placements=[Shard(0)]),
        lambda m: dtorch.from_torch(torch.randn(10_000), device_mesh=m, placements=[Shard(0)]),
        lambda m: dtorch.randn(10_000, device_mesh=m, placements=[Shard(0)]),
        lambda m: dtorch.Tensor(torch.randn(10_000), device_mesh=m).redistribute(placements=[Shard(0)]),
        lambda m: dtorch.zeros(10_000, device_mesh=m, placements=[Shard(0)]) + 1,
    ],
)
def test_a_shard_holds_itself_alone(make: Callable[[Any], Any]) -> None:
    x = make(mesh_of(10))
    assert _bytes_held(x) == [4000] * 10
    file = io.BytesIO()
    torch.save(x.to_local(3), file)
    assert file.tell() < 8000


@pytest.mark.parametrize("factory", [dtorch.zeros, dtorch.ones, dtorch.empty])
def test_factories_make_parts_alone(factory: Any) -> None:
    """What would be 64 MiB whole is made part by part."""
    made: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.device.type != "meta":
                made.append(result.untyped_storage().nbytes() if type(result) is torch.Tensor else 0)
            return result

    with Watch():
        x = factory(4096, 4096, device_mesh=mesh_of(4), placements=[Shard(0)])
    assert max(made, default=0) <= 16 * 2**20
    assert _bytes_held(x) == [16 * 2**20] * 4


REPLAYED: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "expand": (lambda x: x[:, :1].expand(-1, 6) * 2, [torch.randn(4, 6).requires_grad_()]),
    "reshape": (lambda x: x.reshape(-1, 3).sin(), [torch.randn(4, 6).requires_grad_()]),
    "index": (lambda x: x[..., 1].exp(), [torch.randn(4, 6).requires_grad_()]),
    "tensor_split": (lambda x: [t.sin() for t in x.tensor_split(3, 1)], [torch.randn(4, 6).requires_grad_()]),
    "embedding": (lambda w: F.embedding(torch.tensor([3, 0, 0]), w), [torch.randn(4, 6).requires_grad_()]),
    "norm between permutes": (
        lambda x: F.layer_norm(x.permute(1, 2, 0), (4,)).permute(2, 0, 1) * 2,
        [torch.randn(4, 6, 2).requires_grad_()],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.parametrize("places", [("R",), ("S0",), ("S1",), ("P",)], ids="".join)
def test_at_once_recorded_and_replayed(name: str, places: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit alike, and another placement, shape or scalar gets its own plan."""
    fn, tensors = REPLAYED[name]
    want = outcome(fn, [t.detach().clone().requires_grad_() for t in tensors])
    runs = []
    for eager in (True, False, False, False):
        monkeypatch.setattr(Graph.default_graph().constructor, "eager", eager)
        runs.append(outcome(fn, [place(t, (2,), places) for t in tensors]))
    for run in runs:
        for a, b in zip(run, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert all(map(torch.equal, run, runs[0]))
    for factor in (1.0, 2.0, 0.5):
        x = place(tensors[0], (2,), ("S0",))
        torch.testing.assert_close((x * factor).tanh().to_torch(), (tensors[0] * factor).tanh())
