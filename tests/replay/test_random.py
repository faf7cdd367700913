"""Capture: each replay draws random numbers anew, in the program's order, as torch would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dtorch
from dtorch import Replicate, Shard
from dtorch.errors import CaptureError
from dtorch.replay import capture

ONE = dtorch.init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
TWO = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
GENERATOR = torch.Generator()

pytestmark = pytest.mark.recorded

DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.4) + 1,
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.4) * 2, 0.2),
    "rand_like": lambda x: x + torch.rand_like(x) * torch.randn_like(x),
    "randint_like": lambda x: x * torch.randint_like(x, 5),
    "bernoulli": lambda x: x * torch.empty_like(x).bernoulli_(0.3),
    "normal_ into what is used": lambda x: (x * 2).normal_(1.0, 2.0) + x,
    "uniform_ through a view": lambda x: _through_a_view(x * 2),
    "exponential": lambda x: x + torch.empty_like(x).exponential_(2.0),
    "explicit generator": lambda x: x + torch.empty_like(x).normal_(generator=GENERATOR),
    "both generators": lambda x: x + torch.empty_like(x).normal_(generator=GENERATOR) + torch.rand_like(x),
    "plain": lambda x: x + torch.rand(3),
    "plain in between": lambda x: torch.rand_like(x) + torch.rand(3) + torch.rand_like(x) + torch.randn(3),
    "drawn and returned": lambda x: (x + 1, torch.rand_like(x)),
    "view of what is drawn": lambda x: (x + 1, torch.rand_like(x)[:, 1:]),
    "not used": lambda x: (torch.rand_like(x), x * 2)[1],
}  # fmt: skip


def _through_a_view(y: torch.Tensor) -> torch.Tensor:
    y[:, 1:].uniform_()
    return y


def values(found: Any) -> list[torch.Tensor]:
    found = found if isinstance(found, tuple) else (found,)
    return [t.to_torch() if isinstance(t, dtorch.Tensor) else t for t in found]


def states() -> tuple[bytes, bytes]:
    return tuple(g.get_state().numpy().tobytes() for g in (torch.default_generator, GENERATOR))  # type: ignore[return-value]


def seed() -> None:
    torch.manual_seed(7)
    GENERATOR.manual_seed(11)


@pytest.mark.parametrize("mesh", [ONE, TWO], ids=["one device", "two devices"])
@pytest.mark.parametrize("draw", DRAWS)
def test_replays_draw_what_torch_draws(draw: str, mesh: dtorch.DeviceMesh) -> None:
    function = DRAWS[draw]
    plain = torch.arange(12.0).reshape(4, 3)
    seed()
    expected = [([t.clone() for t in values(function(plain))], states()) for _ in range(8)]
    seed()
    captured = capture(function)
    x = dtorch.Tensor(plain, device_mesh=mesh, placements=[Shard(0)])
    for wanted, state in expected:
        found = values(captured(x))
        assert states() == state
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert captured.stats().replays >= 4


@pytest.mark.parametrize("mesh", [ONE, TWO], ids=["one device", "two devices"])
def test_what_the_function_makes_and_distributes(mesh: dtorch.DeviceMesh) -> None:
    def made(x: torch.Tensor) -> torch.Tensor:
        noise = dtorch.randn(4, 3, device_mesh=mesh, placements=[Shard(0)])
        positions = dtorch.distribute_tensor(torch.arange(3.0), mesh, [Replicate()])
        return x * noise + positions

    x = dtorch.ones(4, 3, device_mesh=mesh, placements=[Shard(0)])
    torch.manual_seed(3)
    expected = [torch.randn(4, 3) + torch.arange(3.0) for _ in range(8)]
    torch.manual_seed(3)
    captured = capture(made)
    for wanted in expected:
        assert torch.equal(captured(x).to_torch(), wanted)
    assert captured.stats().replays >= 4


def test_training_with_dropout_is_training() -> None:
    def trained(captured: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = nn.Sequential(
            nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4), nn.Dropout(0.1)
        )
        model = dtorch.parallelize(layers, TWO, {})
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run: Any = capture(step) if captured else step
        batch = [dtorch.Tensor(torch.full((6, 8), float(n)), TWO, [Shard(0)]) for n in range(4)]
        losses = [run(batch[number % 4]).to_torch() for number in range(16)]
        if captured:
            assert run.stats().replays >= 12
        return [*losses, *(p.detach().to_torch() for p in model.parameters())]

    for ours, expected in zip(trained(True), trained(False), strict=True):
        assert torch.equal(ours, expected)


def test_another_course_draws_once() -> None:
    def steered(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(3)
        return x + noise if (t + noise.sum() * 0).item() > 1 else x - noise

    x, captured = dtorch.ones(4, 3, device_mesh=TWO), capture(steered)
    torch.manual_seed(5)
    noises = [torch.rand(3) for _ in range(12)]
    torch.manual_seed(5)
    for number, noise in enumerate(noises):
        t = torch.tensor(2.0 if number < 6 else 0.5)
        found = captured(x, t).to_torch()
        assert torch.equal(found, torch.ones(4, 3) + noise if number < 6 else torch.ones(4, 3) - noise)


def test_a_recording_holds_no_mask() -> None:
    captured, x = capture(lambda x: F.dropout(x, 0.5)), dtorch.ones(4, 3, device_mesh=TWO)
    captured.capture(x)
    programs = [program for course in captured._courses.values() for program in course.programs]
    assert [operand.parts for operand in programs[0].tape.made] == [None]


# -- what is refused ----------------------------------------------------------------------------------------


def reseeding(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(1)
    return x + torch.rand_like(x)


def forking(x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        y = x + torch.rand_like(x)
    return y + torch.rand_like(x)


def checkpointing(x: torch.Tensor) -> torch.Tensor:
    w = x.detach().requires_grad_()
    y = torch.utils.checkpoint.checkpoint(lambda w: F.dropout(w * 2, 0.5), w, use_reentrant=False)
    return torch.autograd.grad(y.sum(), w)[0]


@pytest.mark.parametrize("function", [reseeding, forking, checkpointing])
def test_a_state_that_is_set_inside_is_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    captured, x = capture(function), dtorch.ones(4, 3, device_mesh=TWO)
    with pytest.raises(CaptureError, match=r"sets the state of a random generator"):
        captured.capture(x)


def test_numbers_that_depend_on_values_are_refused() -> None:
    captured, x = capture(lambda x: x + torch.multinomial(x, 2)), dtorch.ones(4, 2, device_mesh=TWO)
    with pytest.raises(CaptureError, match="cannot be recorded ahead"):
        captured.capture(x)


def test_what_is_drawn_and_kept_is_refused() -> None:
    kept: list[torch.Tensor] = []

    def keeping(x: torch.Tensor) -> torch.Tensor:
        kept[:] = [torch.rand_like(x)]
        return x + kept[0]

    captured, x = capture(keeping), dtorch.ones(4, 3, device_mesh=TWO)
    with pytest.raises(CaptureError, match=r"keeps a tensor of shape \[4, 3\] that it drew"):
        captured.capture(x)


def test_a_dropout_of_another_probability_is_recorded_anew() -> None:
    captured, x = capture(lambda x, p: torch.nn.functional.dropout(x, p)), dtorch.ones(4, 2, device_mesh=ONE)
    for p in (0.5, 0.5, 0.5, 0.5, 0.1875, 0.1875, 0.1875, 0.1875):
        torch.manual_seed(1)
        made = captured(x, p)
        torch.manual_seed(1)
        assert torch.equal(made.to_torch(), torch.nn.functional.dropout(x, p).to_torch())
    assert captured.stats().replays >= 2
