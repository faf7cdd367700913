"""Capture and explain: what they refuse is refused in words that help."""

from __future__ import annotations

import itertools
import re
import sys

import pytest
import torch

import dtorch
from dtorch import Shard
from dtorch.errors import CaptureError
from dtorch.replay import Capture, capture

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

pytestmark = pytest.mark.recorded


def sharded(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=[Shard(0)])


class Trainer:
    factor = 2.0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    @capture
    def decorated(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@pytest.mark.parametrize("text", [print, repr, str, "{}".format])
def test_a_text_of_a_tensor_is_refused_as_its_value_is(text) -> None:
    def shown(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        text(y)
        return y

    captured = capture(shown)
    captured(sharded(torch.ones(4)))
    with pytest.raises(CaptureError, match="asks for the value of a distributed tensor"):
        captured(sharded(torch.ones(4)))
    assert repr(captured(sharded(torch.ones(2)))).startswith("Tensor([2., 2.]")  # another kind warms up


def test_a_decorated_method_is_refused_and_a_bound_one_is_captured() -> None:
    x, trainer = sharded(torch.ones(4)), Trainer()
    with pytest.raises(CaptureError, match=r"decorated is a method.*dtorch\.capture\(object\.decorated\)"):
        trainer.decorated(x)
    assert isinstance(Trainer.decorated, Capture)
    captured = capture(trainer.step)
    for factor in (2.0, 2.0, 2.0, 2.0, 3.0):
        trainer.factor = factor
        assert torch.equal(captured(x).to_torch(), torch.full((4,), factor))
    assert captured.stats().replays == 1


def test_a_capture_shows_its_name_and_what_it_did() -> None:
    captured, x = capture(Trainer().step), sharded(torch.ones(4))
    assert repr(captured) == "<captured Trainer.step: nothing has been called yet>"
    captured.capture(x)
    captured(x)
    assert repr(captured) == "<captured Trainer.step: replayed: a plan of 1 calls>"


def test_an_explanation_of_nothing_says_so() -> None:
    assert str(dtorch.explain(lambda: torch.ones(2) + 1)) == (
        "nothing was recorded: no call on distributed tensors"
    )
    assert "plan of 1 recorded calls" in str(dtorch.explain(lambda x: x + 1, sharded(torch.ones(4))))


def test_a_tensor_is_not_explained() -> None:
    with pytest.raises(TypeError, match=r"takes a function and its arguments, not a Tensor"):
        dtorch.explain(sharded(torch.ones(4)))


@pytest.mark.parametrize(
    ("was", "became", "text"),
    [
        ((1, 2), (1, 3), "was (1, 2) and is (1, 3)"),
        ((1, 2), tuple(iter((1, 2))), "was a tuple and is another"),
        ("a" * 60, "b", f"was '{'a' * 36}... and is 'b'"),
        (sharded(torch.ones(4)), sharded(torch.ones(4)), "was a Tensor and is another"),
        ((sharded(torch.ones(4)),), None, "was a tuple and is None"),
        (range(3), [1.0], "was a range and is [1.0]"),
    ],
)
def test_what_has_changed_is_shown_shortly(was, became, text) -> None:
    held = was

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if held is None else 3)

    captured, x = capture(step), sharded(torch.ones(4))
    captured.capture(x)
    held = became
    captured(x)
    assert captured.why() == f"warming up, call 1 of 1, since 'held' of step()'s closure {text}"


def test_what_keeps_a_function_from_being_replayed_is_said_at_every_call() -> None:
    kept: list[torch.Tensor] = []

    def keeping(x: torch.Tensor) -> torch.Tensor:
        kept.append(x * 2)
        return kept[-1]

    captured, x = capture(keeping), sharded(torch.ones(4, 2))
    for _ in range(10):
        captured(x)
    for _ in range(3):
        captured(x)
        assert "recordings keep being made anew" in captured.why()
    assert captured.stats().replays == 0


def test_a_whole_number_that_changes_each_time_is_told_of() -> None:
    captured, x = capture(lambda x, n: x * n), sharded(torch.ones(4, 2))
    for n in range(8):
        captured(x, n)
    assert "8 kinds of arguments by now" in captured.why()
    assert "better a tensor or a float" in captured.why()


def test_a_gain_is_told_of_calls_that_are_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call makes recipes too: here the clock around it goes by a thousand seconds."""
    ticks = itertools.count(step=1000)
    monkeypatch.setattr(sys.modules["dtorch.replay.capture"], "perf_counter", lambda: float(next(ticks)))
    captured, x = capture(lambda x: (x * 2 + 1) * 2), sharded(torch.ones(4, 2))
    for _ in range(6):
        captured(x)
    assert captured.stats().replays
    recorded, foretold = (
        float(ms) for ms in re.findall(r"([0-9.]+) ms (?:recorded|replayed)", captured.gain())
    )
    assert foretold <= recorded < 1e6
