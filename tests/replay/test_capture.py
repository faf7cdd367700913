"""Capture: replays are the recorded calls, bit for bit; a change is followed, recorded anew, or refused."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dtorch
from dtorch import Replicate, Shard
from dtorch.errors import CaptureError
from dtorch.replay import Capture, capture

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adam, amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True),
}

pytestmark = pytest.mark.recorded


def sharded(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=[Shard(0)])


def batches(count: int, size: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(3)
    return [
        (sharded(torch.randn(size, 8, generator=draw)), sharded(torch.randn(size, 4, generator=draw)))
        for _ in range(count)
    ]


class Training:
    """A model, its optimizer, and a step; captured or not."""

    def __init__(self, optimizer: str = "adamw", captured: bool = True) -> None:
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.model = dtorch.parallelize(plain, MESH, {})
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

        self.step: Any = capture(step) if captured else step

    def state(self) -> list[torch.Tensor]:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        tensors = [t.detach() for t in (*self.model.state_dict().values(), *gradients)]
        return [t.to_torch() if isinstance(t, dtorch.Tensor) else t for t in tensors]


def same(a: Training, b: Training) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state(), b.state(), strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_replayed_is_training(optimizer: str) -> None:
    replayed, recorded = Training(optimizer), Training(optimizer, captured=False)
    for x, y in batches(12):
        assert replayed.step(x, y).item() == recorded.step(x, y).item()
    assert same(replayed, recorded)
    stats = replayed.step.stats()
    assert (stats.calls, stats.captures) == (12, 2)
    assert stats.replays >= 8


@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_converted_last_is_not_kept(dim: int) -> None:
    model = dtorch.parallelize(nn.Linear(8, 4), MESH, {"weight": {"dp": Shard(dim)}})

    @capture
    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    for _ in range(4):
        x = torch.randn(6, 8)
        loss = step(x)
        assert torch.equal(loss.to_torch(), model(x).square().mean().detach().to_torch())
    assert step.stats().replays == 1


def test_200_steps(request: pytest.FixtureRequest) -> None:
    replayed, recorded = Training(), Training(captured=False)
    for x, y in batches(10) * 20:
        replayed.step(x, y)
        recorded.step(x, y)
    assert same(replayed, recorded)
    assert replayed.step.stats().replays >= 195


def test_a_learning_rate_may_change() -> None:
    replayed, recorded = Training(), Training(captured=False)
    for number, (x, y) in enumerate(batches(12)):
        for training in (replayed, recorded):
            training.optimizer.param_groups[0]["lr"] = 1e-2 / (number + 1)
            training.step(x, y)
    assert same(replayed, recorded)
    assert replayed.step.stats().replays >= 8


# -- what changes -------------------------------------------------------------------------------------------


def forward_of(model: nn.Module) -> Capture:
    @capture
    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    return forward


def warmed(forward: Capture, x: torch.Tensor) -> Capture:
    forward.capture(x)
    forward(x)
    assert forward.why().startswith("replayed")
    return forward


def to_other_shape(training: Training) -> torch.Tensor:
    return batches(1, size=10)[0][0]


def to_other_dtype(training: Training) -> torch.Tensor:
    training.model.double()
    return batches(1)[0][0].double()


def to_other_placement(training: Training) -> torch.Tensor:
    return batches(1)[0][0].redistribute(placements=[Replicate()])


def to_eval(training: Training) -> torch.Tensor:
    training.model.eval()
    return batches(1)[0][0]


def to_another_parameter(training: Training) -> torch.Tensor:
    training.model[0].weight = nn.Parameter(training.model[0].weight.detach() * 2)
    return batches(1)[0][0]


def to_other_data(training: Training) -> torch.Tensor:
    training.model[0].weight.data = training.model[0].weight.data * 3
    return batches(1)[0][0]


def to_written_parameter(training: Training) -> torch.Tensor:
    with torch.no_grad():
        training.model[0].weight.mul_(5)
    return batches(1)[0][0]


def to_another_module(training: Training) -> torch.Tensor:
    training.model[2] = nn.Tanh()
    return batches(1)[0][0]


CHANGES = [
    to_other_shape, to_other_dtype, to_other_placement, to_eval, to_another_parameter, to_other_data,
    to_written_parameter, to_another_module,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_followed(change: Callable[[Training], torch.Tensor]) -> None:
    replayed, recorded = Training(captured=False), Training(captured=False)
    forward = warmed(forward_of(replayed.model), batches(1)[0][0])
    with torch.no_grad():
        for _ in range(forward.stats().calls):  # so that running statistics are the same
            recorded.model(batches(1)[0][0])
    x, expected = change(replayed), change(recorded)
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(forward(x).to_torch(), recorded.model(expected).to_torch())


def test_a_float_argument_is_an_input() -> None:
    scaled = warmed_by(capture(lambda x, s: x * s + 1), sharded(torch.ones(4, 2)), 2.0)
    for s in (7.0, 9.0, -3.5):
        assert torch.equal(scaled(sharded(torch.ones(4, 2)), s).to_torch(), torch.full((4, 2), s + 1))
    assert scaled.why().startswith("replayed")
    assert scaled.stats().captures == 3  # two alike, and one more that has seen another number


def warmed_by(function: Capture, *args: Any) -> Capture:
    function.capture(*args)
    return function


def test_an_integer_argument_is_another_kind() -> None:
    power = warmed_by(capture(lambda x, n: x.sum(n)), sharded(torch.ones(4, 2)), 0)
    assert power(sharded(torch.ones(4, 2)), 1).shape == (4,)


def test_arithmetic_on_floats_is_followed() -> None:
    @capture
    def scaled(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
        return x * (1 - a**b) / -b

    x = sharded(torch.randn(4, 2))
    for a, b in ((0.5, 2.0), (0.9, 3.0), (0.1, 2.5), (0.7, 1.5), (0.2, 0.5)):
        assert torch.equal(scaled(x, a, b).to_torch(), (x * (1 - a**b) / -b).to_torch())
    assert scaled.stats().replays == 2


def test_a_float_that_steers_takes_another_course() -> None:
    @capture
    def steered(x: torch.Tensor, a: float) -> torch.Tensor:
        return x + a if a > 1 else x - a

    x = sharded(torch.ones(4, 2))
    for a in (2.0, 3.0, 4.0, 0.5, 5.0, 0.25, 0.75, 0.1, 6.0, 0.3):
        assert torch.equal(steered(x, a).to_torch(), (x + a if a > 1 else x - a).to_torch())


def test_a_plain_tensor_is_read_each_time() -> None:
    offset = torch.zeros(2)
    moved = warmed_by(capture(lambda x: x + offset * 2), sharded(torch.ones(4, 2)))
    offset += 3
    assert torch.equal(moved(sharded(torch.ones(4, 2))).to_torch(), torch.full((4, 2), 7.0))
    assert moved.why().startswith("replayed")


def test_a_number_in_a_closure() -> None:
    factor = 2.0

    @capture
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    warmed_by(scaled, sharded(torch.ones(4, 2)))
    factor = 5.0
    for _ in range(4):
        assert torch.equal(scaled(sharded(torch.ones(4, 2))).to_torch(), torch.full((4, 2), 5.0))


def test_state_outside_is_written() -> None:
    total = dtorch.zeros(4, 2, device_mesh=MESH, placements=[Shard(0)])

    @capture
    def count(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total.sum(1)

    x = sharded(torch.ones(4, 2))
    seen = [count(x).to_torch()[0].item() for _ in range(6)]
    assert seen == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    assert count.stats().replays == 3
    assert torch.equal(total.to_torch(), torch.full((4, 2), 6.0))


def test_a_conversion_made_before_is_made_again() -> None:
    w = dtorch.randn(4, 4, device_mesh=MESH, placements=[Shard(0)])
    x = dtorch.randn(2, 4, device_mesh=MESH, placements=[Replicate()])
    w.sort(dim=0)  # gathers w, and w keeps the whole
    product = warmed_by(capture(lambda x: x @ w.sort(dim=0).values), x)
    w.mul_(-2)
    assert torch.equal(product(x).to_torch(), (x @ w.sort(dim=0).values).to_torch())


def test_views_of_one_result_share_memory() -> None:
    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y[:, :1]

    pair = warmed_by(capture(halves), sharded(torch.ones(4, 2)))
    whole, part = pair(sharded(torch.ones(4, 2)))
    assert pair.why().startswith("replayed")
    part.add_(1)
    assert torch.equal(whole.to_torch()[0], torch.tensor([3.0, 2.0]))


def test_arguments_and_other_values_come_back() -> None:
    back = warmed_by(capture(lambda x: {"x": x, "y": x + 1, "n": 3, "z": None}), sharded(torch.ones(4, 2)))
    x = sharded(torch.zeros(4, 2))
    found = back(x)
    assert found["x"] is x
    assert (found["n"], found["z"]) == (3, None)
    assert torch.equal(found["y"].to_torch(), torch.ones(4, 2))


# -- what is refused ----------------------------------------------------------------------------------------


def test_a_value_asked_for_is_refused() -> None:
    asking = capture(lambda x: x * 2 if x.sum().item() > 0 else x)
    x = sharded(torch.ones(4, 2))
    asking(x)
    with pytest.raises(CaptureError, match="asks for the value"):
        asking(x)
    assert "asks for the value" in asking.why()
    assert torch.equal((x + 1).to_torch(), torch.full((4, 2), 2.0))  # the graph goes on


def test_a_result_with_a_gradient_is_refused() -> None:
    w = dtorch.ones(2, 2, device_mesh=MESH, requires_grad=True)
    product = capture(lambda x: x @ w)
    x = sharded(torch.ones(4, 2))
    product(x)
    with pytest.raises(CaptureError, match=r"requires grad.*call backward inside"):
        product(x)


def test_a_tensor_kept_beside_is_refused() -> None:
    kept: list[torch.Tensor] = []

    def keeping(x: torch.Tensor) -> torch.Tensor:
        kept[:] = [x * 3]
        return x + 1

    function = capture(keeping)
    x = sharded(torch.ones(4, 2))
    function(x)
    with pytest.raises(CaptureError, match=r"keeps what Mul.*test_capture.*return it instead"):
        function(x)


def test_a_number_that_cannot_be_followed_is_refused() -> None:
    calls = iter(range(1, 100))
    growing = capture(lambda x: x * float(next(calls)))
    x = sharded(torch.ones(4, 2))
    with pytest.raises(CaptureError, match="does not do the same twice"):
        growing.capture(x)


def test_no_call_at_all_is_refused() -> None:
    nothing = capture(lambda x: x)
    x = sharded(torch.ones(4, 2))
    nothing(x)
    with pytest.raises(CaptureError, match="nothing to replay"):
        nothing(x)


def test_replay_alone_refuses_what_it_has_not() -> None:
    double = warmed_by(capture(lambda x: x * 2), sharded(torch.ones(4, 2)))
    assert torch.equal(double.replay(sharded(torch.ones(4, 2))).to_torch(), torch.full((4, 2), 2.0))
    with pytest.raises(CaptureError, match="no recording for such arguments"):
        double.replay(sharded(torch.ones(6, 2)))
    with pytest.raises(CaptureError, match="warmup is 0"):
        capture(lambda x: x, warmup=0)


def test_an_error_names_the_users_line() -> None:
    index = dtorch.arange(4, device_mesh=MESH)
    picked = warmed_by(capture(lambda x, i: x.index_select(1, i)), sharded(torch.ones(4, 5)), index)
    wrong = dtorch.arange(4, device_mesh=MESH) + 3
    with pytest.raises(Exception, match="test_capture"):
        picked(sharded(torch.ones(4, 5)), wrong)


# -- what it holds ------------------------------------------------------------------------------------------


def test_replays_leave_nothing_behind() -> None:
    training = Training()
    x, y = batches(1)[0]
    for _ in range(20):
        training.step(x, y)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(100):
        training.step(x, y)
    gc.collect()
    assert len(gc.get_objects()) - before < 20


def test_a_copy_of_a_model_is_another() -> None:
    model = Training(captured=False).model.eval()
    forward = warmed(forward_of(model), batches(1)[0][0])
    other = forward_of(copy.deepcopy(model))
    x = batches(1)[0][0]
    assert torch.equal(forward(x).to_torch(), other(x).to_torch())
