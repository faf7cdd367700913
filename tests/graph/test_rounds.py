"""Rounds of a program's outermost loop, told by where its frames are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dtorch.graph import rounds


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SEEN", rounds._Seen())


def look() -> int:
    """One frame below the caller, as a call of the program's is."""
    return rounds.present().number


def twice() -> list[int]:
    found = [look()]
    found.append(look())
    return found


def test_each_turn_of_a_loop_is_a_round() -> None:
    found = []
    for _ in range(3):
        found += [*twice(), look()]
    assert found == [n for n in (found[0], found[3], found[6]) for _ in range(3)]
    assert len(set(found)) == 3


def layers() -> list[int]:
    found = []
    for _ in range(3):
        found += twice()
    return found


def test_the_innermost_loop_counts_until_it_is_left() -> None:
    found, inside = [], []
    for _ in range(4):
        first = look()
        inside.append(layers())
        found.append((first, look()))
    assert all(first == last for first, last in found[1:])
    assert len({last for _, last in found}) == 4
    assert all(len(set(numbers)) == 3 for numbers in inside)
    for (first, _), numbers in zip(found[1:], inside[1:], strict=True):
        assert numbers[0] == first


def test_a_function_that_is_called_again_goes_round() -> None:
    found = []
    for _ in range(4):
        found.append(tuple(twice()))
    assert len(set(found)) == 4
    assert all(a == b for a, b in found)


class Layers(torch.nn.Module):
    def forward(self) -> list[int]:
        return layers()


def test_loops_inside_of_modules_never_count() -> None:
    model = Layers()
    found = model()
    assert len(set(found)) == 1
    again = [set(model()) for _ in range(3)]
    assert all(len(numbers) == 1 for numbers in again)


def test_a_loop_after_the_outermost_counts_again() -> None:
    def epoch() -> list[int]:
        found = []
        for _ in range(3):
            found += [look(), look()]
        return found

    first = epoch()
    second = epoch()
    assert len(set(first)) == len(set(second)) == 3


def test_a_generator_goes_round_with_whom_it_serves() -> None:
    def batches() -> Iterator[int]:
        while True:
            yield look()

    source = batches()
    found = [(next(source), look()) for _ in range(3)]
    assert all(a == b for a, b in found[1:])
    assert len({a for a, _ in found}) >= 2


class Inner(torch.nn.Module):
    def forward(self) -> rounds.Round:
        return rounds.present()


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self) -> list[rounds.Round]:
        return [rounds.present(), self.inner(), rounds.present()]


def test_a_module_has_its_turn_again_from_another_line_or_in_another_round() -> None:
    model = Outer()
    first = model()
    between = rounds.present()
    second = model()
    assert [now.again for now in (*first, between)] == [False] * 4
    assert [now.in_module for now in (*first, between)] == [True] * 3 + [False]
    assert [now.again for now in second] == [True] * 3
    assert not Inner()().again  # it was inside of another one
    assert len({now.number for now in (*first, between, *second)}) == 1


def test_a_round_knows_the_one_before() -> None:
    def here() -> rounds.Round:
        return rounds.present()

    found = []
    for _ in range(4):
        found.append(here())
        here()
    assert [now.before for now in found[:2]] == [None, None]
    assert [now.before for now in found[2:]] == [now.number for now in found[1:3]]
