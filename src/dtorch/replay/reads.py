"""Which attributes of a program's objects a call reads: a replay has to look at these alone.

A trainer holds a scheduler, counters, a history of losses, which its step does not touch. What it reads is
seen while it is recorded: the classes of the objects that it reaches are given a `__getattribute__` that
notes the name, for as long as the call lasts. All that reads an attribute comes through it, `getattr` by a
name that no code spells and C code too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_ALL = frozenset(("__dict__", "__getstate__", "__reduce__", "__reduce_ex__"))
"""Who reads these reads all attributes."""


class Reads:
    """The attributes that are read of some objects.

    Args:
        objects: of classes of Python's own kind; those whose class cannot be watched count as read whole.
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._objects = list(objects)  # kept, so that no other one has the id of one
        self._read: dict[int, set[str]] = {id(held): set() for held in self._objects}

    def of(self, held: Any) -> set[str] | None:
        """The names that were read of an object; None for all."""
        found = self._read.get(id(held))
        return None if found is None or not found.isdisjoint(_ALL) else found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, what is read is noted."""
        watched, noted = [], self._noted
        for kind in {type(held): None for held in self._objects}:
            if kind.__getattribute__ is object.__getattribute__:
                with suppress(TypeError):  # a class of C
                    type.__setattr__(kind, "__getattribute__", noted)
                    watched.append(kind)
        for held in self._objects:
            if type(held).__getattribute__ is not noted:
                self._read.pop(id(held), None)
        try:
            yield
        finally:
            for kind in watched:
                type.__delattr__(kind, "__getattribute__")

    @property
    def _noted(self) -> Any:
        read = self._read

        def __getattribute__(held: Any, name: str) -> Any:
            names = read.get(id(held))
            if names is not None:
                names.add(name)
            return object.__getattribute__(held, name)

        return __getattribute__
