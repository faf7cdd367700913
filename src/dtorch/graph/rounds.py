"""How often the program has gone round its loops: a number for the round in which it is.

A step of training, or a token of a decode loop, is a round. Calls that were made in an earlier round are made
again; what is made first in this one may never come back. Nobody says where a loop is, but a function that
was seen at a later instruction has gone back, or is called again. Functions inside of a module do not count:
they go round for layers. Nor does a loop that has been left: what is run at the end of a step was made in it.

A turn is shorter: the outermost module is called from another line, or in another round. A prompt and the
first token after it are two turns, though no loop has gone round between them.
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
        before: number of the loop's round before; None where the loop has just been seen to be one.
    """

    depth: int
    end: int
    number: int
    before: int | None = None


class Round(NamedTuple):
    """Where in its loops a thread is.

    Attributes:
        number: of the round of the innermost loop.
        before: number of that loop's round before, if it had a number.
        again: whether the outermost module in which it is, or was last, had its turn before.
        in_module: whether it is in one.
    """

    number: int
    before: int | None
    again: bool
    in_module: bool


class _Seen(local):
    """Where a thread was seen last.

    Attributes:
        path: the program's functions, as (id of the code, instruction), outermost first, to the first module.
        loops: those it is in, outermost first; the first stands for all of the program.
        turn: the present or last one, by round and path.
        again: whether its module had one before.
        modules: ids of the code of outermost modules that had a turn.
    """

    def __init__(self) -> None:
        self.path: list[tuple[int, int]] = []
        self.loops = [_Loop(-1, 0, next(_NUMBERS))]
        self.turn: Any = None
        self.again = False
        self.modules: set[int] = set()


_SEEN = _Seen()


def present() -> Round:
    """The round of the innermost loop in which the caller is; other threads have others."""
    seen, (path, module) = _SEEN, _path()
    before, seen.path = seen.path, path
    depth = next((i for i, (then, now) in enumerate(zip(before, path)) if then != now), None)
    if depth is not None:
        _move(seen.loops, before, path, depth)
    loop = seen.loops[-1]
    if module and seen.turn != (loop.number, path):
        seen.turn, seen.again = (loop.number, path), module in seen.modules
        seen.modules.add(module)
    return Round(loop.number, loop.before, seen.again, module != 0)


def _move(loops: list[_Loop], before: list[tuple[int, int]], path: list[tuple[int, int]], depth: int) -> None:
    """Leave loops and go round them, between two paths that differ first at a depth."""
    again = path[depth][0] != before[depth][0]  # its caller calls again, from the same instruction
    depth -= again
    at, end = path[depth][1], before[depth][1]
    again = again or at < end
    last = None
    while loops[-1].depth > depth or (loops[-1].depth == depth >= 0 and (again or at > loops[-1].end)):
        left = loops.pop()
        if left.depth == depth:
            end, last = max(end, left.end), left.number
    if again and depth >= 0:
        loops.append(_Loop(depth, end, next(_NUMBERS), last))


def _path() -> tuple[list[tuple[int, int]], int]:
    """The program's functions to the first module, and the id of that module's code; 0 if it has none."""
    path: list[tuple[int, int]] = []
    module = nearest = 0
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name == _MODULE:
            path.clear()
            module = nearest
        elif not INSIDE[name]:
            nearest = id(frame.f_code)
            path.append((nearest, frame.f_lasti))
        frame = frame.f_back
    path.reverse()
    return path, module
