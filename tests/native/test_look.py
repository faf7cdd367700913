"""A look at what stood somewhere before, in C, against the same look in Python."""

from __future__ import annotations

import collections
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dtorch import native
from dtorch.replay import places
from dtorch.replay.places import Place, entries, some_entries

look = native.loaded("look")
pytestmark = pytest.mark.skipif(look is None, reason="compiled when dtorch is installed; make native")


class Attributes:
    def __init__(self) -> None:
        self.a, self.b = [1.0], "x"


class Gone:
    def __init__(self, error: type[Exception]) -> None:
        self.error = error


def raises(held: Gone) -> list[Any]:
    raise held.error("gone")


def every_kind() -> list[Place]:
    """Places of each kind that a function reaches."""
    held = {"a": [1], "b": (2,), 3: None}
    module = torch.nn.Linear(2, 2)
    return [
        *entries(held, "a dict"),
        *entries(OrderedDict(held), "a dict in order"),
        *entries(defaultdict(list, held), "a dict with a default"),
        *some_entries(held, ["a", "b"], "some"),
        *some_entries(vars(module), ["training"], "a module"),
        *some_entries(vars(Attributes()), ["b", "a"], "attributes"),
        Place(dict.values, module._parameters, "parameters"),
        Place(iter, [held, None], "a list"),
        Place(iter, (held, None), "a tuple"),
        Place(iter, deque([held]), "a deque"),
        Place(iter, {1.5}, "a set"),
        Place(iter, held, "keys"),
        Place(lambda held: [held.a, held.b], Attributes(), "by a function"),
        Place(lambda held: iter([held]), module, "by an iterator"),
        Place(dict.values, {}, "empty"),
        Place(iter, [], "empty"),
    ]


def values_of(found: list[Place]) -> list[Any]:
    return [value for place in found for value in place.read(place.held)]


def both(found: list[Place], values: list[Any]) -> bool:
    """What both say."""
    in_c, in_python = look.stand(found, values), places._stand(found, values)
    assert in_c is in_python
    return in_c


@pytest.mark.parametrize("n", range(len(every_kind())))
def test_each_kind_of_place(n: int) -> None:
    found = [every_kind()[n]]
    values = values_of(found)
    assert both(found, values)
    assert not both(found, [*values, None])
    for i in range(len(values)):
        assert not both(found, values[:i])
        assert not both(found, [*values[:i], object(), *values[i + 1 :]])


def test_places_in_a_row() -> None:
    found = every_kind()
    values = values_of(found)
    assert both(found, values)
    assert not both(found[:-3], values)
    assert not both(found, values[1:])
    assert not both(found[::-1], values)
    assert both([], [])


@pytest.mark.parametrize("error", places.GONE)
def test_what_is_gone_has_changed(error: type[Exception]) -> None:
    assert not both([Place(raises, Gone(error), "gone")], [])
    held = {"a": 1}
    found = some_entries(held, ["a"], "some")
    values = values_of(found)
    del held["a"]
    assert not both(found, values)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_other_errors_arrive(error: type[Exception]) -> None:
    for stand in (look.stand, places._stand):
        with pytest.raises(error):
            stand([Place(raises, Gone(error), "gone")], [])


def test_what_is_no_place_is_refused() -> None:
    for wrong in ((1, 2), [Place(iter, [], "a list")], "abcd"):
        with pytest.raises(TypeError, match="no place"):
            look.stand([wrong], [])
    with pytest.raises(TypeError):
        look.stand((), [])


def test_attributes_of_objects() -> None:
    tensors = [torch.ones(1, requires_grad=flag) for flag in (True, False)]
    read = torch._C.TensorBase.requires_grad
    for same in (look.same, places._same):
        assert same(read, tensors, [True, False])
        assert not same(read, tensors, [True, True])
        assert not same(read, tensors, [True])
        assert same(read, [], [])
        with pytest.raises((TypeError, AttributeError)):
            same(read, [1], [True])
        with pytest.raises((TypeError, AttributeError)):
            same(3, tensors, [True, False])


def replaced(held: Any) -> None:
    held["a"] = 2.5


WRITES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "replaced": replaced,
    "added": lambda held: held.update(new=1),
    "by default": lambda held: held.setdefault("new", 1),
    "deleted": lambda held: held.pop("a"),
    "the last one": lambda held: held.popitem(),
    "cleared": lambda held: held.clear(),
    "merged": lambda held: held.__ior__({"a": 3.5}),
}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="dicts have no versions")
@pytest.mark.parametrize(
    "kind", [dict, OrderedDict, lambda held: defaultdict(list, held), collections.Counter]
)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_written_dict_has_another_version(write: Callable[..., Any], kind: Callable[..., Any]) -> None:
    held = kind({"a": 1.5, "b": 2.5})
    other: dict[str, Any] = {"a": 1.5}
    before = look.versions([other, held])
    assert look.have([other, held], before)
    list(held.items()), held.get("a"), held == other
    assert look.have([other, held], before)
    write(held)
    assert not look.have([other, held], before)
    assert look.have([other], before[: len(before) // 2])


class Slots(Attributes):
    __slots__ = ("c",)


ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "set": lambda held: setattr(held, "a", 2.5),
    "past the class": lambda held: object.__setattr__(held, "a", 2.5),
    "new": lambda held: setattr(held, "new", 1),
    "deleted": lambda held: delattr(held, "a"),
    "in the dict": lambda held: vars(held).update(a=3.5),
}


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="dicts have no versions")
@pytest.mark.parametrize("write", ATTRIBUTES.values(), ids=ATTRIBUTES)
@pytest.mark.parametrize("kind", [Attributes, Slots, torch.nn.Identity])
def test_a_written_attribute_shows(write: Callable[[Any], Any], kind: Callable[[], Any]) -> None:
    for times in (1, 50):  # the interpreter writes attributes otherwise once it has done so often
        held = kind()
        held.a = 1.5
        dicts = [vars(held)]
        for n in range(times):
            held.b = n
        before = look.versions(dicts)
        assert look.have(dicts, before)
        write(held)
        assert vars(held) is dicts[0]
        assert not look.have(dicts, before)


def test_a_store_that_the_interpreter_has_specialised_shows() -> None:
    def store(held: Any, value: Any) -> None:
        held.a = value

    held = Attributes()
    dicts = [vars(held)]
    for n in range(100):
        before = look.versions(dicts)
        assert before is None or look.have(dicts, before)
        store(held, float(n))
        assert not look.have(dicts, before)


def test_versions_are_of_dicts() -> None:
    assert not look.have([{}], None)
    assert not look.have([{}], b"")
    with pytest.raises(TypeError):
        look.have((), None)
    if sys.version_info < (3, 12):
        with pytest.raises(TypeError, match="no dict"):
            look.versions([[]])
        assert not look.have([[]], look.versions([{}]))


def test_nothing_is_left_behind() -> None:
    found = every_kind()
    values = values_of(found)
    dicts = [place.held for place in found if isinstance(place.held, dict)]
    shared = [None, *values, *dicts, *found]

    def rounds() -> None:
        for _ in range(100):
            look.stand(found, values)
            look.stand(found, values[:-1])
            look.have(dicts, look.versions(dicts))
            look.same(torch._C.TensorBase.requires_grad, [torch.ones(1)], [False])

    rounds()
    before = [sys.getrefcount(value) for value in shared]
    rounds()
    after = [sys.getrefcount(value) for value in shared]
    assert all(abs(a - b) < 20 for a, b in zip(after, before, strict=True))


def test_objects_keep_their_class_and_their_dictionary() -> None:
    held: list[Any] = [Attributes(), torch.nn.Identity(), torch.ones(1), Slots, 3, lambda: None]
    kinds, spaces = [type(each) for each in held], [vars(each) for each in held[:3]] + [None, None, {}]
    spaces[5] = vars(held[5])
    for alike in (look.alike, places._alike):
        assert alike(held, kinds, spaces)
        assert alike([], [], [])
        assert not alike(held, kinds, spaces[1:])
        assert not alike(held, kinds[::-1], spaces)
        for place in (0, 1, 2, 5):
            assert not alike(held, kinds, [*spaces[:place], {}, *spaces[place + 1 :]])
    held[0].__dict__ = dict(vars(held[0]))
    assert not any(alike(held, kinds, spaces) for alike in (look.alike, places._alike))
    spaces[0] = vars(held[0])
    assert look.alike(held, kinds, spaces)
    held[0].__class__ = type("Other", (Attributes,), {})
    assert not any(alike(held, kinds, spaces) for alike in (look.alike, places._alike))
