"""What has kept a captured function from being replayed, and what a replay would save.

By the launch model (`perf/launch.py`) a call that is recorded takes a launch for each of its operators, which
is all that Python does for it, and a replay takes one launch for all of them:

    recorded = N launch + execution        replayed = launch + execution

On one thread launching and executing do not overlap. Both times are measured: of whole calls, and of the
plans that ran in them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dtorch.perf.launch import LaunchModel

OFTEN = 3
"""Changes after which a reader is told that they keep happening."""


class History:
    """The changes that ended recordings, and the least times that calls have taken.

    Attributes:
        calls: operators of the last recording that run at a replay; 0 where all only view what stays.
        recorded_s: a call that was recorded and run, in s.
        execution_s: the run of a whole recording, in s.
        replayed_s: a replay, in s.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.recorded_s = self.execution_s = self.replayed_s = float("inf")
        self._changes: Counter[str] = Counter()
        self._replays = 0
        self._seen: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self._changing: set[tuple[int, str]] = set()

    def is_input(self, group: dict[str, Any], name: str) -> bool:
        """Whether an entry of an optimizer's group is an input of recordings.

        Floats are: rates change. A tuple of floats, such as betas, is once it has been met with other values,
        as schedulers cycle them; until then its floats are constants, for which compiled code is better.
        """
        value, key = group[name], (id(group), name)
        if type(value) is not tuple or {*map(type, value)} != {float}:
            return type(value) is float
        _, before = self._seen.setdefault(key, (group, value))
        if before != value:
            self._changing.add(key)
        return key in self._changing

    def change(self, text: str) -> str:
        """Note what has changed; the text, and more of it where changes outnumber replays."""
        place = text.split(" was ")[0]
        self._changes[place] += 1
        return text + self.advice("; ")

    def advice(self, before: str) -> str:
        """What to do where changes outnumber replays; nothing where they do not."""
        if sum(self._changes.values()) < OFTEN or self._replays > sum(self._changes.values()):
            return ""
        most, times = self._changes.most_common(1)[0]
        return (
            f"{before}recordings keep being made anew, {times} times because of {most}: pass it as an "
            f"argument, count in a plain tensor, or keep it out of the function's reach{self.gain('; ')}"
        )

    def replay(self, seconds: float) -> None:
        """Note a replay."""
        self._replays += 1
        if seconds < self.replayed_s:
            self.replayed_s = seconds
            self.execution_s = min(
                self.execution_s, seconds
            )  # a first run of a plan is slower than later ones

    def gain(self, before: str = "") -> str:
        """What a replay is worth, in words; nothing while it is not known, or where it runs no operator."""
        if not self.calls or max(self.recorded_s, self.execution_s) == float("inf"):
            return ""
        launch = max(self.recorded_s - self.execution_s, 0.0) / self.calls
        foretold = LaunchModel(launch, 0.0).replay_total(self.calls, self.execution_s / self.calls)
        taken = "" if self.replayed_s == float("inf") else f", {self.replayed_s * 1e3:.2f} ms when it was"
        return (
            f"{before}{self.calls} calls take {self.recorded_s * 1e3:.2f} ms recorded one by one and "
            f"{foretold * 1e3:.2f} ms replayed, by the launch model{taken}"
        )
