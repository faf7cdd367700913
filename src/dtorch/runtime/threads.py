"""Large kernels of virtual CPU devices, each on its device's own thread.

torch lets go of Python's lock inside its kernels, so the parts of one operator on distinct devices run at
the same time. A kernel runs under whatever the calling thread has set for itself: torch keeps several
settings per thread. Small kernels stay where they are, since handing one over costs about 15 us.

Threads are made when first needed, one for each device, and serve all graphs; a device runs its kernels in
the order in which they come.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import torch

from dtorch.inductor.listing import PRESENT
from dtorch.op.operator import Operator
from dtorch.op.param import TorchCall
from dtorch.op.stream import StreamKey

LARGE_SECONDS = 1e-3
"""A kernel is large from here on: handing it over and waiting for it then costs about 3 %."""
FLOPS_PER_SECOND, BYTES_PER_SECOND = 1e11, 1e10
"""Roughly one core: `torch.mm` of 1024 x 2048 x 2048 float32 gave 9.2e10 FLOP/s, `add_` and `clone` of 64 MiB
0.4e10 to 5e10 B/s (AMD EPYC, torch 2.13.0, one torch thread, 2026-11-29)."""


def is_large(operator: Operator, num_kernels: int) -> bool:
    """Whether a kernel of an operator takes `LARGE_SECONDS`, by its price, shared out evenly.

    Only kernels of torch itself: what a user wrote may not bear to run beside itself, and random numbers must
    be drawn in order.
    """
    param = operator.param
    if not isinstance(param, TorchCall) or param.func.namespace != "aten" or operator.draws():
        return False
    price = operator.price()
    seconds = max((price.flops or 0) / FLOPS_PER_SECOND, (price.traffic_bytes or 0) / BYTES_PER_SECOND)
    return seconds / num_kernels >= LARGE_SECONDS


def cores_to_spare() -> bool:
    """Whether a second kernel finds cores that torch's own threads leave free."""
    return 2 * torch.get_num_threads() <= _num_cores()


def _num_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class ThreadState(NamedTuple):
    """What torch keeps for each thread and results may depend on.

    Attributes:
        include, exclude: dispatch keys; autocast, autograd and modes are switched off by them.
        grad, inference: grad mode, inference mode.
        num_threads: threads inside one kernel, by which sums are split.
        flush: whether the processor takes denormal numbers for 0.
    """

    include: torch._C.DispatchKeySet
    exclude: torch._C.DispatchKeySet
    grad: bool
    inference: bool
    num_threads: int
    flush: bool

    @classmethod
    def present(cls) -> ThreadState:
        """That of the calling thread."""
        return cls(
            torch._C._dispatch_tls_local_include_set(),
            torch._C._dispatch_tls_local_exclude_set(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_num_threads(),
            _flushes_denormals(),
        )

    def call(self, function: Callable[[], None]) -> None:
        """Call a function under this state."""
        if torch.get_num_threads() != self.num_threads:
            torch.set_num_threads(self.num_threads)
        if _flushes_denormals() != self.flush:
            torch.set_flush_denormal(self.flush)
        with torch._C._InferenceMode(self.inference):
            torch._C._set_grad_enabled(self.grad)
            with torch._C._ForceDispatchKeyGuard(self.include, self.exclude):
                function()


def _flushes_denormals(denormal: float = 1e-310) -> bool:
    """Whether this thread takes denormal numbers for 0; torch can set it and not tell it."""
    return denormal * 1.0 == 0.0


class _Batch:
    """Calls that run together.

    Attributes:
        state: that of the thread that waits for them.
        stopped: whether calls that have not begun are to be left out.
    """

    __slots__ = ("state", "stopped")

    def __init__(self) -> None:
        self.state = ThreadState.present()
        self.stopped = False


class _Task:
    """One call of a batch.

    Attributes:
        ended: a lock, free once the call has ended.
        error: what it raised.
    """

    __slots__ = ("batch", "call", "ended", "error")

    def __init__(self, batch: _Batch, call: Callable[[], None]) -> None:
        self.batch = batch
        self.call = call
        self.ended = _closed()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call, unless the batch has been stopped."""
        try:
            if not self.batch.stopped:
                self.batch.state.call(self.call)
        except BaseException as error:
            self.error = error
        finally:
            del self.call  # whoever waits may see its tensors die
            self.ended.release()

    def take_error(self) -> BaseException:
        """The error, kept no longer: its frames hold the task."""
        error, self.error = self.error, None
        assert error is not None
        return error


def _closed() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Worker:
    """The thread of one device."""

    __slots__ = ("_calls",)

    def __init__(self, key: StreamKey) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        name = f"dtorch {key.device_type}:{key.device_id}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._calls.get()()  # into no variable, which would hold its tensors until the next one

    def put(self, call: Callable[[], None]) -> None:
        """Run a call, that raises nothing, when its turn comes."""
        self._calls.put(call)

    def settle(self) -> None:
        """Wait until all that was put before has ended."""
        ended = _closed()
        self._calls.put(ended.release)
        ended.acquire()


_WORKERS: dict[StreamKey, _Worker] = {}
_LOCK = threading.Lock()


def _after_fork() -> None:
    """A forked process has none of the threads."""
    global _LOCK
    _LOCK = threading.Lock()
    _WORKERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _worker(key: StreamKey) -> _Worker:
    with _LOCK:
        found = _WORKERS.get(key)
        if found is None:
            found = _WORKERS[key] = _Worker(key)
        return found


def run_together(keys: Sequence[StreamKey], calls: Sequence[Callable[[], None]]) -> None:
    """Run each call on the thread of its device, and wait until all have ended.

    Args:
        keys: the device of each call.
        calls: must not call this again.

    Raises:
        BaseException: what the first call that failed, in the order given, raised.
        KeyboardInterrupt: as it came; calls that had not begun never will, the others have ended.
    """
    if PRESENT.listing:
        for call in calls:
            call()
        return
    batch = _Batch()
    workers = [_worker(key) for key in keys]
    tasks = [_Task(batch, call) for call in calls]
    try:
        for worker, task in zip(workers, tasks, strict=True):
            worker.put(task.run)
        for task in tasks:
            task.ended.acquire()
    except BaseException:
        batch.stopped = True
        for worker in workers:
            worker.settle()
        raise
    for task in tasks:
        if task.error is not None:
            raise task.take_error()
