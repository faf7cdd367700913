"""Optimizers' updates as regions: which calls, the same bits, and what makes them lie apart no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dtorch
from dtorch import DeviceMesh, Replicate, Shard
from dtorch.errors import OperatorError
from dtorch.inductor.region import Region

pytestmark = pytest.mark.recorded

MESHES = {size: DeviceMesh("cpu", list(range(size)), mesh_dim_names=("dp",)) for size in (1, 2)}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "plain sgd, foreach": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
}
SIZE = 512
"""So that updates are worth fusing, and fill whole vectors."""


class Training:
    def __init__(self, optimizer: str, size: int, captured: bool) -> None:
        torch.manual_seed(0)
        self.mesh = MESHES[size]
        plain = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 64))
        self.model = dtorch.parallelize(plain, self.mesh, {})
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.run = dtorch.capture(self.step) if captured else self.step

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = (self.model(x) - 1.0).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def __call__(self, number: int) -> torch.Tensor:
        full = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(number))
        x = dtorch.Tensor(full, self.mesh, [Shard(0) if self.mesh.size > 1 else Replicate()])
        return self.run(x).to_torch()

    @property
    def state(self) -> list[torch.Tensor]:
        held = [v for state in self.optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
        tensors = [*self.model.parameters(), *held]
        return [t.detach().to_torch() if isinstance(t, dtorch.Tensor) else t for t in tensors]

    @property
    def program(self) -> Any:
        (course,) = self.run._courses.values()  # type: ignore[attr-defined]
        return course.programs[0]

    def regions(self) -> list[list[str]]:
        """The calls of each region that writes."""
        recipes = self.program.plan.structure.recipes
        found = self.program.plan.rewritten.candidates
        found = [c for c in found if any(recipes[n].written for n in c.nodes)]
        assert all(c.kind in ("update", "epilogue") for c in found)
        calls = [[recipes[n] for n in c.nodes] for c in found]
        return [[r.operator.kind_name() + "_" * bool(r.written) for r in region] for region in calls]


def same_steps(mine: Training, theirs: Training, numbers: range) -> None:
    for number in numbers:
        assert torch.equal(mine(number), theirs(number))
        for a, b in zip(mine.state, theirs.state, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_bits_are_those_of_recorded_calls(optimizer: str, size: int, ended: dict[str, Any]) -> None:
    mine, theirs = Training(optimizer, size, True), Training(optimizer, size, False)
    same_steps(mine, theirs, range(10))
    assert mine.run.stats().replays >= 6  # type: ignore[attr-defined]
    assert bool(mine.regions()) == (optimizer != "fused")
    if optimizer != "fused":
        assert ended["calls"]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("adamw", [["Mul_", "Lerp_", "Div_", "Add_", "Addcdiv_"], ["Mul_", "Addcmul_"]]),
        ("adam", [["Add", "Lerp_", "Mul_", "Addcmul_"], ["Div_", "Add_", "Addcdiv_"]]),
        ("sgd", [["Add", "Mul_", "Add_", "Add_"]]),
        ("plain sgd, foreach", [["Add", "Add_"]]),
        ("fused", []),
    ],
)
def test_which_calls_are_a_region(optimizer: str, expected: list[list[str]]) -> None:
    training = Training(optimizer, 1, True)
    for number in range(4):
        training(number)
    found = training.regions()
    assert {tuple(names) for names in found} >= {tuple(names) for names in expected}, found
    reasons = [c.reason for c in training.program.plan.rewritten.candidates if c.kind == "update"]
    assert all(reasons)
    if "adam" in optimizer:
        assert any("Sqrt: compiled it rounds otherwise" in reason for reason in reasons)


def test_calls_that_are_not_captured_write_outside_of_regions(graph: dtorch.Graph) -> None:
    x = dtorch.Tensor(torch.ones(512, 512), MESHES[1], [Replicate()], graph=graph)
    for _ in range(3):
        plan = dtorch.explain(lambda t: t.mul_(0.5).add_(1.0), x).plans[-1]
    assert not plan.rewritten.candidates


def test_state_that_is_put_where_other_state_is(ended: dict[str, Any]) -> None:
    """The order of writes into two parameters counts once they share memory."""
    mine, theirs = Training("sgd", 1, True), Training("sgd", 1, False)
    same_steps(mine, theirs, range(6))
    assert mine.program.plan.facts.apart
    for training in (mine, theirs):
        first = training.model[0].weight
        for state in training.optimizer.state.values():
            if state["momentum_buffer"].shape == first.shape:
                state["momentum_buffer"]._operand.parts = list(first._operand.parts)
    same_steps(mine, theirs, range(6, 9))
    apart = mine.program.plan.facts.apart
    shared = [n for n, s in mine.program.sources.items() if s.which is mine.model[0].weight._operand]
    assert apart.isdisjoint(shared)


def test_where_compiled_code_fails_what_it_writes_says_so(
    ended: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training("sgd", 1, True)
    for number in range(6):
        training(number)
    call = Region.__call__

    def fail(region: Region, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if "Add, Mul" in region.name:
            raise RuntimeError("compiled code fails")
        return call(region, inputs)

    monkeypatch.setattr(Region, "__call__", fail)
    with pytest.raises((RuntimeError, OperatorError), match="compiled code fails"):
        training(6)
    with pytest.raises((RuntimeError, OperatorError), match="compiled code fails"):
        training.model[0].weight.to_torch()


@pytest.mark.compiler
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_really_compiled(optimizer: str) -> None:
    mine, theirs = Training(optimizer, 1, True), Training(optimizer, 1, False)
    same_steps(mine, theirs, range(5))
    mine.run.instantiate()  # type: ignore[attr-defined]
    assert not mine.program.plan.refused
    same_steps(mine, theirs, range(5, 9))
    fused = mine.program.plan.rewritten.fused.values()
    recipes = mine.program.plan.structure.recipes
    assert any(recipes[n].written for call in fused for n in call.candidate.nodes)
    before = list(fused)
    same_steps(mine, theirs, range(9, 12))  # each with other numbers: nothing is compiled anew
    assert list(mine.program.plan.rewritten.fused.values()) == before
