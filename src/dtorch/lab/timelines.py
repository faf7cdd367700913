"""[F1], [F2]: kernels launched one by one against a recording, as a timeline and over kernel lengths."""

from __future__ import annotations

from collections.abc import Mapping

from dtorch.lab.result import Column, Result, Table
from dtorch.lab.settings import Settings
from dtorch.perf.launch import LaunchModel


def model(settings: Settings) -> LaunchModel:
    """The launch model of the settings, in microseconds."""
    return LaunchModel(settings.launch.launch_us, settings.launch.dispatch_us)


def timeline(settings: Settings, before: Mapping[str, Result]) -> Result:
    """[F1] One timeline, and what the answer depends on most."""
    given, launches = settings.launch, model(settings)
    executions = [given.execution_us] * given.kernels
    eager, replayed = launches.eager(executions), launches.replay(executions)
    change = launches.sensitivity(given.kernels, given.execution_us)
    most = max(change, key=lambda name: abs(change[name] - 1))
    rows = (
        {"way": "launched one by one", "total": eager.total, "idle": eager.idle, "speedup": 1.0},
        {
            "way": "replayed",
            "total": replayed.total,
            "idle": replayed.idle,
            "speedup": eager.total / replayed.total,
        },
    )
    return Result(
        "F1",
        "Timeline of launches",
        (
            Table(
                f"{given.kernels} kernels of {given.execution_us:g} us, launch {given.launch_us:g} us, "
                f"dispatch {given.dispatch_us:g} us",
                (
                    Column("way", "way", tag="given"),
                    Column("total", "total", "us", "modelled"),
                    Column("idle", "device idle", "us", "modelled"),
                    Column("speedup", "speed-up", "x", "modelled"),
                ),
                rows,
            ),
            Table(
                "Speed-up of replaying when one time grows by 10 %",
                (Column("time", "time", tag="given"), Column("factor", "multiplied by", "", "modelled")),
                tuple({"time": name, "factor": factor} for name, factor in change.items()),
            ),
        ),
        (
            launches.why(executions).capitalize() + ".",
            f"It depends most on the {most} time: 10 % more of it multiplies the speed-up by "
            f"{change[most]:.3f}.",
        ),
    )


def sweep(settings: Settings, before: Mapping[str, Result]) -> Result:
    """[F2] The speed-up over kernel lengths, and the exact break-even."""
    given, launches = settings.launch, model(settings)
    rows = tuple(
        {
            "execution": length,
            "eager": launches.eager_total(given.kernels, length),
            "replayed": launches.replay_total(given.kernels, length),
            "speedup": launches.speedup(given.kernels, length),
        }
        for length in given.executions_us
    )
    limit = launches.break_even(given.kernels)
    return Result(
        "F2",
        "Where replaying stops paying",
        (
            Table(
                f"{given.kernels} kernels",
                (
                    Column("execution", "one kernel", "us", "given"),
                    Column("eager", "one by one", "us", "modelled"),
                    Column("replayed", "replayed", "us", "modelled"),
                    Column("speedup", "speed-up", "x", "modelled"),
                ),
                rows,
            ),
        ),
        (
            "With these times replaying never wins."
            if limit is None
            else f"Replaying wins for kernels shorter than {limit:.3f} us, and loses from there on, although "
            f"a launch takes {given.launch_us:g} us.",
        ),
        {"break_even": limit},
    )
