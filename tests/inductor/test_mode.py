"""`dtorch.optimize`: a call or a context, and the option behind it."""

import pytest

import dtorch
from dtorch.inductor.mode import mode


def test_exact_unless_chosen() -> None:
    assert mode() == "exact"


def test_a_context_restores_what_was_before() -> None:
    with dtorch.optimize("fast"):
        with dtorch.optimize("off"):
            assert mode() == "off"
        assert mode() == "fast"
    assert mode() == "exact"


def test_a_call_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dtorch.inductor.mode._chosen", None)
    dtorch.optimize("fast")
    assert mode() == "fast"


def test_the_option_holds_where_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTORCH_OPTIMIZE", "off")
    assert mode() == "off"
    with dtorch.optimize("exact"):
        assert mode() == "exact"
    monkeypatch.setenv("DTORCH_OPTIMIZE", "quick")
    with pytest.raises(dtorch.DtorchError, match="write exact, fast or off"):
        mode()


def test_other_modes_are_refused() -> None:
    with pytest.raises(dtorch.DtorchError, match="the mode is one of exact, fast, off"):
        dtorch.optimize("faster")
    assert mode() == "exact"
