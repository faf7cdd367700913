"""A graph that records, nothing remembered from other tests."""

from collections.abc import Iterator

import pytest

import dtorch
from dtorch.graph.constructor import GraphConstructor
from dtorch.plan import cache


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """Recipes, their programs and plans of one test alone."""
    GraphConstructor.forget()
    cache.forget()
    yield
    GraphConstructor.forget()
    cache.forget()


@pytest.fixture
def graph() -> dtorch.Graph:
    """A graph that records, also under DTORCH_EAGER=1."""
    found = dtorch.Graph()
    found.constructor.eager = False
    return found
