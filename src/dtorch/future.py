"""Values that are still being computed, and waiting for them.

The CPU computes at once, so a future is ready when it is made. A GPU works behind the program's back: its
future is ready when the device has passed the events that were recorded after the work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
_POLL_SECONDS = 50e-6


class Future(Generic[T]):
    """A value, and the events that must pass before it may be read.

    Args:
        value: what `get` returns.
        events: objects with `query()` and `synchronize()`, as `torch.cuda.Event`.
    """

    def __init__(self, value: T, events: Iterable[Any] = ()) -> None:
        self._value = value
        self._events = list(events)

    def is_ready(self) -> bool:
        """Whether `get` would return without waiting."""
        self._events = [event for event in self._events if not event.query()]
        return not self._events

    def wait(self) -> None:
        """Wait until the value is there."""
        for event in self._events:
            event.synchronize()
        self._events = []

    def wait_for(self, ms: float) -> bool:
        """Wait at most `ms` milliseconds, 0 or more; whether the value is there.

        Raises:
            ValueError: `ms` is negative.
        """
        if ms < 0:
            raise ValueError(f"wait_for({ms}): the time to wait is in milliseconds, 0 or more")
        deadline = time.monotonic() + ms / 1e3
        while not self.is_ready():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def get(self) -> T:
        """Wait, then the value; the same each time."""
        self.wait()
        return self._value

    def __await__(self) -> Generator[Any, None, T]:
        while not self.is_ready():
            yield from asyncio.sleep(_POLL_SECONDS).__await__()
        return self._value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'ready' if self.is_ready() else 'pending'})"


class TensorFuture(Future[torch.Tensor]):
    """A full value on its way to the first device."""


class VoidFutureCollect(Future[None]):
    """Several devices, done when all of them are; `get` returns None.

    Args:
        events: as of `Future`.
    """

    def __init__(self, events: Iterable[Any] = ()) -> None:
        super().__init__(None, events)


def events_on(devices: Sequence[torch.device]) -> list[Any]:
    """Events that pass when all that has been issued to the devices is done; the CPU needs none."""
    found = []
    for device in dict.fromkeys(d for d in devices if d.type == "cuda"):
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        found.append(event)
    return found
