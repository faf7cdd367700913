"""Lines that make new calls: which of them are thought to come again, and which grow."""

from __future__ import annotations

import pytest

from dtorch.graph import lines
from dtorch.graph.rounds import Round


@pytest.fixture(autouse=True)
def _none_known() -> None:
    lines.forget()


def somewhere() -> None:
    """What a module calls."""


PLACE = somewhere.__code__, 4


def at(number: int, before: int | None = None, again: bool = True, in_module: bool = True) -> Round:
    return Round(number, before, again, in_module)


def test_a_new_call_returns_in_a_module_that_had_its_turn() -> None:
    assert not lines.returns(PLACE, at(1))  # nobody knows that it is in a module
    lines.enter(PLACE, at(1, again=False))
    assert not lines.returns(PLACE, at(1, again=False))
    assert lines.returns(PLACE, at(1))
    assert lines.returns((somewhere.__code__, 8), at(1))  # another line of the function


def test_outside_of_modules_nothing_new_returns() -> None:
    lines.enter(PLACE, at(1, in_module=False))
    assert not lines.returns(PLACE, at(1, in_module=False))
    assert not lines.returns(None, at(1))


def test_what_is_new_in_two_rounds_of_a_loop_grows() -> None:
    lines.enter(PLACE, at(1))
    lines.note(PLACE, at(1))
    lines.note(PLACE, at(2, before=None))  # the prompt was no round of this loop
    assert lines.returns(PLACE, at(2))
    lines.note(PLACE, at(2, before=None))
    assert lines.returns(PLACE, at(2))  # of all layers
    lines.note(PLACE, at(5, before=4))
    assert lines.returns(PLACE, at(5, before=4))
    lines.note(PLACE, at(6, before=5))
    assert not lines.returns(PLACE, at(6, before=5))
    assert not lines.returns(PLACE, at(9, before=8))  # for good


def test_a_line_has_a_few_guesses() -> None:
    lines.enter(PLACE, at(0))
    for number in range(lines.MAX_ROUNDS):
        lines.note(PLACE, at(2 * number))
        assert lines.returns(PLACE, at(2 * number))
    lines.note(PLACE, at(99))
    assert not lines.returns(PLACE, at(99))


def test_the_number_of_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINES", 5)
    for offset in range(20):
        lines.note((somewhere.__code__, offset), at(1))
        assert len(lines._LINES) <= 5
