"""Regions, under "exact" and without waiting for a compiler."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dtorch
from dtorch.inductor.region import Region
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
def ended(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Regions that are called "compiled" as soon as they are started, and run as they are."""
    choice = {"state": "compiled", "reason": "", "calls": 0, "fails": False}

    def start(self: Region) -> Region:
        self.state, self.reason = choice["state"], choice["reason"]
        return self

    def call(self: Region, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        choice["calls"] += 1
        if choice["fails"]:
            raise RuntimeError("compiled code fails")
        metas = [(tuple(x.shape), x.stride(), str(x.dtype)[6:]) for x in inputs]
        assert metas == [(meta.shape, meta.stride, meta.dtype) for meta in self.inputs]
        return list(self.function(inputs))

    monkeypatch.setattr(Region, "start", start)
    monkeypatch.setattr(Region, "__call__", call)
    monkeypatch.setattr("dtorch.inductor.worth.SAVED_NS", 1)
    return choice
