"""Nothing remembered from other tests."""

from collections.abc import Iterator

import pytest

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
