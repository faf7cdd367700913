"""`dtorch.capture`: a function that is replayed once it has been seen to do the same again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from dtorch.errors import CaptureError
from dtorch.graph.graph import Graph
from dtorch.op.operand import Operand
from dtorch.replay import cuda_graph
from dtorch.replay.around import surroundings, watcher
from dtorch.replay.history import OFTEN, History
from dtorch.replay.program import CourseChanged, Program
from dtorch.replay.recording import record
from dtorch.tensor import Tensor

MAX_PROGRAMS = 16
"""Recordings kept by one capture; a function that needs more changes too much to be worth it."""
_LEAVES = (torch.Tensor, bool, int, float, str, type(None))
"""What stands for itself among the arguments: no container."""


@dataclass
class CaptureStats:
    """What a capture has done.

    Attributes:
        calls: of the function, of whatever kind.
        captures: calls that were recorded whole.
        replays: calls that ran without the function's Python.
        bytes_held: of tensors that only the recordings keep alive.
    """

    calls: int = 0
    captures: int = 0
    replays: int = 0
    bytes_held: int = 0


@dataclass
class _Course:
    """Where the calls with one kind of arguments stand."""

    warm: int = 0
    unlike: int = 0
    unmet: int = 0
    candidate: Program | None = None
    programs: list[Program] = field(default_factory=list)


class Capture:
    """A captured function; see `capture`."""

    patience = 3
    """Recordings that may differ from the one before; then the function is refused."""

    def __init__(self, function: Callable[..., Any], warmup: int = 1) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.warmup = warmup
        self._courses: dict[Any, _Course] = {}
        self._stats = CaptureStats()
        self._doors: dict[torch.device, cuda_graph.Door] = {}
        self._history = History()
        self._ended: Program | None = None
        self._why: str | Program = "nothing has been called yet"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, by a replay where there is one.

        Raises:
            CaptureError: the function cannot be captured; `why()` says the same.
        """
        self._stats.calls += 1
        leaves, graph, course = self._course(args, kwargs)
        if graph.constructor.captured:
            self._why = "called as it is: another captured function, which is being recorded, calls it"
            return self.function(*args, **kwargs)
        if course.programs and graph.recorders:
            self._why = "called as it is: dtorch.record() is open, and a replay makes no calls to list"
            return self.function(*args, **kwargs)
        if around := watcher():
            self._why = f"called as it is: {around} is open, which a replay would pass by"
            return self.function(*args, **kwargs)
        done, value = self._replayed(course, leaves)
        return value if done else self._recorded(course, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Capture:
        """The capture itself, from its class.

        Raises:
            CaptureError: from an instance: recordings are of one object's method.
        """
        if instance is None:
            return self
        name = self._name()
        raise CaptureError(
            f"capture(): {name} is a method, and a recording is of the method of one object; capture it "
            f"bound: step = dtorch.capture(object.{name.split('.')[-1]})"
        )

    def __repr__(self) -> str:
        return f"<captured {self._name()}: {self.why()}>"

    def _name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def capture(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as often as it takes to have a recording; the value of the last call.

        These are calls like any other: a training step so captured has been made `warmup + 2` times.

        Raises:
            CaptureError: the function cannot be captured, or still has no recording after `patience` times
                as many calls as it takes; the text says why.
        """
        leaves, _, course = self._course(args, kwargs)
        value, left = None, self.patience * (self.warmup + 2)
        while not any(program.roots.hold() and not program.moved(leaves) for program in course.programs):
            if not left:
                raise CaptureError(f"capture(): there is no recording yet: {self.why()}")
            left -= 1
            value = self(*args, **kwargs)
        return value

    def instantiate(self) -> None:
        """Make all recordings that have been replayed ready to run: compile them and wait until it is done.

        Where numbers change from call to call, the regions of the plan are compiled instead of the whole.

        What may be compiled `dtorch.optimize` says. On a CUDA device it is looked at anew which recordings
        are to run as CUDA graphs; their next replays make these. `why()` tells what became of it.
        """
        for course in self._courses.values():
            for program in course.programs:
                program.compile()
                self._instantiate(program)

    def replay(self, *args: Any, **kwargs: Any) -> Any:
        """Replay, or refuse.

        Raises:
            CaptureError: there is no recording for such arguments that still holds, or `dtorch.record()` is
                open.
        """
        leaves, graph, course = self._course(args, kwargs)
        around = "dtorch.record()" if graph.recorders else watcher()
        if around:
            raise CaptureError(
                f"replay(): {around} is open, and a replay makes no calls to list; call the captured "
                "function, which then runs as it is"
            )
        self._stats.calls += 1
        done, value = self._replayed(course, leaves)
        if not done:
            changed = [program.roots.changed() for program in course.programs]
            reason = next(
                (text for text in changed if text), "no recording for such arguments, settings and values"
            )
            raise CaptureError(f"replay(): {reason}; call the captured function, which records anew")
        return value

    def stats(self) -> CaptureStats:
        """Counts, and the bytes that recordings hold."""
        programs = [program for course in self._courses.values() for program in course.programs]
        self._stats.bytes_held = sum(program.nbytes for program in programs)
        return self._stats

    def why(self) -> str:
        """What the last call did, and why."""
        if isinstance(self._why, Program):
            program = self._why
            choice = f", {program.choice}" if program.choice else ""
            return f"replayed: a plan of {len(program.selection.nodes)} calls{program.run.why()}{choice}"
        return self._why

    def gain(self) -> str:
        """What replaying saves by the launch model, and what it takes, in words; empty before a recording."""
        return self._history.gain()

    # -- inside ---------------------------------------------------------------------------------------------

    def _course(self, args: tuple, kwargs: dict) -> tuple[Sequence[Any], Graph, _Course]:
        leaves: Sequence[Any] = args
        tree: Any = len(args)
        if kwargs or not all(isinstance(leaf, _LEAVES) for leaf in args):
            leaves, tree = tree_flatten((args, kwargs))
        firsts: dict[int, int] = {}
        graph = self._graph(leaves)
        key = (
            tree,
            surroundings(),
            graph.policy,
            *[_kind(leaf, firsts.setdefault(id(leaf), place)) for place, leaf in enumerate(leaves)],
        )
        course = self._courses.get(key)
        if course is None:
            course = self._courses[key] = _Course()
        return leaves, graph, course

    def _instantiate(self, program: Program) -> None:
        device = cuda_graph.cuda_device(program)
        if device is None:
            return
        if device not in self._doors:
            self._doors[device] = cuda_graph.Cuda(device)
        program.instantiate(self._doors[device])

    def _graph(self, leaves: Sequence[Any]) -> Graph:
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                return leaf._graph
        return Graph.default_graph()

    def _replayed(self, course: _Course, leaves: Sequence[Any]) -> tuple[bool, Any]:
        near = None
        for program in course.programs:
            if not program.roots.hold():
                self._ended = program
                continue
            near = program
            if program.moved(leaves):
                continue
            start = perf_counter()
            try:
                value = program.replay(leaves)
            except CourseChanged:
                continue
            self._history.replay(perf_counter() - start)
            self._stats.replays += 1
            self._why = program
            if program is not course.programs[0]:  # the next call is most likely like this one
                course.programs.remove(program)
                course.programs.insert(0, program)
            return True, value
        course.candidate = course.candidate or near
        return False, None

    def _warm(self, course: _Course, leaves: Sequence[Any], args: tuple, kwargs: dict) -> Any:
        """Call the function as ever."""
        self._why = f"warming up, call {course.warm} of {self.warmup}"
        if self._ended is not None:
            self._why += f", since {self._history.change(self._ended.roots.changed())}"
            self._ended = None
        elif len(self._courses) > OFTEN:
            self._why += (
                f"; {len(self._courses)} kinds of arguments by now, and each is recorded by itself: a whole "
                "number that changes from call to call is better a tensor or a float"
            )
        start = perf_counter()
        value = self.function(*args, **kwargs)
        self._graph(leaves).constructor.flush()
        self._history.recorded_s = min(self._history.recorded_s, perf_counter() - start)
        return value

    def _recorded(self, course: _Course, args: tuple, kwargs: dict) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        candidate = course.candidate
        if candidate is not None and not candidate.roots.hold():
            self._ended = candidate
            course.candidate = candidate = None
            course.warm = 0
        if candidate is None and course.warm < self.warmup:
            course.warm += 1
            return self._warm(course, leaves, args, kwargs)
        self._stats.captures += 1
        try:
            value, program = record(self.function, self._graph(leaves), leaves, tree, self._history)
        except CaptureError as error:
            self._why = str(error)
            raise
        if program is None:
            self._stats.captures -= 1
            course.unmet += 1
            self._why = "not captured: it made calls that were never made before"
            if course.unmet < OFTEN:
                self._why += "; the next call is tried again"
            else:
                self._why += (
                    f", {course.unmet} times in a row by now: a whole number or a shape in it changes each "
                    f"time{self._history.gain('; ')}"
                )
            return value
        course.unmet = 0
        reason = "" if candidate is None else candidate.differs(program)
        course.candidate = program
        if candidate is None:
            self._why = "captured once; the next call shows whether it does the same again"
            self._why += self._history.advice("; ")
        elif reason:
            course.unlike += candidate not in course.programs
            self._why = f"capture(): the function does not do the same twice: {reason}"
            if course.unlike >= self.patience:
                raise CaptureError(self._why)
        else:
            program.confirm(candidate)
            self._instantiate(program)
            if candidate in course.programs and candidate.tape.decisions == program.tape.decisions:
                course.programs.remove(candidate)
            course.candidate, course.warm, course.unlike = None, 0, 0
            course.programs = [program, *course.programs[: MAX_PROGRAMS - 1]]
            self._why = "captured twice, alike; from now on it is replayed"
        return value


def _kind(leaf: Any, first: int) -> Any:
    """What of an argument a recording depends on; `first` is where the same object stands first."""
    if isinstance(leaf, Tensor):
        operand: Operand = leaf._operand
        return (operand.spec, operand.offset, leaf.requires_grad, first)
    if isinstance(leaf, torch.Tensor):
        return (leaf.dtype, tuple(leaf.shape), leaf.device, leaf.requires_grad, first)
    if type(leaf) is float:
        return float
    if isinstance(leaf, (bool, int, complex, str, bytes, type(None), torch.dtype, torch.device)):
        return (type(leaf), leaf)
    return (type(leaf), id(leaf))


def capture(function: Callable[..., Any] | None = None, *, warmup: int = 1) -> Any:
    """Capture a function, a training step for one, and replay it without running its Python.

    The first calls run as ever (`warmup` of them), the next two are recorded whole and compared; from then
    on each call with the same kind of arguments replays one plan. Tensors and floats among the arguments are
    inputs of the replay (a float once it has been recorded with a second value), other arguments part of
    what makes it the same kind. What the function reaches is looked at before each replay: a module in
    another mode, another parameter, another number in a closure, and it is recorded anew.

        step = dtorch.capture(train_step)
        for batch in data:
            loss = step(batch)

    Args:
        function: what to capture. None returns a decorator.
        warmup: calls before the first recording, at least 1.

    Raises:
        TypeError: `function` cannot be called.
        CaptureError: at the call that was to be captured: it asks for a value, returns a tensor that requires
            grad, keeps a tensor beside its results, or does not do the same twice. The text says where.
    """
    if function is None:
        return functools.partial(capture, warmup=warmup)
    if not callable(function):
        raise TypeError(f"capture({function!r}): this cannot be called, and capture takes a function")
    if warmup < 1:
        raise CaptureError(
            f"capture(): warmup is {warmup}, at least 1 call has to run before it can be recorded"
        )
    return Capture(function, warmup)
