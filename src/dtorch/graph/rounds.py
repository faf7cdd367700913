"""How often the program has gone round its loops: a number for the round in which it is.

A step of training, or a token of a decode loop, is a round. Calls that were made in an earlier round are made
again; what is made first in this one may never come back. Nobody says where a loop is, but a function that
was seen at a later instruction has gone back, or is called again. Functions inside of a module do not count:
they go round for layers. Nor does a loop that has been left: what is run at the end of a step was made in it.
"""

from __future__ import annotations

import sys
from itertools import count
from threading import local
from typing import Any, NamedTuple

_NUMBERS = count()
_MODULE = "torch.nn.modules.module"


class _Inside(dict[Any, bool]):
    """Whether a module only passes calls on: dtorch, torch, context managers. Asked for every call."""

    def __missing__(self, name: Any) -> bool:
        found = self[name] = str(name).partition(".")[0] in ("dtorch", "torch", "contextlib")
        return found


INSIDE = _Inside()


class _Loop(NamedTuple):
    """A loop in which a thread is.

    Attributes:
        depth: of the function, in the path.
        end: the last instruction that was seen in it.
        number: of the round.
    """

    depth: int
    end: int
    number: int


class _Seen(local):
    """Where a thread was seen last.

    Attributes:
        path: the program's functions, as (id of the code, instruction), outermost first, to the first module.
        loops: those it is in, outermost first; the first stands for all of the program.
    """

    def __init__(self) -> None:
        self.path: list[tuple[int, int]] = []
        self.loops = [_Loop(-1, 0, next(_NUMBERS))]


_SEEN = _Seen()


def present() -> int:
    """The number of the round, of the innermost loop in which the caller is; other threads have others."""
    seen, path = _SEEN, _path()
    before, seen.path, loops = seen.path, path, seen.loops
    depth = next((i for i, (then, now) in enumerate(zip(before, path)) if then != now), None)
    if depth is None:
        return loops[-1].number
    again = path[depth][0] != before[depth][0]  # its caller calls again, from the same instruction
    depth -= again
    at, end = path[depth][1], before[depth][1]
    again = again or at < end
    while loops[-1].depth > depth or (loops[-1].depth == depth >= 0 and (again or at > loops[-1].end)):
        left = loops.pop()
        end = max(end, left.end) if left.depth == depth else end
    if again and depth >= 0:
        loops.append(_Loop(depth, end, next(_NUMBERS)))
    return loops[-1].number


def _path() -> list[tuple[int, int]]:
    path: list[tuple[int, int]] = []
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name == _MODULE:
            path.clear()
        elif not INSIDE[name]:
            path.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    path.reverse()
    return path
