"""Capture: what a function reaches is watched, wherever it stands."""

from __future__ import annotations

import array
import contextvars
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import dtorch
from dtorch import Shard
from dtorch.errors import CaptureError
from dtorch.replay import capture
from dtorch.replay.history import OFTEN

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

pytestmark = pytest.mark.recorded


def sharded(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=[Shard(0)])


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 2.0


class Attributes:
    pass


FACTOR = 2.0


class Scaling(torch.nn.Module):
    factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * FACTOR

    @property
    def doubled(self) -> float:
        return self.factor * FACTOR


class Scaler:
    factor = 2.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * FACTOR * self.factor


USES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a module's forward": lambda x: SCALING(x),
    "a property": lambda x: x * SCALING.doubled,
    "an object that is called": lambda x: SCALER(x),
    "an attribute of a class": lambda x: x * Scaler.factor,
}
SCALING, SCALER = Scaling(), Scaler()


PLACES: dict[str, tuple[Any, Callable[[Any], None], Callable[[Any], float]]] = {
    "slot": (Slotted(), lambda held: setattr(held, "factor", 3.0), lambda held: held.factor),
    "set": ({1.0}, lambda held: held.add(5.0), len),
    "deque": (deque([2.0]), lambda held: held.append(5.0), lambda held: held[-1]),
    "new key": ({"a": 1.0}, lambda held: held.update(b=5.0), lambda held: held.get("b", 1.0)),
    "new attribute": (
        Attributes(),
        lambda held: setattr(held, "factor", 3.0),
        lambda held: getattr(held, "factor", 1.0),
    ),
    "new attribute of a module": (
        torch.nn.Module(),
        lambda held: setattr(held, "factor", 3.0),
        lambda held: getattr(held, "factor", 1.0),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_change_is_seen_wherever_it_stands(place: str) -> None:
    held, change, factor = PLACES[place]
    captured, x = capture(lambda x: x * factor(held)), sharded(torch.ones(4, 2))
    captured.capture(x)
    captured(x)
    assert captured.why().startswith("replayed")
    change(held)
    for _ in range(4):
        assert torch.equal(captured(x).to_torch(), (x * factor(held)).to_torch())


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("where", ["global", "class"])
def test_what_methods_use_is_watched(use: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captured, x = capture(USES[use]), sharded(torch.ones(4, 2))
    captured.capture(x)
    captured(x)
    assert captured.why().startswith("replayed")
    if where == "global":
        monkeypatch.setitem(globals(), "FACTOR", 5.0)
    else:
        monkeypatch.setattr(Scaler, "factor", 3.0)
        monkeypatch.setattr(Scaling, "factor", 3.0)
    for _ in range(4):
        assert torch.equal(captured(x).to_torch(), USES[use](x).to_torch())


SETTINGS = types.ModuleType("settings_of_a_program")


def test_an_object_among_the_arguments_is_watched() -> None:
    captured, x = capture(lambda x, module: x * (2 if module.training else 3)), sharded(torch.ones(4, 2))
    module = torch.nn.Identity().eval()
    captured.capture(x, module)
    module.train()
    for _ in range(4):
        assert torch.equal(captured(x, module).to_torch(), torch.full((4, 2), 2.0))


def test_what_stands_in_an_imported_module_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "factor", 2.0, raising=False)
    captured, x = capture(lambda x: x * SETTINGS.factor), sharded(torch.ones(4, 2))
    captured.capture(x)
    monkeypatch.setattr(SETTINGS, "factor", 5.0)
    for _ in range(4):
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 5.0))


def test_a_hook_that_is_added_is_seen() -> None:
    weight = sharded(torch.ones(4, 2)).requires_grad_()
    module = torch.nn.Identity()

    @capture
    def gradient(x: torch.Tensor) -> torch.Tensor:
        weight.grad = None
        (weight * module(x)).sum().backward()
        assert weight.grad is not None
        return weight.grad * 1

    x = sharded(torch.ones(4, 2))
    gradient.capture(x)
    module.register_forward_hook(lambda module, args, output: output * 3)
    for _ in range(4):
        assert torch.equal(gradient(x).to_torch(), torch.full((4, 2), 3.0))
    assert gradient.why().startswith("replayed")
    weight.register_hook(lambda gradient: gradient * 2)
    for _ in range(4):
        assert torch.equal(gradient(x).to_torch(), torch.full((4, 2), 6.0))


def test_a_scheduler_inside_is_refused_and_its_rate_is_kept() -> None:
    weight = sharded(torch.ones(4, 2)).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    @capture
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
        scheduler.step()
        return x * 2

    x = sharded(torch.ones(4, 2))
    step(x)
    with pytest.raises(CaptureError, match="changes 'lr'"):
        step(x)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert type(optimizer.param_groups[0]["lr"]) is float


def test_a_scheduler_that_changes_nothing_yet_is_never_replayed() -> None:
    weights = [sharded(torch.ones(4, 2)).requires_grad_() for _ in range(2)]
    steps: list[Any] = []
    for weight in weights:
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)

        def step(
            x: torch.Tensor, weight: Any = weight, optimizer: Any = optimizer, scheduler: Any = scheduler
        ) -> torch.Tensor:
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()
            scheduler.step()
            return x * 2

        steps.append(step)
    captured, x = capture(steps[0]), sharded(torch.ones(4, 2))
    for _ in range(9):
        captured(x)
        steps[1](x)
    assert torch.equal(weights[0].to_torch(), weights[1].to_torch())
    assert captured.stats().replays == 0


def test_a_private_attribute_of_a_module_is_watched() -> None:
    module = torch.nn.Identity()
    module._factor = 2.0  # type: ignore[assignment]
    captured, x = capture(lambda x: x * module._factor), sharded(torch.ones(4, 2))
    captured.capture(x)
    module._factor = 3.0  # type: ignore[assignment]
    for _ in range(4):
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 3.0))


def test_a_gradient_that_the_function_does_not_use_may_come_and_go() -> None:
    weight = sharded(torch.ones(4, 2)).requires_grad_()
    captured, x = capture(lambda x: x * weight.detach()), sharded(torch.ones(4, 2))
    captured.capture(x)
    (weight * 2).sum().backward()
    captured(x)
    assert captured.why().startswith("replayed")


def test_a_gradient_that_the_function_asks_for_is_watched() -> None:
    weight = sharded(torch.ones(4, 2)).requires_grad_()
    captured = capture(lambda x: x * 2 if weight.grad is None else x * 3)
    x = sharded(torch.ones(4, 2))
    captured.capture(x)
    (weight * 2).sum().backward()
    for _ in range(4):
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 3.0))


def test_a_loaded_state_of_an_optimizer_is_used() -> None:
    weights = [sharded(torch.ones(4, 2)).requires_grad_() for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.5, momentum=0.9) for weight in weights]

    def step(x: torch.Tensor, which: int) -> torch.Tensor:
        optimizers[which].zero_grad()
        (weights[which] * x).sum().backward()
        optimizers[which].step()
        return x * 2

    captured, x = capture(step), sharded(torch.ones(4, 2))
    for number in range(12):
        if number == 6:
            for optimizer in optimizers:
                optimizer.load_state_dict(optimizer.state_dict())
        captured(x, 0)
        step(x, 1)
    assert captured.stats().replays >= 5
    assert torch.equal(weights[0].to_torch(), weights[1].to_torch())


def test_what_keeps_changing_is_told_with_its_price() -> None:
    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * float(self.calls)

    module = Counting()
    captured, x = capture(lambda x: module(x)), sharded(torch.ones(4, 2))
    assert captured.gain() == ""
    told = []
    for number in range(1, 12):
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), float(number)))
        told.append(captured.why())
    assert captured.stats().replays == 0
    assert any("since 'calls' of a Counting was 1 and is 2" in text for text in told)
    assert "times because of 'calls' of a Counting: pass it as an argument" in " ".join(told[6:])
    assert "recorded one by one and" in " ".join(told[6:])
    assert captured.gain().endswith("replayed, by the launch model")


def test_the_gain_of_replays_is_foretold_and_measured() -> None:
    captured, x = capture(lambda x: x * 2 + 1), sharded(torch.ones(4, 2))
    captured.capture(x)
    assert captured.gain().startswith("2 calls take")
    captured(x)
    assert captured.gain().endswith("ms when it was")


def test_calls_that_are_new_each_time_are_told() -> None:
    numbers = iter(range(1003, 1100))  # which no other test has used
    captured, x = capture(lambda x: x * next(numbers)), sharded(torch.ones(4, 2))
    for number in range(1003, 1009):
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), float(number)))
    assert "never made before, 5 times in a row by now: a whole number or a shape" in captured.why()


def test_what_only_views_has_no_gain_to_tell() -> None:
    weight = sharded(torch.arange(8.0).reshape(4, 2))
    factor = types.SimpleNamespace(value=0)

    def turned() -> torch.Tensor:
        return weight.t() if factor.value >= 0 else weight

    captured = capture(turned)
    for number in range(4 * OFTEN):
        factor.value = number // 4
        assert torch.equal(captured().to_torch(), weight.to_torch().t())
    factor.value += 1
    captured()
    assert "recordings keep being made anew" in captured.why()
    assert captured.gain() == ""


def test_a_capture_of_shapes_that_grow_ends() -> None:
    rows = iter(range(1, 100))
    captured = capture(lambda x: x.repeat(next(rows), 1) * 2)
    with pytest.raises(CaptureError, match=r"no recording yet: .*a shape in it changes each time"):
        captured.capture(sharded(torch.ones(4, 2)))


@pytest.mark.parametrize(
    "held", [numpy.zeros(1), array.array("d", [0.0]), bytearray(1), numpy.array([0], dtype=object)]
)
def test_an_array_that_is_written_is_seen(held: Any) -> None:
    captured, x = capture(lambda x: x + float(held[0])), sharded(torch.ones(4, 2))
    for value in (1, 1, 1, 1, 2, 3, 3, 3, 3):
        held[0] = value
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 1.0 + value))
    assert captured.stats().replays == 3


def test_a_written_array_is_named() -> None:
    held = numpy.zeros(3)
    captured, x = capture(lambda x: x + float(held[0])), sharded(torch.ones(4, 2))
    captured.capture(x)
    held[0] = 1
    captured(x)
    assert "since an array of shape [3] that the function uses was written" in captured.why()


def test_arrays_too_large_to_look_at_are_refused_unless_they_are_read_only() -> None:
    held = numpy.zeros(2**18)
    captured, x = capture(lambda x: x + float(held[0])), sharded(torch.ones(4, 2))
    captured(x)
    with pytest.raises(CaptureError, match=r"reaches an array of shape \[262144\].*setflags\(write=False\)"):
        captured(x)
    held.setflags(write=False)
    for _ in range(4):
        captured(x)
    assert captured.stats().replays == 2


def test_a_context_variable_is_looked_at() -> None:
    held = contextvars.ContextVar("held", default=0.0)
    captured, x = capture(lambda x: x + held.get()), sharded(torch.ones(4, 2))
    for value in (1.0, 1.0, 1.0, 1.0, 2.0, 3.0):
        held.set(value)
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 1.0 + value))


def test_a_copied_view_as_an_argument_is_refused_with_advice() -> None:
    captured = capture(lambda x: x * 2)
    captured(sharded(torch.ones(12, 4))[3:9])
    with pytest.raises(CaptureError, match=r"view of shape \[6, 4\] .* clone\(\) it outside"):
        captured(sharded(torch.ones(12, 4))[3:9])


def test_what_cannot_be_called_is_not_captured() -> None:
    with pytest.raises(TypeError, match="cannot be called"):
        capture(5)
