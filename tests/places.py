"""Where tests put tensors: a mesh shape and placements, with a short name for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Placement, Replicate, Shard
from dtorch.testing import assert_tensor_allclose as close

NAMES = ("a", "b", "c")


class Place(NamedTuple):
    """A mesh of virtual cpu devices and one placement per axis of it."""

    mesh_shape: tuple[int, ...]
    placements: tuple[Placement, ...]

    @property
    def mesh(self) -> DeviceMesh:
        return dtorch.init_device_mesh("cpu", self.mesh_shape, mesh_dim_names=NAMES[: len(self.mesh_shape)])

    def put(self, full: torch.Tensor, requires_grad: bool = False) -> dtorch.Tensor:
        """A leaf with the value of `full`."""
        return dtorch.Tensor(
            full, device_mesh=self.mesh, placements=self.placements, requires_grad=requires_grad
        )

    def whole(self, full: torch.Tensor, requires_grad: bool = False) -> dtorch.Tensor:
        """A Replicate leaf on the same mesh."""
        return dtorch.Tensor(full, device_mesh=self.mesh, requires_grad=requires_grad)

    def __str__(self) -> str:
        letters = [f"S{p.get_shard_index()}" if p.is_shard() else str(p)[0] for p in self.placements]
        return f"{','.join(letters)}[{'x'.join(map(str, self.mesh_shape))}]"


def _place(mesh_shape: tuple[int, ...], *placements: Placement) -> Place:
    return Place(mesh_shape, placements)


R = Replicate()
ONE = _place((1,), R)
R2 = _place((2,), R)
S0_2 = _place((2,), Shard(0))
S1_2 = _place((2,), Shard(1))
S0_4 = _place((4,), Shard(0))
S0S1_2x2 = _place((2, 2), Shard(0), Shard(1))
S0S0_2x2 = _place((2, 2), Shard(0), Shard(0))
RS0_2x2 = _place((2, 2), R, Shard(0))

MATRIX_PLACES = (ONE, R2, S0_2, S1_2, S0_4, S0S1_2x2, S0S0_2x2)
"""For tensors of two dims and more; a size of 5 or 7 is uneven on all of them, 3 leaves one of four empty."""

PLACES = pytest.mark.parametrize("place", MATRIX_PLACES, ids=str)
SPREAD = pytest.mark.parametrize("place", MATRIX_PLACES[1:], ids=str)


TWO = dtorch.init_device_mesh("cpu", 2)
GRID = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
FULL = torch.arange(15.0).view(5, 3)


def spread(
    placements: Sequence[Any] = ("S0",), mesh: DeviceMesh = TWO, full: torch.Tensor = FULL, **options: Any
) -> dtorch.Tensor:
    """A leaf with the value of `full`; without arguments, rows over two devices."""
    return dtorch.Tensor(full, device_mesh=mesh, placements=list(placements), **options)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(place: Place, values: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[dtorch.Tensor]]:
    """Plain leaves, and distributed ones of the same values."""
    return [v.clone().requires_grad_() for v in values], [place.put(v, requires_grad=True) for v in values]


def same_gradients(place: Place, function: Callable[..., Any], *values: torch.Tensor) -> None:
    """`function` makes a tensor, or calls backward itself; gradients must be equal, in their places."""
    plain, spread = both(place, values)
    for leaves in (plain, spread):
        result = function(*leaves)
        if result is not None:
            result.sum().backward()
    for a, b in zip(spread, plain, strict=True):
        assert isinstance(a.grad, dtorch.Tensor)
        close(a.grad, b.grad)
        assert a.grad.placements == a.placements
