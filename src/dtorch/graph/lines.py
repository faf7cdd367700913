"""Which lines of the program make new calls, and whether one that is new is likely to come again.

A module that is called again, and makes other calls than before, has got to another stage: the first token
after a prompt, the first batch of a test. Most of what it calls now it will call in each round to come. Not
so a line that made new calls in two rounds of a loop, one after the other: what it works on grows.

Guesses decide no more than when plans are made. Each line has a few.
"""

from __future__ import annotations

from types import CodeType
from typing import Any, NamedTuple

from dtorch.graph.rounds import Round

MAX_LINES = 20_000
"""Lines remembered; of more all are forgotten."""
MAX_ROUNDS = 8
"""Rounds in which a line may make new calls and still be thought to repeat the next one."""


class _Line(NamedTuple):
    """A line that made new calls.

    Attributes:
        rounds: in how many.
        last: number of the last of them.
        grows: whether two of them followed each other.
    """

    rounds: int
    last: int
    grows: bool


_LINES: dict[Any, _Line] = {}
_FUNCTIONS: dict[CodeType, None] = {}  # that ran in a module


def forget() -> None:
    """Know no line, as in a new process."""
    _LINES.clear()
    _FUNCTIONS.clear()


def enter(place: Any, now: Round) -> None:
    """Note that a line makes a call now, where the thread is."""
    if now.in_module and place is not None:
        _make_room(_FUNCTIONS)
        _FUNCTIONS[place[0]] = None


def note(place: Any, now: Round) -> None:
    """Note that a line makes a call that it has not made before.

    Args:
        place: as `users_place` notes it.
        now: the round in which it does, or in which that is seen.
    """
    line = _LINES.get(place)
    if line is None:
        _make_room(_LINES)
        _LINES[place] = _Line(1, now.number, False)
    elif line.last != now.number:
        _LINES[place] = _Line(line.rounds + 1, now.number, line.grows or line.last == now.before)


def returns(place: Any, now: Round) -> bool:
    """Whether a new call of a line is likely to come again."""
    if place is None or not now.again or place[0] not in _FUNCTIONS:
        return False
    line = _LINES.get(place)
    return line is None or not (line.grows or line.rounds > MAX_ROUNDS)


def _make_room(known: dict[Any, Any]) -> None:
    if len(known) >= MAX_LINES:
        known.clear()
