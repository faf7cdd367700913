"""CUDA streams: a device computes on its current stream and communicates on one of its own, at the same time.

    compute       matmul        mul    (waits) add
                        \\             /
    communicate   (waits) all_reduce

What a conversion sends is issued to the communicate streams of its devices, and computation goes on.

1. Before it, each communicate stream waits for what its device's compute stream has been given so far: the
   inputs are there.
2. A node that reads what it makes waits for it first, on every device, once.
3. A node that writes waits for all that is under way, which may read what it writes.
4. Nothing is under way when a plan has ended or failed, nor where nodes are interpreted.
5. A tensor that crosses is marked as used on the other stream, so that its memory is given out again only
   when that stream has passed.

Simulated devices on one GPU share its streams, as they share its memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NamedTuple, Protocol

import torch

from dtorch.mesh import DeviceMesh
from dtorch.op.stream import StreamKey


class Stream(Protocol):
    """What is asked of a stream; `torch.cuda.Stream` has it."""

    def record_event(self) -> Any:
        """An event that passes when all that the stream has been given so far is done."""
        ...

    def wait_event(self, event: Any) -> None:
        """Let what the stream is given from now on wait for an event."""
        ...


class Backend(Protocol):
    """The narrow door to streams of one type of device."""

    device_type: str

    def stream(self, key: StreamKey) -> Stream:
        """The stream of a device and kind."""
        ...

    def using(self, streams: Sequence[Any]) -> AbstractContextManager[Any]:
        """Inside, work of each stream's device goes to the stream."""
        ...

    def hold(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep a tensor's memory from others until the stream has passed its last use."""
        ...


class Cuda:
    """Streams of CUDA devices."""

    device_type = "cuda"

    def __init__(self) -> None:
        self._aside: dict[StreamKey, torch.cuda.Stream] = {}

    def stream(self, key: StreamKey) -> torch.cuda.Stream:
        """The current stream for computing; a stream of our own, made when first asked for, beside it."""
        if key.kind == "compute":
            return torch.cuda.current_stream(key.device_id)
        found = self._aside.get(key)
        if found is None:
            found = self._aside.setdefault(key, torch.cuda.Stream(key.device_id))
        return found

    def using(self, streams: Sequence[torch.cuda.Stream]) -> AbstractContextManager[Any]:
        """As `torch.cuda.stream`, for several devices."""
        with ExitStack() as stack:
            for stream in streams:
                stack.enter_context(torch.cuda.stream(stream))
            return stack.pop_all()

    def hold(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """As `Tensor.record_stream`."""
        tensor.record_stream(stream)


class _Pair(NamedTuple):
    """The two streams of one device."""

    compute: Any
    communicate: Any


class _UnderWay(threading.local):
    """What this thread's plan has issued and nobody has waited for: name -> (stream to wait, event)."""

    def __init__(self) -> None:
        self.events: dict[int, list[tuple[Any, Any]]] = {}


BACKEND: Backend = Cuda()
_UNDER_WAY = _UnderWay()


def used_by(mesh: DeviceMesh) -> bool:
    """Whether the devices of a mesh have streams."""
    return mesh.device_type == BACKEND.device_type and mesh.description is None


def issue(
    name: int, devices: Iterable[torch.device], parts: Iterable[torch.Tensor], run: Callable[[], list[Any]]
) -> list[Any]:
    """Run a conversion on the communicate streams of its devices, and leave it under way.

    Args:
        name: by which `wait_for` knows it.
        devices: those that send or receive; of others than the backend's, work is waited for anyway.
        parts: what it reads.
        run: makes the parts of the result.
    """
    kind, pairs = BACKEND.device_type, {}
    for device in dict.fromkeys(d for d in devices if d.type == kind):
        index = device.index or 0
        pairs[device.type, index] = _Pair(
            BACKEND.stream(StreamKey(kind, index, "compute")),
            BACKEND.stream(StreamKey(kind, index, "communicate")),
        )
    for pair in pairs.values():
        pair.communicate.wait_event(pair.compute.record_event())
    for part in {id(part): part for part in parts}.values():
        if (found := pairs.get((part.device.type, part.device.index or 0))) is not None:
            BACKEND.hold(part, found.communicate)
    with BACKEND.using([pair.communicate for pair in pairs.values()]):
        made = run()
    for part in {id(part): part for part in made}.values():
        if (found := pairs.get((part.device.type, part.device.index or 0))) is not None:
            BACKEND.hold(part, found.compute)
    _UNDER_WAY.events[name] = [(p.compute, p.communicate.record_event()) for p in pairs.values()]
    return made


def wait_for(*names: int) -> None:
    """Let the compute streams wait for conversions under way; for one that was waited for, nothing."""
    for name in names:
        for stream, event in _UNDER_WAY.events.pop(name, ()):
            stream.wait_event(event)


def join() -> None:
    """Let the compute streams wait for all that is under way."""
    if _UNDER_WAY.events:
        wait_for(*_UNDER_WAY.events)
