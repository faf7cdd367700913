"""Places where a function found something, and whether the same still stands there.

A training step is reached through a few hundred places: entries of modules, attributes, cells of closures.
All are looked at before each replay, in one go, compared by identity (in C where that is compiled,
`native/look.c`); only where something has changed is it looked for place by place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from dtorch import native

_SHOWN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_LONGEST = 40
"""Characters of a value in a message."""
_CONTAINERS = (dict, OrderedDict, list, set, frozenset, deque)
_END = [object()]
_READ, _HELD = attrgetter("read"), attrgetter("held")
GONE = (KeyError, ValueError, AttributeError)
"""What a reader raises where something is no longer there."""


class Place(NamedTuple):
    """Somewhere a function looks.

    Attributes:
        read: gives what stands in `held`, as a sequence or an iterator; of a dict, nothing but its entries.
        held: a container, an object, a function.
        owner: what that is, for a message.
        names: of the values, as far as they have any; the keys, where `read` is an `itemgetter`.
    """

    read: Callable[[Any], Iterable[Any]]
    held: Any
    owner: str
    names: Sequence[Any] = ()


def entries(held: dict[Any, Any], owner: str) -> list[Place]:
    """All of a dictionary, entries that are added too, and their order."""
    names = tuple(held)
    found = [Place(dict.values, held, owner, names), Place(dict.keys, held, owner)]
    if isinstance(held, OrderedDict) and held:  # its order is not the dictionary's, nor in its version
        found.append(Place(_in_order, (held,), owner))
    return found


def _in_order(held: tuple[OrderedDict[Any, Any]]) -> Iterable[Any]:
    return iter(held[0])


def some_entries(held: dict[Any, Any], keys: Sequence[Any], owner: str) -> list[Place]:
    """Some of a dictionary."""
    if not keys:
        return []
    return [Place(_getter(*keys, keys[0]), held, owner, (*keys, keys[0]))]  # one key alone gives no tuple


def absent(held: dict[Any, Any], keys: Sequence[Any], owner: str) -> list[Place]:
    """What was looked for in a dictionary and is not in it, such as what a class gives instead."""
    keys = [key for key in keys if key not in held]
    if not keys:
        return []
    return [Place(lambda held: [next(filter(held.__contains__, keys), None)], held, owner, ["a name"])]


_getter = cache(itemgetter)
"""One for modules of one kind: what a look at them touches has left the processor's caches by then."""


def _stand(places: list[Place], values: list[Any]) -> bool:
    """Whether these values stand at these places, one after the other."""
    try:
        now = chain(chain.from_iterable(map(call, map(_READ, places), map(_HELD, places))), _END)
        return all(map(is_, now, chain(values, _END)))
    except GONE:
        return False


def _same(attribute: Any, objects: list[Any], values: list[Any]) -> bool:
    """Whether an attribute, a descriptor, of these objects is these values, one after the other."""
    return len(objects) == len(values) and all(map(is_, map(attribute.__get__, objects), values))


def _alike(objects: list[Any], kinds: list[type], spaces: list[Any]) -> bool:
    """Whether objects are of these classes, and their attributes in these dictionaries; None, in any."""
    return (
        len(objects) == len(kinds) == len(spaces)
        and all(map(is_, map(type, objects), kinds))
        and all(
            space is None or object.__getattribute__(held, "__dict__") is space
            for held, space in zip(objects, spaces, strict=True)
        )
    )


def _versions(dicts: list[dict[Any, Any]]) -> Any:
    """What changes with each write to one of the dicts; None, which only C can tell."""
    return None


def _have(dicts: list[dict[Any, Any]], versions: Any) -> bool:
    """Whether these dicts have these versions, and so were not written since."""
    return False


_look: Any = native.loaded("look") or SimpleNamespace(
    stand=_stand, same=_same, alike=_alike, versions=_versions, have=_have
)
stand, same, alike, versions, have = _look.stand, _look.same, _look.alike, _look.versions, _look.have


class _Found:
    """What stood at places, ready for a look; nothing, at the empty ones."""

    def __init__(self, found: list[tuple[Place, list[Any]]], empty: list[tuple[Place, list[Any]]]) -> None:
        self._places = [place for place, _ in found]
        self._values = [value for _, values in found for value in values]
        self._vacant = list({id(place.held): place.held for place, _ in empty}.values())

    def hold(self) -> bool:
        """Whether it still stands there."""
        return not any(self._vacant) and stand(self._places, self._values)


class Places:
    """Places and what stood there."""

    def __init__(self) -> None:
        self._found: list[tuple[Place, list[Any]]] = []
        self._empty: list[Any] = []
        self._sized: list[tuple[Any, int]] = []
        self._hooks: list[tuple[dict[Any, Any], str]] = []
        self._hooks_made = RemovableHandle.next_id
        self._memory: list[tuple[Any, Any]] = []
        self._objects: list[Any] = []
        self._kinds: list[type] = []
        self._spaces: list[Any] = []
        self._ready = False

    def add(self, place: Place) -> list[Any]:
        """Enter a place; what stands there now."""
        values = list(place.read(place.held))
        if values or type(place.held) not in _CONTAINERS:
            self._found.append((place, values))
        else:
            self._empty.append((place, values))
        self._ready = False
        return values

    def add_size(self, held: Any) -> None:
        """Enter a container of which only some entries are watched, for entries that are added."""
        self._sized.append((held, len(held)))
        self._ready = False

    def add_object(self, held: Any) -> Any:
        """Enter an object, for its class and the dictionary of its attributes; that dictionary, or None."""
        space = getattr(held, "__dict__", None)
        space = space if isinstance(space, dict) else None
        self._objects.append(held)
        self._kinds.append(type(held))
        self._spaces.append(space)
        return space

    def add_memory(self, held: Any) -> int:
        """Enter an array, whose bytes are watched; the bytes of all that are entered so far."""
        self._memory.append((held, _content(held)))
        return sum(len(content[-1]) for _, content in self._memory)

    def add_hooks(self, held: dict[Any, Any], owner: str) -> list[Any]:
        """Enter a dictionary of hooks; those that are there now.

        torch numbers all hooks of a process: while none was added anywhere, an empty one is still empty.
        """
        if held:
            return [value for place in entries(held, owner) for value in self.add(place)]
        self._hooks.append((held, owner))
        return []

    def hooks_hold(self) -> bool:
        """Whether no hook was added, as far as the empty dictionaries of hooks go."""
        made = RemovableHandle.next_id
        if made != self._hooks_made:
            if any(held for held, _ in self._hooks):
                return False
            self._hooks_made = made
        return True

    def _prepare(self) -> None:
        self._all = _Found(self._found, self._empty)
        self._counted = [held for held, _ in self._sized]
        self._counts = [size for _, size in self._sized]
        held = [*self._counted, *[place.held for place, _ in (*self._found, *self._empty)]]
        self._dicts = list({id(each): each for each in held if isinstance(each, dict)}.values())
        found, empty = (
            [p for p in places if not isinstance(p[0].held, dict)] for places in (self._found, self._empty)
        )
        self._beside = _Found(found, empty)
        self._versions: Any = None
        self._ready = True

    def hold(self) -> bool:
        """Whether everything is as it was."""
        if not self._ready:
            self._prepare()
        if self._memory and any(_content(held) != content for held, content in self._memory):
            return False
        if not self.hooks_hold() or not alike(self._objects, self._kinds, self._spaces):
            return False
        if have(self._dicts, self._versions):
            return self._beside.hold()
        now = versions(self._dicts)
        if list(map(len, self._counted)) != self._counts or not self._all.hold():
            return False
        self._versions = now
        return True

    def changed(self) -> str:
        """What is not as it was, in words; nothing where all is."""
        if self.hold():
            return ""
        for place, values in (*self._found, *self._empty):
            try:
                now = list(place.read(place.held))
            except GONE:
                return f"something that {place.owner} had is gone"
            for number, (was, became) in enumerate(zip(values, now, strict=False)):
                if was is not became:
                    return f"{_name(place, number)}{place.owner} {_changed(was, became)}"
            if len(now) != len(values):
                return f"{place.owner} had {len(values)} entries and has {len(now)}"
        for held, was, space in zip(self._objects, self._kinds, self._spaces, strict=True):
            if type(held) is not was:
                return f"a {was.__name__} is of another class"
            if not alike([held], [was], [space]):
                return f"the attributes of a {was.__name__} are in another dictionary"
        for held, content in self._memory:
            if _content(held) != content:
                return f"{array_name(held)} that the function uses was written"
        added = next((owner for held, owner in self._hooks if held), "")
        return f"{added} are new" if added else "something the function uses has more attributes than it had"


def _name(place: Place, number: int) -> str:
    name = place.names[number] if number < len(place.names) else None
    return f"{name!r} of " if isinstance(name, str) else ""


def array_name(held: Any) -> str:
    """An array, in words."""
    return f"an array of shape {list(getattr(held, 'shape', [len(held)]))}"


def _content(held: Any) -> tuple[Any, ...]:
    """What an array is, and last its bytes."""
    content = held.tobytes() if hasattr(held, "tobytes") else bytes(held)
    return getattr(held, "dtype", None), getattr(held, "shape", None), content


def _changed(was: Any, became: Any) -> str:
    before, after = _shown(was), _shown(became)
    if before == after:
        return f"was {_kind(was)} and is another"
    return f"was {before} and is {after}"


def _shown(value: Any) -> str:
    """Its text, cut where it is long, if that text needs no code but Python's and torch's own."""
    if type(value) in (tuple, list, set, frozenset):
        if not all(isinstance(item, _SHOWN) for item in value):
            return _kind(value)
    elif not isinstance(value, _SHOWN):
        return _kind(value)
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
