"""The launch model: published figures, closed forms against simulation, the exact break-even."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtorch.errors import ModelError
from dtorch.perf.launch import LaunchModel

MODEL = LaunchModel(launch=3.0, dispatch=0.5)
SWEEP = {0.5: 2.99, 1: 2.00, 2: 1.20, 3: 0.86, 5: 0.91, 8: 0.94, 12: 0.96, 20: 0.98, 40: 0.99}

times = st.floats(0.0, 50.0)
counts = st.integers(1, 40)


def test_published_timeline() -> None:
    eager, replayed = MODEL.eager([2.0] * 700), MODEL.replay([2.0] * 700)
    assert (eager.total, eager.idle, replayed.total) == (2102.0, 702.0, 1753.0)
    assert round(eager.total / replayed.total, 2) == 1.20


@pytest.mark.parametrize(("execution", "speedup"), SWEEP.items())
def test_published_sweep(execution: float, speedup: float) -> None:
    assert round(MODEL.speedup(700, execution), 2) == speedup


@given(launch=times, dispatch=times, fixed=times, count=counts, execution=times)
def test_closed_forms_are_the_simulation(
    launch: float, dispatch: float, fixed: float, count: int, execution: float
) -> None:
    model = LaunchModel(launch, dispatch, fixed)
    kernels = [execution] * count
    assert model.eager_total(count, execution) == pytest.approx(model.eager(kernels).total)
    assert model.replay_total(count, execution) == pytest.approx(model.replay(kernels).total)


@given(launch=st.floats(0.1, 50), dispatch=times, fixed=times, count=st.integers(2, 40))
def test_replay_wins_exactly_below_the_break_even(
    launch: float, dispatch: float, fixed: float, count: int
) -> None:
    model = LaunchModel(launch, dispatch, fixed)
    limit = model.break_even(count)
    if limit is None:
        assert model.speedup(count, 0.0) <= 1 + 1e-9
    else:
        assert model.speedup(count, 0.999 * limit) > 1 - 1e-9
        assert model.speedup(count, 1.001 * limit) < 1 + 1e-9


def test_one_kernel_is_never_worth_a_recording() -> None:
    assert MODEL.break_even(1) is None


def test_without_dispatch_the_break_even_is_still_no_launch_time() -> None:
    assert LaunchModel(3.0, 0.0).break_even(700) == 3.0
    assert MODEL.break_even(700) == pytest.approx(3 - 350 / 699)


def test_kernels_of_different_lengths() -> None:
    line = LaunchModel(launch=2.0, dispatch=0.5).eager([5.0, 1.0, 1.0])
    assert line.started == (2.0, 7.0, 8.0)
    assert LaunchModel(2.0, 0.5).eager([1.0, 5.0, 1.0]).started == (2.0, 4.0, 9.0)
    assert line.idle == 2.0


def test_sensitivity_is_named_by_time() -> None:
    change = MODEL.sensitivity(700, 2.0)
    assert set(change) == {"launch", "dispatch", "fixed", "execution"}
    assert change["launch"] > 1 > change["dispatch"]
    assert change["fixed"] == 1


def test_why_says_which_and_what_decides() -> None:
    assert MODEL.why([2.0] * 700).startswith("replay is faster: 700 kernels take 2102.0 us")
    assert "no shorter than a launch" in MODEL.why([20.0] * 700)
    assert MODEL.why([]) == "nothing to launch"


@pytest.mark.parametrize("name", ["launch", "dispatch", "fixed"])
def test_negative_times_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"{name} is -1"):
        LaunchModel(**{"launch": 1.0, "dispatch": 1.0, name: -1.0})
    with pytest.raises(ModelError, match="kernel 1 takes"):
        MODEL.eager([1.0, float("nan")])
