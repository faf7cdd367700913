"""Capture: of a program's objects a replay looks at what the call read, however it did, and at no more."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import dtorch
from dtorch import Shard
from dtorch.replay import capture
from dtorch.replay.reads import Reads

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

pytestmark = pytest.mark.recorded


def sharded(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=[Shard(0)])


class Trainer:
    """Holds much that its step does not touch."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = dtorch.parallelize(torch.nn.Linear(2, 1), MESH, {})
        self.other = dtorch.parallelize(torch.nn.Linear(2, 1), MESH, {})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.5, total_steps=20)
        self.data = numpy.zeros(2**18)  # more than a replay looks at
        self.history: list[float] = []
        self.steps, self.scale = 0, 1.0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean() * self.scale
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def train(self, step: Callable[[torch.Tensor], torch.Tensor], number: int) -> None:
        loss = step(sharded(torch.arange(8.0).reshape(4, 2) / (number + 1)))
        self.history.append(loss.item())
        self.steps += 1
        self.data[0] += 1
        self.other.weight.grad = None if number % 2 else torch.zeros_like(self.other.weight)
        self.scheduler.step()


def test_what_a_step_does_not_read_may_change() -> None:
    replayed, recorded = Trainer(), Trainer()
    step = capture(replayed.step)
    for number in range(14):
        if number == 8:
            replayed.scale = recorded.scale = 3.0
        replayed.train(step, number)
        recorded.train(recorded.step, number)
    assert replayed.history == recorded.history
    assert torch.equal(replayed.model.weight.to_torch(), recorded.model.weight.to_torch())
    assert step.stats().replays >= 5


class Held:
    base = 1.0

    def __init__(self) -> None:
        self.factor, self.unread = 2.0, 0.0

    @property
    def doubled(self) -> float:
        return self.factor * 2


class Slotted:
    __slots__ = ("factor", "unread")

    def __init__(self) -> None:
        self.factor, self.unread = 2.0, 0.0


class Own(Held):
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "factor" if name == "value" else name)


class Falling(Held):
    def __init__(self) -> None:
        self._inner, self.unread = {"factor": 2.0}, 0.0

    def __getattr__(self, name: str) -> Any:
        return self._inner[name]


NAMES = ["fac", "tor"]
WAYS: dict[str, tuple[type, Callable[[Any], float]]] = {
    "by name": (Held, lambda held: held.factor),
    "by a name that no code spells": (Held, lambda held: getattr(held, "".join(NAMES))),
    "by C": (Held, lambda held: operator.attrgetter("".join(NAMES))(held)),
    "by a property": (Held, lambda held: held.doubled),
    "by vars": (Held, lambda held: vars(held)["factor"]),
    "by __dict__": (Held, lambda held: held.__dict__["factor"]),
    "by a copy": (Held, lambda held: copy.copy(held).__dict__["factor"]),
    "by hasattr": (Held, lambda held: 3.0 if hasattr(held, "added") else 2.0),
    "a slot": (Slotted, lambda held: held.factor),
    "by a __getattribute__ of its own": (Own, lambda held: held.value),
    "by __getattr__": (Falling, lambda held: held.factor),
}


def change(held: Any) -> None:
    if isinstance(held, Falling):
        held._inner["factor"] = 5.0
        return
    held.factor = 5.0
    if hasattr(held, "__dict__"):
        held.added = True


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_is_looked_at(way: str) -> None:
    kind, read = WAYS[way]
    held, x = kind(), sharded(torch.ones(4, 2))
    captured = capture(lambda x: x * read(held))
    captured.capture(x)
    captured(x)
    assert captured.why().startswith("replayed")
    change(held)
    for _ in range(5):
        assert torch.equal(captured(x).to_torch(), (x * read(held)).to_torch())
    assert captured.why().startswith("replayed")


@pytest.mark.parametrize(
    "way", ["by name", "by a name that no code spells", "by C", "by a property", "a slot"]
)
def test_what_is_not_read_is_not_looked_at(way: str) -> None:
    kind, read = WAYS[way]
    held, x = kind(), sharded(torch.ones(4, 2))
    captured = capture(lambda x: x * read(held))
    captured.capture(x)
    for number in range(4):
        held.unread = float(number)
        captured(x)
        assert captured.why().startswith("replayed")


def test_what_a_call_writes_is_no_less_looked_at_for_it() -> None:
    held = Held()

    def counting(x: torch.Tensor) -> torch.Tensor:
        held.factor += 1.0
        return x * held.factor

    captured, x = capture(counting), sharded(torch.ones(4, 2))
    for number in range(6):
        assert captured(x).to_torch()[0, 0].item() == 3.0 + number


def test_classes_are_as_they_were() -> None:
    held = [Held(), Own(), Slotted(), numpy.zeros(1)]
    reads = Reads(held)
    with pytest.raises(ZeroDivisionError), reads.watching():
        assert held[0].factor / (held[2].unread * 0)
    assert [reads.of(found) for found in held] == [{"factor"}, None, {"unread"}, None]
    assert "__getattribute__" not in vars(Held)
    assert "__getattribute__" not in vars(Slotted)
    assert Held().factor == 2.0
