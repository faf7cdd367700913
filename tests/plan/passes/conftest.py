"""Passes over recorded sequences, all on."""

from collections.abc import Iterator

import pytest

from dtorch.plan import cache
from dtorch.plan.passes import kept, reuse, state


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans of one test alone, all passes on, and results of any size written over operands, or kept."""
    before = state.switched_off()
    state.switch_off(frozenset())
    monkeypatch.setattr(reuse, "MIN_BYTES", 0)
    monkeypatch.setattr(kept, "MIN_BYTES", 1)
    cache.forget()
    yield
    cache.forget()
    state.switch_off(before)
