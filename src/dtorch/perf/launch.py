"""What launching costs: kernels sent one by one against a recording that is sent once.

One stream, N kernels. Sent one by one, kernel i can start when kernel i - 1 has ended and when it has itself
been launched, which takes the host `launch` each:

    start_i = max(end_(i-1), (i + 1) launch)        eager: total = end of the last one

Recorded once and replayed, one launch sends all; the device still dispatches each kernel:

    total = launch + fixed + sum over i of (execution_i + dispatch)

For kernels of one length e, eager has the closed form

    e >= launch     launch + N e                    the device never waits
    e <  launch     N launch + e                    the device waits for the host

so replay wins exactly where `e < launch - (N dispatch + fixed) / (N - 1)`, which is less than `launch`: a
recording saves no byte and no kernel, and where kernels are longer than their launch it only costs.

Times are in one unit throughout, whichever the caller uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dtorch.errors import ModelError


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each kernel was launched, started and ended, from 0.

    Args:
        launched: the time at which the host had sent kernel i.
        started: the time at which the device began it.
        ended: the time at which the device had done it.
    """

    launched: tuple[float, ...]
    started: tuple[float, ...]
    ended: tuple[float, ...]

    @property
    def total(self) -> float:
        """The end of the last kernel; 0 without any."""
        return self.ended[-1] if self.ended else 0.0

    @property
    def idle(self) -> float:
        """The part of `total` in which the device executed nothing."""
        return self.total - sum(end - start for start, end in zip(self.started, self.ended))


@dataclass(frozen=True, slots=True)
class LaunchModel:
    """The three times that decide between launching and replaying, in one unit.

    Args:
        launch: host time to send one kernel, or one recording.
        dispatch: device time to pass from one kernel of a recording to the next.
        fixed: what one replay costs besides: copying its inputs into place, host work around it.

    Raises:
        ModelError: a negative time.
    """

    launch: float
    dispatch: float
    fixed: float = 0.0

    def __post_init__(self) -> None:
        for name in ("launch", "dispatch", "fixed"):
            if not getattr(self, name) >= 0:
                raise ModelError(f"LaunchModel: {name} is {getattr(self, name)}, a time is at least 0")

    def eager(self, executions: Sequence[float]) -> Timeline:
        """Kernels of these lengths, launched one by one."""
        launched, started, ended, end = [], [], [], 0.0
        for index, execution in enumerate(_lengths(executions)):
            sent = (index + 1) * self.launch
            start = max(end, sent)
            end = start + execution
            launched.append(sent)
            started.append(start)
            ended.append(end)
        return Timeline(tuple(launched), tuple(started), tuple(ended))

    def replay(self, executions: Sequence[float]) -> Timeline:
        """The same kernels, sent as one recording."""
        started, ended, end = [], [], self.launch + self.fixed
        for execution in _lengths(executions):
            start = end + self.dispatch
            end = start + execution
            started.append(start)
            ended.append(end)
        return Timeline((self.launch,) * len(ended), tuple(started), tuple(ended))

    def eager_total(self, count: int, execution: float) -> float:
        """`eager([execution] * count).total` in closed form."""
        if count == 0:
            return 0.0
        if execution >= self.launch:
            return self.launch + count * execution
        return count * self.launch + execution

    def replay_total(self, count: int, execution: float) -> float:
        """`replay([execution] * count).total` in closed form."""
        return self.launch + self.fixed + count * (execution + self.dispatch) if count else 0.0

    def speedup(self, count: int, execution: float) -> float:
        """Eager time over replayed time; below 1 where replaying loses."""
        return self.eager_total(count, execution) / self.replay_total(count, execution)

    def break_even(self, count: int) -> float | None:
        """The execution time below which replay wins, exactly; None where it never does.

        Args:
            count: kernels in the recording. One kernel is launched once either way: never.
        """
        if count < 2:
            return None
        limit = self.launch - (count * self.dispatch + self.fixed) / (count - 1)
        return limit if limit > 0 else None

    def sensitivity(self, count: int, execution: float, change: float = 0.1) -> dict[str, float]:
        """By what the speed-up is multiplied when one time grows by `change` (0.1 is ten per cent)."""
        before = self.speedup(count, execution)
        grown = {
            name: replace(self, **{name: getattr(self, name) * (1 + change)}).speedup(count, execution)
            for name in ("launch", "dispatch", "fixed")
        }
        grown["execution"] = self.speedup(count, execution * (1 + change))
        return {name: after / before for name, after in grown.items()}

    def why(self, executions: Sequence[float], unit: str = "us") -> str:
        """One sentence: which of the two is faster for these kernels, by how much, and what decides it."""
        if not executions:
            return "nothing to launch"
        eager, replayed = self.eager(executions), self.replay(executions)
        mean = sum(executions) / len(executions)
        wins = replayed.total < eager.total
        relation = "shorter" if mean < self.launch else "no shorter"
        return (
            f"{'replay' if wins else 'launching one by one'} is faster: {len(executions)} kernels take "
            f"{eager.total:.1f} {unit} launched one by one ({eager.idle:.1f} idle) and {replayed.total:.1f} "
            f"{unit} "
            f"replayed; a kernel ({mean:.2f} {unit} on average) is {relation} than a launch "
            f"({self.launch:.2f} {unit})"
        )


def _lengths(executions: Sequence[float]) -> Sequence[float]:
    for index, execution in enumerate(executions):
        if not execution >= 0:
            raise ModelError(f"kernel {index} takes {execution}, a time is at least 0")
    return executions
