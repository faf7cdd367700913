"""Replays that write large results into memory they keep: the same bits, and nothing changed that is held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dtorch
from dtorch import DeviceMesh, Replicate, Shard
from dtorch.errors import OperatorError
from dtorch.plan.passes import kept
from tests.plan.passes.test_reuse import CALLS as ELEMENT_WISE
from tests.plan.passes.test_reuse import call as element_wise

pytestmark = pytest.mark.recorded

MESH, ALONE = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [0], mesh_dim_names=("dp",))
FULL = torch.linspace(0.1, 0.9, 4 * 6).reshape(4, 6)
CALLS: dict[str, Any] = {
    "_log_softmax": lambda x: F.log_softmax(x, 1),
    "_softmax": lambda x: F.softmax(x, 0),
    "addmm": lambda x: torch.addmm(x, x.mm(x.t()), x),
    "baddbmm": lambda x: torch.baddbmm(x[None], x.mm(x.t())[None], x[None], alpha=0.5),
    "bmm": lambda x: x[None].bmm(x.t()[None]),
    "mm": lambda x: x.t().mm(x),
}


def replayed(function: Callable[..., Any], *given: Any) -> Any:
    """A capture that has been replayed once."""
    step = dtorch.capture(function)
    step.capture(*given)
    step(*given)
    assert step.stats().replays == 1
    return step


def keeps(step: Any) -> int:
    """How many calls of the plan that is replayed write into kept memory."""
    (course,) = step._courses.values()
    return sum(change.by == "kept" for change in course.programs[0].plan.rewritten.changes)


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize("name", sorted(n.removeprefix("aten.") for n in kept.INTO))
def test_every_operator_on_two_devices(name: str, placement: Any) -> None:
    function = CALLS.get(name) or (lambda x: element_wise(name, x, x))
    expected = function(FULL)
    step = replayed(function, dtorch.Tensor(FULL, MESH, [placement]))
    for _ in range(3):
        found = step(dtorch.Tensor(FULL, MESH, [placement])).to_torch()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted({*CALLS, *ELEMENT_WISE, "exp"}))
def test_one_device_has_the_bits_of_torch(name: str) -> None:
    function = CALLS.get(name) or (lambda x: element_wise(name, x, x))
    x = dtorch.Tensor(FULL, ALONE, [Replicate()])
    step = replayed(function, x)
    assert keeps(step) >= 1
    for _ in range(3):
        found = step(x).to_torch()
        assert torch.equal(found, function(FULL))
        assert found.stride() == function(FULL).stride()


@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_gradient_of_a_table(padding: int, dtype: torch.dtype) -> None:
    def function(rows: Any, ids: Any) -> Any:
        return torch.ops.aten.embedding_dense_backward(rows, ids, 50, padding, False)

    ids = torch.randint(0, 20, (2, 500))
    rows = torch.randn(2, 500, 40).mul(10 ** torch.randint(-3, 4, (2, 500, 1)).float()).to(dtype)
    given = [dtorch.Tensor(t, ALONE, [Replicate()]) for t in (rows, ids)]
    step = replayed(function, *given)
    assert keeps(step) == (dtype.itemsize >= 4)
    for _ in range(2):
        assert torch.equal(step(*given).to_torch(), function(rows, ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm", "_softmax", "_log_softmax"])
def test_large_results_have_the_bits_of_torch(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(96, 96).to(dtype)
    step = replayed(CALLS[name], dtorch.Tensor(x, ALONE, [Replicate()]))
    for _ in range(3):
        assert torch.equal(step(dtorch.Tensor(x, ALONE, [Replicate()])).to_torch(), CALLS[name](x))


def test_a_result_that_is_held_stays_and_one_that_is_not_gives_its_memory() -> None:
    x = dtorch.Tensor(FULL, ALONE, [Replicate()])
    step = replayed(lambda x, a: x * a, x, 2.0)
    held = [step(x, float(a)) for a in range(5)]
    for a, y in enumerate(held):
        assert torch.equal(y.to_torch(), FULL * a)
    del held, y
    first = step(x, 1.0)._operand.parts[0].data_ptr()
    assert first == step(x, 3.0)._operand.parts[0].data_ptr()
    assert step.stats().bytes_held >= FULL.nbytes


def test_held_memory_is_let_go_with_the_capture_and_grows_with_no_replay() -> None:
    x = dtorch.Tensor(FULL, ALONE, [Replicate()])
    step = replayed(lambda x: (x * 2.0).exp().sum(0), x)
    counts = set()
    for _ in range(6):
        step(x)
        counts.add(step.stats().bytes_held)
    assert len(counts) == 1
    assert max(counts) <= 2 * FULL.nbytes


def training(*, captured: bool, zero: bool = True) -> tuple[Any, torch.nn.Module]:
    torch.manual_seed(0)
    model = dtorch.parallelize(torch.nn.Linear(6, 3), ALONE, {})

    def step(x: torch.Tensor) -> torch.Tensor:
        if zero:
            model.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss.detach()

    return dtorch.capture(step) if captured else step, model


@pytest.mark.parametrize("zero", [True, False])
def test_gradients_that_the_program_holds_stay(zero: bool) -> None:
    step, model = training(captured=True, zero=zero)
    again, other = training(captured=False, zero=zero)
    held, expected = [], []
    for i in range(8):
        x = dtorch.Tensor(FULL * (i + 1), ALONE, [Replicate()])
        assert torch.equal(step(x).to_torch(), again(x).to_torch())
        held.append(model.weight.grad)
        expected.append(other.weight.grad.to_torch().clone())
    for mine, theirs in zip(held, expected, strict=True):
        assert zero is False or torch.equal(mine.to_torch(), theirs)
    assert torch.equal(held[-1].to_torch(), expected[-1])
    assert step.stats().replays >= 4


def test_where_a_replay_fails_its_gradients_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    step, model = training(captured=True)
    x = dtorch.Tensor(FULL, ALONE, [Replicate()])
    step.capture(x)
    step(x)
    (course,) = step._courses.values()
    program = course.programs[0]

    def fail(values: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(program, "_run", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        step(x)
    with pytest.raises((RuntimeError, OperatorError), match="out of memory"):
        model.weight.grad.to_torch()
    monkeypatch.undo()
    step(x)
    assert model.weight.grad.to_torch().abs().sum() > 0


def test_switched_off() -> None:
    x = dtorch.Tensor(FULL, ALONE, [Replicate()])
    with dtorch.passes(kept=False):
        assert keeps(replayed(lambda x: x * 2.0, x)) == 0
    assert keeps(replayed(lambda x: x * 2.0, x)) == 1


def test_small_results_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MIN_BYTES", FULL.nbytes + 1)
    x = dtorch.Tensor(FULL, ALONE, [Replicate()])
    assert keeps(replayed(lambda x: x * 2.0, x)) == 0
