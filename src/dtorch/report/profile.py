"""Running a program operator by operator, each timed, and setting that beside what is predicted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from dtorch.errors import UnsupportedError
from dtorch.graph.graph import Graph
from dtorch.graph.logical_graph import Node
from dtorch.mesh import DeviceMesh, init_device_mesh
from dtorch.mesh_description import Description
from dtorch.nn.parallelize import Plan
from dtorch.op.operand import Operand
from dtorch.perf.device import Device, find_device
from dtorch.perf.recording import Recording
from dtorch.redistribute.local_work import LocalWork
from dtorch.report.price import UNNAMED, laid_out, price, report_of, run_backward, run_optimizer, title_of
from dtorch.report.report import Report
from dtorch.tensor import Tensor, distribute


def profile(
    target: Callable[..., Any],
    *args: Any,
    mesh: DeviceMesh | Mapping[str, int] | None = None,
    device: str | Device | None = None,
    plan: Plan | str | None = None,
    backward: bool | None = None,
    optimizer: str | Callable[[Any], torch.optim.Optimizer] | None = None,
    repeats: int = 5,
    title: str | None = None,
    **kwargs: Any,
) -> Report:
    """Run a model or a function, and time each operator; the report has `measured_s` beside `time_s`.

    The program runs at once, operator by operator, `repeats` times after a first time that is not counted;
    what counts is the median of each operator. An optimizer steps on copies of the parameters.

    Args:
        target, args, kwargs, plan, backward, optimizer, title: as of `dtorch.price`.
        mesh: real devices, or axis name -> size for virtual ones on cpu; one device by default.
        device: what predicted times are of; "this-machine" if it is calibrated, else no time is predicted.
        repeats: timed runs.

    Raises:
        UnsupportedError: the mesh is described only; runs do not make the same calls; or as `dtorch.price`.
    """
    there = _real(mesh)
    kind = find_device(device) if device is not None else _calibrated()
    module = target if isinstance(target, torch.nn.Module) else None
    training = optimizer is not None if backward is None else backward
    graph, given, named = Graph.default_graph(), args, kwargs
    with ExitStack() as stack:
        if module is not None:
            stack.enter_context(laid_out(module, there, plan))
        args, kwargs = tree_map_only(torch.Tensor, lambda t: _on(t, there, graph), (args, kwargs))
        stepping = run_optimizer(optimizer, module) if optimizer is not None else None

        def once() -> None:
            with torch.no_grad() if module is not None and not training else nullcontext():
                output = target(*args, **kwargs)
            if training:
                run_backward(output)
            if stepping is not None:
                stepping.step()
                stepping.zero_grad()

        once()
        runs = [_timed(once, graph) for _ in range(max(repeats, 1))]
    described = there.described(Description(kind, (kind.link,) * there.ndim))
    report = report_of(runs[-1], described, "achievable", title or title_of(target))
    # What holds memory is known where storages are described ones.
    memory = price(
        target, *given, mesh=described, plan=plan, backward=training, optimizer=optimizer, **named
    ).memory
    return replace(report, measured=dict(enumerate(_medians(runs))), memory=memory)


def _real(mesh: DeviceMesh | Mapping[str, int] | None) -> DeviceMesh:
    if mesh is None:
        return init_device_mesh("cpu", (1,))
    if isinstance(mesh, Mapping):
        return init_device_mesh("cpu", tuple(mesh.values()), tuple(mesh))
    if mesh.description is not None:
        raise UnsupportedError(
            "profile(): described devices compute nothing; use dtorch.price, or a real mesh"
        )
    return mesh


def _calibrated() -> Device:
    from dtorch.perf.device import THIS_MACHINE, devices

    return devices().get(THIS_MACHINE, UNNAMED)


def _on(tensor: torch.Tensor, mesh: DeviceMesh, graph: Graph) -> Tensor:
    if isinstance(tensor, Tensor):
        return tensor
    with LocalWork():
        return distribute(tensor, mesh, None, graph, tensor.requires_grad)


class _Timed(Recording):
    """A recording that asks the stopwatch how long each node took."""

    def __init__(self, watch: _Stopwatch) -> None:
        super().__init__(base="forward")
        self.watch = watch
        self.seconds: list[float] = []

    def add(self, node: Node, given: Sequence[Operand | None] = (), made: Sequence[Operand] = ()) -> None:
        """Enter a node that has just run."""
        super().add(node, given, made)
        self.seconds.append(self.watch.take())


class _Stopwatch:
    """A runner that times what it hands to another."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def run(self, program: Any, inputs: Any) -> Any:
        """Run one operator, timed."""
        start = time.perf_counter()
        try:
            return self.runner.run(program, inputs)
        finally:
            self.seconds += time.perf_counter() - start

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@contextmanager
def _watched(graph: Graph) -> Iterator[_Stopwatch]:
    """Inside, the graph runs each call at once, and times it."""
    constructor = graph.constructor
    graph.sync()
    before = constructor.runner, constructor.eager
    watch = _Stopwatch(constructor.runner)
    constructor.runner, constructor.eager = watch, True
    try:
        yield watch
    finally:
        constructor.runner, constructor.eager = before


def _timed(once: Callable[[], None], graph: Graph) -> _Timed:
    with _watched(graph) as watch:
        recording = _Timed(watch)
        with recording.watching(), graph.record(recording):
            once()
        recording.finish()
    return recording


def _medians(runs: Sequence[_Timed]) -> list[float]:
    calls = [[node.operator.describe() for node in run.nodes] for run in runs]
    if any(other != calls[0] for other in calls):
        raise UnsupportedError("profile(): the program makes other calls from one run to the next")
    return [median(times) for times in zip(*(run.seconds for run in runs), strict=True)]
