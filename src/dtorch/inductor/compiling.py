"""The thread that gets regions compiled, and the process that compiles for it.

One thread, made when the first region is started, takes regions in turn. It lists the function, looks on
disk, asks the compiling process where nothing is known, and loads the code. Nothing that it does touches what
torch keeps for the process or for other threads. The interpreter's end ends it and the process; a forked
process has neither, and what was under way there stays uncompiled.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from dtorch.inductor import admission, stored
from dtorch.inductor.blocks import Parts
from dtorch.inductor.listing import Listing, Refusal
from dtorch.options import GlobalOption

IDLE_SECONDS = 20.0
"""The process ends when nothing has been asked of it for so long."""

_log = logging.getLogger("dtorch")


class Failure(Exception):
    """Why a region could not be compiled."""


class _Process:
    """The compiling process, started when it is first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._idle: threading.Timer | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start it, since it will be asked; it takes seconds until it listens.

        Raises:
            Failure: it cannot be started.
        """
        with self._lock:
            self._running()
            self._rest()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its answer to a request; until it is there, what loads it is made ready.

        Raises:
            Failure: it cannot be started, ended without an answer, or took too long.
        """
        limit = GlobalOption.get_compile_seconds()
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            process = self._running()
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._kill(process)

        timer = threading.Timer(limit, stop)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            _get_ready()
            line = process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self.end()
            raise Failure(
                f"it took longer than {limit} s"
                if late.is_set()
                else "the compiling process ended without an answer"
            )
        with self._lock:
            self._rest()
        return json.loads(line)

    def _rest(self) -> None:
        self._idle = threading.Timer(IDLE_SECONDS, self.end)
        self._idle.daemon = True
        self._idle.start()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            path = os.pathsep.join(name for name in sys.path if name)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "dtorch.inductor.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    env={**os.environ, "PYTHONPATH": path},
                    start_new_session=True,  # so that compilers it started end with it
                )
            except OSError as error:
                raise Failure(f"no process can be started: {error}") from None
        return self._process

    def _kill(self, process: subprocess.Popen[str]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            process.kill()

    def end(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            self._kill(process)
            with contextlib.suppress(OSError), process:  # which waits for it and closes its pipes
                pass


class _Compiler:
    """The thread and what it works on.

    Attributes:
        known: what became of a listing, by its name: code, or why there is none.
        under_way: regions that wait or are compiled.
    """

    def __init__(self) -> None:
        self.known: dict[str, Callable[..., Any] | Refusal | Failure] = {}
        self.under_way: set[Any] = set()
        self.process = _Process()
        self.closing = False
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._warned = False

    def start(self, region: Any) -> None:
        """Put a region in the queue; its `compile_with` is called on the thread."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="dtorch compiler", daemon=True)
                self._thread.start()
            self.under_way.add(region)
        self._queue.put(region)

    def _work(self) -> None:
        if not stored.folder().exists():  # then nothing is known
            with contextlib.suppress(Failure):  # told by who asks
                self.process.begin()
        while True:
            region = self._queue.get()
            if region is None or self.closing:
                return
            region.compile_with(self)
            self.under_way.discard(region)
            del region

    def code(
        self, listing: Listing, mode: str, num_threads: int, dtype: torch.dtype, parts: Parts | None = None
    ) -> Callable[..., Any]:
        """Code for a listing (inputs to results), from memory, disk or the compiling process.

        Args:
            listing: the function.
            mode: "exact" or "fast".
            num_threads: that it runs on.
            dtype: torch's default.
            parts: its blocks, if it is to be made by blocks.

        Raises:
            Refusal: it is not to be compiled.
            Failure: it cannot be.
        """
        default = str(dtype)[6:]
        cut = () if parts is None else (parts.text,)
        name = stored.digest(listing.inputs, listing.text, mode, num_threads, default, *cut)
        if name not in self.known:
            request: dict[str, Any] = {"mode": mode, "num_threads": num_threads, "default_dtype": default}
            if parts is not None:
                request["parts"] = parts.to_dict()
            try:
                code = self._found(name, listing, request)
                self.known[name] = code if parts is None else parts.around(code)
            except (Refusal, Failure) as answer:
                self.known[name] = answer.with_traceback(None)
        found = self.known[name]
        if isinstance(found, (Refusal, Failure)):
            raise found
        return found

    def _found(self, name: str, listing: Listing, request: dict[str, Any]) -> Callable[..., Any]:
        answer = stored.load(name)
        if answer is not None and "key" in answer:
            code = _load(answer["key"])
            if code is not None:
                return code
            answer = None  # Inductor's cache has been emptied
        if answer is None:
            if request["mode"] == "exact":
                admission.refuse_unlike(listing, admission.known(listing, request["num_threads"]))
            answer = self.process.ask({**request, "listing": listing.to_dict()})
            if "failed" not in answer:
                stored.save(name, answer)
        if "refused" in answer:
            raise Refusal(answer["refused"])
        code = _load(answer["key"]) if "key" in answer else None
        if code is None:
            raise Failure(answer.get("failed", "the compiled code is not where it was put"))
        return code

    def warn(self, name: str, why: str) -> None:
        """Tell once in a process that compilation fails."""
        if not self._warned and not self.closing:
            self._warned = True
            _log.warning(
                f"{name} could not be compiled and runs uncompiled, with the same results, and so "
                f"will others that cannot: {why}"
            )

    def close(self) -> None:
        """End the thread and the process; at the interpreter's end."""
        self.closing = True
        self._queue.put(None)
        self.process.end()
        if self._thread is not None:
            self._thread.join(timeout=10.0)


def _get_ready() -> None:
    """What loading needs beside the code: modules, which take a second, and which vectors there are."""
    with contextlib.suppress(Exception):  # it is done again where it is needed, and fails there
        from torch._inductor import codecache, cpu_vec_isa, output_code  # noqa: F401

        cpu_vec_isa.pick_vec_isa()


def _load(key: str) -> Callable[..., Any] | None:
    """Code by its key in Inductor's cache on disk, None if it is not there. Compiles nothing."""
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraphConstants
    from torch._inductor.utils import BoxedBool
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fake = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
    constants = CompiledFxGraphConstants()
    with torch._guards.tracing(torch._guards.TracingContext(fake)):
        code, _ = FxGraphCache.load_with_key(
            key, [], [], local=True, remote_cache=None, is_backward=False, constants=constants
        )
        if code is None:
            return None
        settings: Any = {"cudagraphs": BoxedBool(False), "is_backward": False, "static_input_idxs": ()}
        code.post_compile([], constants, settings)
    return code.current_callable or code


COMPILER = _Compiler()
atexit.register(lambda: COMPILER.close())


def _after_fork() -> None:
    """A forked process has no thread; what the parent's was at work on stays uncompiled here."""
    global COMPILER
    before = COMPILER
    COMPILER = _Compiler()
    COMPILER.known = before.known
    for region in before.under_way:
        region.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
