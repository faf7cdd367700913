"""A plan captured into a CUDA graph: one launch in place of hundreds, where the launch model says it pays.

    copy the inputs into place | one launch: kernel, kernel, kernel ... | copy the results out

A graph has fixed addresses. State is used where it is; what each call brings anew is copied into buffers, and
results are copied out, since the next replay writes over them. Its memory comes from one pool, shared by all
graphs of a capture, and stays taken. So a graph costs copies and memory, and saves launches: `Choice` weighs
them by `perf/launch.py`, with times measured on this device for this plan.

The plan itself is the one that would run without a graph. It is run once on a side stream before it is
captured, which lets libraries allocate what they need, and the graph is instantiated before its first replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import is_
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from dtorch.perf.launch import LaunchModel

if TYPE_CHECKING:
    from dtorch.replay.program import Program

Run = Callable[[list[Any]], list[list[Any]]]

DISPATCH_S = 0.5e-6
"""Device time between two kernels of a graph; published, the figure of the launch model in docs."""
POOL_SHARE = 0.2
"""Of the device's free memory that graphs may take for good."""
PAYS = 0.95
"""A graph is used where it is to take at most this share of the time without it; nearer is noise."""


class Measured(NamedTuple):
    """One run of a plan without a graph.

    Attributes:
        launch_s: the host takes to launch it, in s.
        execution_s: the device takes where it never waits for the host, in s.
        peak_bytes: taken beyond what was taken before.
    """

    launch_s: float
    execution_s: float
    peak_bytes: int


class Door(Protocol):
    """What is asked of CUDA; `Cuda` is the real one."""

    def measure(self, run: Callable[[], Any]) -> Measured:
        """One run, measured."""
        ...

    def warm_up(self, run: Callable[[], Any]) -> None:
        """Run on a side stream, which waits for the present one, and that for it."""
        ...

    def capture(self, run: Callable[[], Any]) -> tuple[Any, Any]:
        """A graph of a run, its memory from the door's pool, instantiated; and what the run gave."""
        ...

    def order(self) -> None:
        """Let what follows on the present stream wait for what the graphs were last replayed on."""
        ...

    def free_bytes(self) -> int:
        """Of the device's memory."""
        ...

    @property
    def bytes_per_second(self) -> float:
        """Of a copy on the device."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a plan runs as a graph.

    Attributes:
        graphed: it does.
        plain_s: predicted time of the plan without a graph, in s.
        graphed_s: predicted time as a graph, copies included, in s; 0 where a graph is out of the question.
        reason: in words.
    """

    graphed: bool
    plain_s: float
    graphed_s: float
    reason: str


def choose(
    calls: int,
    launch_s: float,
    execution_s: float,
    copied_bytes: int,
    copies: int,
    pool_bytes: int,
    free_bytes: int,
    bytes_per_second: float,
) -> Choice:
    """Weigh a graph by the launch model.

    Args:
        calls: kernels of the plan.
        launch_s: host time to launch all of them, one by one, in s.
        execution_s: device time of all of them, in s.
        copied_bytes: of inputs copied into place and results copied out.
        copies: their number; each is a launch of its own.
        pool_bytes: that the graph would keep.
        free_bytes: of the device.
        bytes_per_second: of a copy on the device.
    """
    launch, execution = launch_s / max(calls, 1), execution_s / max(calls, 1)
    fixed = copies * launch + copied_bytes / bytes_per_second
    model = LaunchModel(launch, DISPATCH_S, fixed)
    lengths = [execution] * calls
    plain, graphed = model.eager(lengths).total, model.replay(lengths).total
    if pool_bytes > POOL_SHARE * free_bytes:
        reason = (
            f"no CUDA graph: it would keep {pool_bytes / 2**20:.0f} MiB, more than {POOL_SHARE:.0%} of the "
            f"{free_bytes / 2**20:.0f} MiB that are free"
        )
        return Choice(False, plain, graphed, reason)
    wins = graphed <= PAYS * plain
    text = model_text(plain, graphed, calls, copies, copied_bytes)
    return Choice(wins, plain, graphed, f"{'a CUDA graph' if wins else 'no CUDA graph'}: {text}")


def model_text(plain: float, graphed: float, calls: int, copies: int, copied_bytes: int) -> str:
    """What a choice rests on, in words."""
    return (
        f"by the launch model {calls} kernels take {plain * 1e6:.0f} us launched one by one and "
        f"{graphed * 1e6:.0f} us as a graph with {copies} copies of {copied_bytes / 2**20:.1f} MiB"
    )


class GraphedPlan:
    """Runs a plan as a CUDA graph.

    Args:
        run: the plan: it takes a list, which it empties, and gives lists of local tensors.
        values: the list that the next call is to take.
        stays: how many of its first entries are state, which keeps its addresses.
        door: to CUDA.
    """

    def __init__(self, run: Run, values: Sequence[Any], stays: int, door: Door) -> None:
        self._door = door
        self._state = list(values[:stays])
        self._buffers = [value.clone() for value in values[stays:]]
        self._graph, made = door.capture(lambda: run([*self._state, *self._buffers]))
        self._results: list[list[torch.Tensor]] = made
        self._fresh = _fresh(made, self._state)
        self.nbytes = sum({_address(part): part.untyped_storage().nbytes() for part in self._fresh}.values())
        self.nbytes += sum(buffer.nbytes for buffer in self._buffers)

    def serves(self, values: Sequence[Any]) -> bool:
        """Whether the state of a call stands at the graph's addresses."""
        return all(map(is_, values, self._state))

    def __call__(self, values: list[Any]) -> list[list[Any]]:
        """Copy what is new into place, replay, and copy the results out."""
        self._door.order()
        for buffer, value in zip(self._buffers, values[len(self._state) :], strict=True):
            buffer.copy_(value)
        values.clear()
        self._graph.replay()
        copy = copier()
        fresh = {id(part): copy(part) for part in self._fresh}
        return [[fresh.get(id(part), part) for part in parts] for parts in self._results]


def copier() -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that copies tensors, each storage once, so that what shares memory still does."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(value: torch.Tensor) -> torch.Tensor:
        storage = storages.get(_address(value))
        if storage is None:
            storage = storages[_address(value)] = value.untyped_storage().clone()
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(storage, value.storage_offset(), value.size(), value.stride())

    return copy


def _address(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _devices(program: Program) -> set[torch.device]:
    meshes = {spec.mesh for spec in program.structure.outside if spec is not None}
    return {mesh.torch_device(position) for mesh in meshes for position in range(mesh.size)}


def cuda_device(program: Program) -> torch.device | None:
    """The CUDA device that a program runs on, one of several; None for other devices."""
    return next((device for device in _devices(program) if device.type == "cuda"), None)


def obstacle(program: Program) -> str:
    """Why a program cannot be one CUDA graph, in words; nothing where it can."""
    devices = _devices(program)
    if len(devices) != 1:
        return f"it runs on {len(devices)} devices, and a graph is one device's"
    if next(iter(devices)).type != "cuda":
        return "it does not run on a CUDA device"
    if program.numbers:
        return (
            "numbers that change from call to call would be fixed in its kernels; keep them in tensors "
            "(an optimizer's capturable=True, a tensor as learning rate)"
        )
    roots, first = program.structure.roots, program.structure.num_made
    viewed = [roots.get(number, number) for number in program.selection.wanted]
    seen = [program.sources[number] for number in viewed if number >= first]
    if any(source.kind in ("argument", "gradient") for source in (*program.written, *seen)):
        return "it writes or returns views of what each call brings"
    return ""


def graphed(
    run: Run, values: Sequence[Any], stays: int, calls: int, door: Door
) -> tuple[GraphedPlan | None, Choice]:
    """A plan as a CUDA graph, if that pays.

    Args:
        run, values, stays, door: as for `GraphedPlan`. Neither measuring nor capturing changes state.
        calls: kernels of the plan.
    """
    try:
        measured, results = _tried(run, values, stays, door)
    except torch.OutOfMemoryError:
        reason = "no CUDA graph: there is no memory to measure the plan on copies of what it reads"
        return None, Choice(False, 0.0, 0.0, reason)
    brought = [value.nbytes for value in values[stays:]]
    choice = choose(
        calls=calls,
        launch_s=measured.launch_s,
        execution_s=measured.execution_s,
        copied_bytes=sum(brought) + sum(results),
        copies=len(brought) + len(results),
        pool_bytes=measured.peak_bytes + sum(brought),
        free_bytes=door.free_bytes(),
        bytes_per_second=door.bytes_per_second,
    )
    if not choice.graphed:
        return None, choice
    try:
        return GraphedPlan(run, values, stays, door), choice
    except (
        RuntimeError
    ) as error:  # a call inside waits for the device, or allocates in a way that graphs refuse
        reason = f"no CUDA graph: it could not be captured ({str(error).splitlines()[0]})"
        return None, replace(choice, graphed=False, reason=reason)


def _tried(run: Run, values: Sequence[Any], stays: int, door: Door) -> tuple[Measured, list[int]]:
    """Warm-up and measurement on copies, so that state is not a step ahead; bytes of each result to copy."""
    copy = copier()
    scratch = [copy(value) for value in values]
    made: list[list[Any]] = []
    door.warm_up(lambda: made.extend(run(scratch.copy())))
    fresh = _fresh(made, scratch[:stays])
    sizes = {_address(part): part.untyped_storage().nbytes() for part in fresh}
    made.clear()
    del fresh
    return door.measure(lambda: run(scratch.copy())), list(sizes.values())


def _fresh(made: Sequence[Sequence[Any]], state: Sequence[Any]) -> list[Any]:
    """The parts of results that are no state, which the next replay writes over."""
    kept = {_address(value) for value in state}
    return [part for parts in made for part in parts if _address(part) not in kept]


class Cuda:
    """The door to CUDA of one device; its graphs share a pool of memory.

    So they run one after the other, on whatever streams: `order`. They are captured on a stream of this
    device, where torch's own is of the device that was captured on first.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._aside = torch.cuda.Stream(device)
        self._last: torch.cuda.Stream | None = None

    def order(self) -> None:
        """Nothing where the present stream is that of the last replay."""
        present = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last != present:
            present.wait_stream(self._last)
        self._last = present

    def measure(self, run: Callable[[], Any]) -> Measured:
        """Launches behind a kernel that sleeps, so that the device never waits for the host."""
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(100_000_000)  # some 50 ms, longer than any plan is launched for
            start.record()
            begin = perf_counter()
            run()
            launched = perf_counter() - begin
            end.record()
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
            return Measured(launched, start.elapsed_time(end) * 1e-3, peak)

    def warm_up(self, run: Callable[[], Any]) -> None:
        """On a side stream, as torch asks for before a capture."""
        with torch.cuda.device(self.device):
            side, present = self._aside, torch.cuda.current_stream()
            side.wait_stream(present)
            with torch.cuda.stream(side):
                run()
            present.wait_stream(side)
            torch.cuda.synchronize()

    def capture(self, run: Callable[[], Any]) -> tuple[Any, Any]:
        """Into a graph that keeps its description, where this torch has that, and is instantiated here."""
        with torch.cuda.device(self.device):
            try:
                graph = torch.cuda.CUDAGraph(keep_graph=True)
            except TypeError:  # an older torch instantiates when the capture ends
                graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, self._pool, self._aside, capture_error_mode="thread_local"):
                made = run()
            if hasattr(graph, "instantiate"):
                graph.instantiate()
            return graph, made

    def free_bytes(self) -> int:
        """As the driver says."""
        return int(torch.cuda.mem_get_info(self.device)[0])

    @cached_property
    def bytes_per_second(self) -> float:
        """Of a copy of 64 MiB, measured once."""
        x = torch.empty(2**26, dtype=torch.uint8, device=self.device)
        y = torch.empty_like(x)
        y.copy_(x)
        return x.nbytes / self.measure(lambda: y.copy_(x)).execution_s
