"""Replays by compiled code: the same values, under the mode that allows them, or a reason why not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Replicate, Shard
from dtorch.inductor import worth

F = torch.nn.functional

pytestmark = pytest.mark.recorded


def on(shape: tuple[int, ...], *placements: Any, size: int = 1, seed: int = 0) -> dtorch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    mesh = dtorch.init_device_mesh("cpu", (size,))
    return dtorch.Tensor(values, device_mesh=mesh, placements=list(placements) or [Replicate()])


def replayed(function: Callable[..., Any], *args: Any, mode: str) -> tuple[Any, Any, str]:
    """What a captured function gives before it is compiled and after, and what it says."""
    step = dtorch.capture(function)
    step.capture(*args)
    before = step(*args)
    with dtorch.optimize(mode):
        step.instantiate()
        after = step(*args)
        return before, after, step.why()


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = x * 1.01 + 0.01
    return x


@pytest.mark.compiler
@pytest.mark.parametrize(("size", "placement"), [(1, Replicate()), (2, Shard(0)), (3, Shard(0))])
def test_exact_is_bit_equal(size: int, placement: Any) -> None:
    x = on((64, 32), placement, size=size)
    before, after, why = replayed(chain, x, mode="exact")
    assert why == "replayed: a plan of 8 calls, compiled (exact)"
    assert torch.equal(before.to_torch(), after.to_torch())
    assert torch.equal(after.to_torch(), chain(x.to_torch()))
    assert before.placements == after.placements


@pytest.mark.compiler
def test_communication_is_part_of_the_program() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).redistribute(placements=[Shard(1)]).relu().redistribute(placements=[Replicate()]) - 1

    x = on((6, 4), Shard(0), size=2)
    before, after, why = replayed(run, x, mode="exact")
    assert why.endswith("compiled (exact)"), why
    assert torch.equal(before.to_torch(), after.to_torch())


@pytest.mark.compiler
def test_exact_names_the_operator_that_it_refuses() -> None:
    before, after, why = replayed(lambda x: torch.softmax(x, -1), on((8, 9)), mode="exact")
    text = "not compiled: aten._softmax.default gives other bits when compiled on this build of torch"
    assert why.endswith(text)
    assert torch.equal(before.to_torch(), after.to_torch())


@pytest.mark.compiler
def test_fast_is_within_its_bound_and_ends_with_its_mode() -> None:
    weight, bias = on((32, 16), seed=1), on((32,), seed=2)

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.layer_norm(F.gelu(F.linear(x, weight, bias)), (32,)), -1)

    x = on((8, 16))
    step = dtorch.capture(run)
    step.capture(x)
    before = step(x).to_torch()
    with dtorch.optimize("fast"):
        step.instantiate()
        after = step(x).to_torch()
        assert step.why().endswith("compiled (fast)"), step.why()
    assert (before - after).abs().max() <= 2e-5 * before.abs().max()
    assert torch.equal(step(x).to_torch(), before)
    assert "fast" not in step.why()


@pytest.mark.compiler
def test_the_option_counts_as_it_is_at_each_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    step, x = dtorch.capture(chain), on((8, 16))
    step.capture(x)
    step(x)
    step.instantiate()
    assert step.why().endswith("compiled (exact)"), step.why()
    monkeypatch.setenv("DTORCH_OPTIMIZE", "off")
    step(x)
    assert "compiled" not in step.why()
    monkeypatch.setenv("DTORCH_OPTIMIZE", "exact")
    step(x)
    assert step.why().endswith("compiled (exact)"), step.why()


def test_off_compiles_nothing() -> None:
    before, after, why = replayed(chain, on((4, 4)), mode="off")
    assert why == "replayed: a plan of 8 calls"
    assert torch.equal(before.to_torch(), after.to_torch())


@pytest.mark.compiler
def test_state_is_written_in_place() -> None:
    def made(mode: str) -> torch.Tensor:
        total = on((5, 6), seed=3)

        def add(x: torch.Tensor) -> torch.Tensor:
            total.mul_(0.5).add_(x)
            return total * 2

        step = dtorch.capture(add)
        x = on((5, 6))
        step.capture(x)
        step(x)
        with dtorch.optimize(mode):
            step.instantiate()
            results = [step(x * i).to_torch() for i in range(3)]
            assert mode in ("off", "exact")
            assert step.why().endswith("compiled (exact)") == (mode == "exact"), step.why()
        return torch.stack([*results, total.to_torch()])

    assert torch.equal(made("off"), made("exact"))


def test_numbers_that_change_are_no_input() -> None:
    before, after, why = replayed(lambda x, factor: x * factor, on((4, 4)), 2.0, mode="fast")
    assert torch.equal(before.to_torch(), after.to_torch())
    assert "compiled" not in why or "numbers" in why


@pytest.mark.compiler
def test_it_is_compiled_once_replays_have_taken_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "SPENT_SECONDS", 0.0)
    step = dtorch.capture(chain)
    x = on((64, 32))
    step.capture(x)
    expected = step(x).to_torch()
    region = next(iter(step._courses.values())).programs[0].run._regions["exact"]
    assert step.why().endswith((", waiting to be compiled", ", being compiled", ", compiled (exact)"))
    assert region.state in ("waiting", "compiling", "compiled")
    assert torch.equal(step(x).to_torch(), expected)
    assert region.wait(240), region.why()
    assert torch.equal(step(x).to_torch(), expected)
    assert step.why().endswith("compiled (exact)")


@pytest.mark.compiler
def test_an_index_out_of_range_is_told_as_ever() -> None:
    """A table that is cut is asked for its bounds inside of the compiled code."""
    weight = on((7, 4), Shard(0), size=2)
    mesh = weight.device_mesh

    def look_up(ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, weight) * 2

    ids = dtorch.Tensor(torch.tensor([6, 0, 3]), device_mesh=mesh)
    before, after, why = replayed(look_up, ids, mode="exact")
    assert why.endswith("compiled (exact)"), why
    assert torch.equal(before.to_torch(), after.to_torch())
    step = dtorch.capture(look_up)
    step.capture(ids)
    step(ids)
    step.instantiate()
    assert torch.equal(step(ids).to_torch(), after.to_torch())
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 7"):
        step(dtorch.Tensor(torch.tensor([1, 7, 0]), device_mesh=mesh))


def test_what_rounds_otherwise_ends_with_its_mode() -> None:
    """A plan outlives the mode under which it was captured: passes of "fast" have no part in it."""

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mine, theirs = (torch.mm(z, z.t()).redistribute(placements=[Replicate()]) for z in (x, y))  # type: ignore[attr-defined]
        return mine + theirs

    x, y = on((9, 64), Shard(1), size=2), on((9, 64), Shard(1), size=2, seed=1)
    with dtorch.optimize("exact"):
        expected = run(x, y).to_torch()
    step = dtorch.capture(run)
    with dtorch.optimize("fast"):
        step.capture(x, y)
    with dtorch.optimize("exact"):
        assert torch.equal(step(x, y).to_torch(), expected)
    (program,) = [program for course in step._courses.values() for program in course.programs]
    assert "add_first" not in [change.by for change in program.plan.rewritten.changes]
