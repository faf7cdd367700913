"""Capture: a number that leaves what is followed is recorded anew, or refused."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable

import numpy
import pytest
import torch
from torch.nn import functional as F

import dtorch
from dtorch import Shard
from dtorch.errors import CaptureError
from dtorch.replay import capture

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

pytestmark = pytest.mark.recorded


def sharded(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=[Shard(0)])


@pytest.mark.parametrize(
    "use",
    [
        lambda x, s: x * math.sqrt(s),
        lambda x, s: x * int(s * 8),
        lambda x, s: x * round(s, 1),
        lambda x, s: x * float(s),
        lambda x, s: x.clamp(s, 0.5),
        lambda x, s: x * float(f"{s:.3f}"),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_a_number_that_leaves_unseen_is_recorded_anew(use: Callable[..., torch.Tensor], plain: bool) -> None:
    captured = capture(lambda x, s: use(x, s.item() if plain else s))
    x = sharded(torch.arange(8.0).reshape(4, 2))
    for s in (0.5,) * 4 + (0.25, 0.125, 0.5):
        given = torch.tensor(s) if plain else s
        assert torch.equal(captured(x, given).to_torch(), use(x, s).to_torch())


@pytest.mark.parametrize(
    "use", [lambda x, t: x * float(t), lambda x, t: x * 2 if t else x * 3, lambda x, t: x * int(t)]
)
def test_a_plain_tensor_asked_for_its_value(use: Callable[..., torch.Tensor]) -> None:
    captured, x = capture(use), sharded(torch.ones(4, 2))
    for value in (0.5,) * 4 + (1.5, 0.0):
        assert torch.equal(
            captured(x, torch.tensor(value)).to_torch(), use(x, torch.tensor(value)).to_torch()
        )


@pytest.mark.parametrize("use", [lambda x, t: x * t.tolist()[0], lambda x, t: x * float(t.numpy()[0])])
def test_a_plain_tensor_read_where_no_replay_sees_it_is_refused(use: Callable[..., torch.Tensor]) -> None:
    captured, x = capture(use), sharded(torch.ones(4, 2))
    with pytest.raises(CaptureError, match="reads a plain tensor"):
        captured.capture(x, torch.ones(1))


def test_two_numbers_of_one_value_are_two() -> None:
    captured, x = capture(lambda x, a, b: x.clamp(a, b)), sharded(torch.arange(8.0).reshape(4, 2))
    for a, b in ((0.5, 0.5),) * 2 + ((0.25, 0.25),) * 2 + ((2.0, 4.0),):
        assert torch.equal(captured(x, a, b).to_torch(), x.clamp(a, b).to_torch())


def test_a_number_that_is_returned_is_the_one_given() -> None:
    captured, x = capture(lambda x, s: (x * 2, s + 1)), sharded(torch.ones(4, 2))
    for s in (1.0, 1.0, 1.0, 2.0, 3.0):
        assert captured(x, s)[1] == s + 1


def test_positions_that_stay_are_made_once_and_others_anew() -> None:
    offset = torch.zeros(2)

    def placed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(2.0) * 2
        moved = torch.arange(2.0)
        moved += offset
        return x * positions + moved, positions

    captured, x = capture(placed), sharded(torch.ones(4, 2))
    for number in range(6):
        offset.fill_(number)
        value, positions = captured(x)
        assert torch.equal(value.to_torch()[0], torch.tensor([0.0, 3.0]) + number)
        assert torch.equal(positions, torch.tensor([0.0, 2.0]))
        positions.fill_(-1)  # the caller's own
    assert captured.stats().replays == 3


def running_statistics(moved: torch.Tensor) -> torch.Tensor:
    mean, variance = torch.zeros(2), torch.ones(2)
    F.batch_norm(torch.tensor([[1.0, 2.0], [3.0, 6.0]]) + moved, mean, variance, training=True)
    return mean + variance


def unsafe_view(moved: torch.Tensor) -> torch.Tensor:
    held = torch.zeros(2, 1)
    view = torch.ops.aten._unsafe_view(held, [2])
    view += moved
    return held.view(2)


@pytest.mark.parametrize("made", [running_statistics, unsafe_view])
def test_what_operators_write_and_view_beside_their_schemas_is_made_anew(
    made: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    moved = torch.zeros(())
    captured, x = capture(lambda x: x * 1.0 + made(moved)), sharded(torch.zeros(4, 2))
    for number in range(7):
        moved.fill_(number)
        assert torch.equal(captured(x).to_torch()[0], made(moved))
    assert captured.stats().replays == 4


def test_what_was_written_before_another_course_was_seen_is_put_back() -> None:
    counter = torch.zeros(())

    def counted(x: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return x * 2 if counter.item() < 6 else x * 3

    captured, x = capture(counted), sharded(torch.ones(4, 2))
    seen = [captured(x).to_torch()[0, 0].item() for _ in range(10)]
    assert seen == [2.0] * 5 + [3.0] * 5
    assert counter.item() == 10


@pytest.mark.parametrize(
    "use",
    [
        lambda x, s: x * (torch.arange(2.0) * s),
        lambda x, s: x * torch.full((2,), s / 3),
        lambda x, s: x + torch.as_tensor(s * 2),
        lambda x, s: x + torch.tensor(s, dtype=torch.float64).float(),
        lambda x, s: x * torch.zeros(2).add_(1, alpha=2).lerp_(torch.ones(2), s),
    ],
)
def test_a_number_that_goes_into_a_plain_tensor_is_followed(use: Callable[..., torch.Tensor]) -> None:
    captured, x = capture(use), sharded(torch.ones(4, 2))
    for s in (0.5, 0.25, 0.75, 0.3, 0.9, 0.1):
        assert torch.equal(captured(x, s).to_torch(), use(x, s).to_torch())
    assert captured.stats().replays >= 2


@pytest.mark.parametrize(
    "use",
    [
        lambda x, s: x * torch.nn.functional.leaky_relu(torch.ones(2), s).clamp(s, s * 1.0),
        lambda x, s: x + torch.tensor([s, s]),
        lambda x, s: x + torch.linspace(0, 1, 2) * torch.nn.functional.dropout(torch.ones(2), s),
    ],
)
def test_a_number_that_cannot_be_followed_into_a_plain_tensor_is_refused(
    use: Callable[..., torch.Tensor],
) -> None:
    captured, x = capture(use), sharded(torch.ones(4, 2))
    with pytest.raises(CaptureError, match="puts a number that changes from call to call into a plain"):
        captured.capture(x, 0.25)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, n: x + torch.tensor([n, n]),
        lambda x, n: x + torch.as_tensor([n, n]),
        lambda x, n: x + dtorch.Tensor([n, n], MESH),
        lambda x, n: x + torch.from_numpy(numpy.full(2, n)),
    ],
)
def test_values_from_python_that_change_unseen_are_refused(use: Callable[..., torch.Tensor]) -> None:
    numbers = iter(range(100))
    captured, x = capture(lambda x: use(x, float(next(numbers)))), sharded(torch.ones(4, 2))
    with pytest.raises(CaptureError, match="does not do the same twice"):
        captured.capture(x)


def test_values_from_python_are_made_anew() -> None:
    def counted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        start = torch.tensor([1.0, 2.0])
        start += 1
        return x + start, torch.tensor([5.0])

    captured, x = capture(counted), sharded(torch.ones(4, 2))
    for _ in range(7):
        value, other = captured(x)
        assert value.to_torch()[0].tolist() == [3.0, 4.0]
        assert other.tolist() == [5.0]
        other.zero_()
    assert captured.stats().replays == 4


ARRAY = numpy.zeros(2, dtype=numpy.float32)


@pytest.mark.parametrize(("array", "replays"), [(lambda: sys.modules[__name__].ARRAY, 5), (lambda: ARRAY, 1)])
def test_a_plain_tensor_over_the_memory_of_an_array_sees_what_is_written(
    array: Callable[[], numpy.ndarray], replays: int
) -> None:
    captured, x = capture(lambda x: x + torch.from_numpy(array())), sharded(torch.ones(4, 2))
    for value in (0.5,) * 4 + (1.0, 2.0, 3.0, 4.0):
        ARRAY[0] = value
        assert captured(x).to_torch()[0].tolist() == [1 + value, 1.0]
    assert captured.stats().replays == replays


def test_what_is_read_before_a_write_into_a_plain_tensor_is_as_it_was_before() -> None:
    counter = torch.zeros(2)

    def counted(x: torch.Tensor) -> torch.Tensor:
        result = x + counter[:1]
        counter.add_(1)
        return result * counter

    captured, x = capture(counted), sharded(torch.ones(4, 2))
    for number in range(7):
        assert captured(x).to_torch()[0].tolist() == [(1.0 + number) ** 2] * 2
    assert captured.stats().replays == 4


def test_what_is_written_into_an_array_by_replays_stays_there() -> None:
    def counted(x: torch.Tensor) -> torch.Tensor:
        count = torch.from_numpy(sys.modules[__name__].ARRAY)
        result = x + count
        if x.shape[0] == 4:
            count.fill_(2.0)
        return result

    captured, x = capture(counted), sharded(torch.ones(4, 2))
    ARRAY[:] = 2.0
    captured.capture(x)
    for value in (0.0, 1.0):
        ARRAY[:] = value
        assert captured(x).to_torch()[0].tolist() == [1 + value] * 2
        assert ARRAY.tolist() == [2.0, 2.0]
    assert captured.stats().replays == 2


@pytest.mark.parametrize("plain", [False, True])
def test_a_float_assigned_by_index_is_followed(plain: bool) -> None:
    def assigned(x: torch.Tensor, n: float) -> torch.Tensor:
        made = torch.zeros(4, 2) if plain else x.clone()
        made[:, 1] = n
        made[made > 7] = n * 2
        return x + made

    captured, full = capture(assigned), torch.arange(8.0).reshape(4, 2)
    for n in (0.1, 0.1, 0.1, 0.2, 0.3, 0.4, 9.0):
        assert torch.equal(captured(sharded(full), n).to_torch(), assigned(full, n))
    assert captured.stats().replays >= 3


def test_values_that_cannot_be_followed_are_refused_with_advice() -> None:
    captured, x = capture(lambda x, n: x + x.new_tensor([n, n])), sharded(torch.ones(4, 2))
    numbers = iter((0.25, 0.125, 0.75, 0.3, 0.6, 0.7))
    captured.capture(x, 0.5)
    with pytest.raises(CaptureError, match="make that tensor outside and pass it as an argument"):
        deque(iter(lambda: captured(x, next(numbers)), None))


@pytest.mark.parametrize(("use", "numbers"), [
    (lambda x, s: x / s, (2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 5.0)),
    (lambda x, s: x * s, (2.0, 3.0, 4.0, math.inf, math.inf, -math.inf, 5.0)),
    (lambda x, s: x * (1 / s), (2.0, 4.0, 8.0, math.inf, 0.5)),
])  # fmt: skip
def test_a_number_that_pending_sums_may_not_meet_is_recorded_anew(
    use: Callable[..., torch.Tensor], numbers: tuple[float, ...]
) -> None:
    a, b = torch.tensor([[5.0, -3.0]]), torch.ones(2, 1)
    parts = dtorch.Tensor(a, MESH, [Shard(1)]), dtorch.Tensor(b, MESH, [Shard(0)])
    captured = capture(lambda a, b, s: use(a @ b, s))
    for s in (2.0, 2.0, *numbers):
        assert torch.allclose(captured(*parts, s).to_torch(), use(a @ b, s))
    assert captured.stats().replays >= 1


def test_betas_that_become_another_number_of_floats_are_recorded_anew() -> None:
    weight = sharded(torch.ones(4, 2)).requires_grad_()

    class Scaled(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for beta in self.param_groups[0]["betas"]:
                weight.mul_(beta)

    optimizer = Scaled([weight], {"betas": (0.5, 0.25)})

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        return x * 2

    captured, product = capture(step), 1.0
    for betas in ((0.5, 0.25),) * 2 + ((0.25, 0.5), (2.0, 4.0), (4.0, 0.5), (3.0,), (3.0,), (0.5, 4.0)):
        optimizer.param_groups[0]["betas"] = betas
        captured(sharded(torch.ones(4, 2)))
        product *= math.prod(betas)
        assert weight[0, 0].item() == product
    assert captured.stats().replays >= 1


@pytest.mark.parametrize(
    "use",
    [
        lambda x, s: F.leaky_relu(x, s // 1),
        lambda x, s: x.clamp(s // 1, 7.0),
        lambda x, s: x * int(s),
        lambda x, s: x * round(s),
        lambda x, s: x * math.floor(s),
        lambda x, s: x * math.ceil(s),
        lambda x, s: x * math.trunc(s),
        lambda x, s: x * int(float(s)),
        lambda x, s: x * divmod(s, 1)[0],
        lambda x, s: x * {0.75: 1, 1.5: 2}.get(s, 3),
        lambda x, s: x * (1 if s.is_integer() else 2),
    ],
)
def test_a_whole_number_made_of_a_float_may_stay_and_then_change(use: Callable[..., torch.Tensor]) -> None:
    full = torch.tensor([[-1.0, 2.0]] * 4)
    captured = capture(use)
    values = (0.5, 0.5, 0.25, 0.375, 0.75, 1.5, 1.5, 1.25, 1.5, 2.0, 7.5)
    for s in values:  # a call that was never made before is not captured
        use(sharded(full), s)
    for s in values:
        assert torch.equal(captured(sharded(full), s).to_torch(), use(full, s))
    assert captured.stats().replays >= 1


def test_a_rounded_number_is_followed() -> None:
    captured, x = capture(lambda x, s: x * round(s, 1)), sharded(torch.ones(4, 2))
    for s in (0.51, 0.51, 0.26, 0.72, 0.14):
        assert torch.equal(captured(x, s).to_torch(), x.to_torch() * round(s, 1))
    assert captured.stats().replays == 2


def test_a_rate_that_is_returned_is_followed() -> None:
    weight = sharded(torch.ones(4, 2)).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
        return x * 2, optimizer.param_groups[0]["lr"]

    captured = capture(step)
    for number in range(9):
        optimizer.param_groups[0]["lr"] = 1 / (number + 1)
        rate = captured(sharded(torch.ones(4, 2)))[1]
        assert (type(rate), rate) == (float, 1 / (number + 1))
    assert captured.stats().replays >= 5
