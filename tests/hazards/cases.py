"""What these files share: every way to place the inputs, and pending sums made of given parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Partial
from dtorch.graph.graph import Graph
from tests.dist import sampled_ways

Cases = dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]]
SHAPES = ((2,), (4,), (2, 2))


def under(cases: Cases, count: int = 4, meshes: Iterable[Sequence[int]] = SHAPES) -> list[Any]:
    """Every case on every mesh, under all placements where these are few, else a sample of `count`."""
    return [
        pytest.param(fn, tensors, *way.values, id=f"{name}-{way.id}")
        for name, (fn, tensors) in cases.items()
        for way in sampled_ways(tensors, count, meshes)
    ]


def mesh_of(*shape: int) -> dtorch.DeviceMesh:
    """A mesh of virtual cpu devices."""
    return dtorch.init_device_mesh("cpu", shape)


def pending(*parts: Any, dtype: torch.dtype | None = None) -> dtorch.Tensor:
    """A pending sum, one part a device."""
    tensors = [torch.as_tensor(part, dtype=dtype) for part in parts]
    return dtorch.from_local(tensors, mesh_of(len(parts)), [Partial()])


def kinds_sent(call: Callable[[], Any]) -> list[str]:
    """The kinds of communication that a call causes."""
    with Graph.default_graph().record() as graph:
        call()
    return [c.kind for c in graph.communications()]
