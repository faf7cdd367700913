"""Regions of a graph that records."""

from collections.abc import Iterator

import pytest

import dtorch
from dtorch.plan import cache
from dtorch.plan.fuse import rates


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans of one test alone, under "exact", priced by what is assumed of a machine."""
    monkeypatch.setattr(rates, "measured", lambda: None)
    cache.forget()
    with dtorch.optimize("exact"):
        yield
    cache.forget()


@pytest.fixture
def graph() -> dtorch.Graph:
    """A graph that records, also under DTORCH_EAGER=1."""
    found = dtorch.Graph()
    found.constructor.eager = False
    return found
