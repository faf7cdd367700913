"""Plans of one test alone, and one small matrix."""

from collections.abc import Iterator

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Shard
from dtorch.plan import cache


@pytest.fixture(autouse=True)
def _no_plans() -> Iterator[None]:
    """Plans and counts of one test alone."""
    cache.forget()
    yield
    cache.forget()


@pytest.fixture
def x(graph: dtorch.Graph) -> dtorch.Tensor:
    """A 4 x 3 matrix, its rows on two devices."""
    values = torch.arange(12.0).reshape(4, 3) - 5.5
    return dtorch.Tensor(values, DeviceMesh("cpu", [0, 1]), [Shard(0)], graph=graph)
