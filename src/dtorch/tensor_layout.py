"""Placements as a user writes and reads them, and the layouts they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.errors import MeshMismatchError, PlacementError
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import Operand
from dtorch.placement import Placement, as_placement, normalize_placements

Placements = Sequence[Any] | Layout | None


class PlacementList(tuple[Placement, ...]):
    """The placements of a tensor, one per mesh axis: a tuple that also equals a list, and prints as one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other)) if isinstance(other, (list, tuple)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return repr(list(self))


def is_placements(value: Any) -> bool:
    """Whether a value is a Layout or a sequence of placements, ours, torch's or strings."""
    if isinstance(value, Layout):
        return True
    if not isinstance(value, (list, tuple)) or not value or isinstance(value[0], int):
        return False
    try:
        as_placement(value[0])
    except PlacementError:
        return False
    return True


def layout_of(
    placements: Placements,
    mesh: DeviceMesh,
    shape: Sequence[int],
    like: Operand | None = None,
    axis_order: Sequence[int | str] | None = None,
) -> Layout:
    """The layout that placements, a Layout, or None (all Replicate, or those of `like`) mean for a shape.

    Raises:
        PlacementError: wrong number of placements, a Shard beyond the dims, or a layout of another shape.
        MeshMismatchError: a layout for a mesh of another shape.
    """
    if placements is None:
        if like is None:
            return Layout.replicate(mesh.shape, shape)
        there = like.spec.mesh
        if there.shape == mesh.shape:
            if axis_order is None:
                return like.layout
        elif there.ndim != mesh.ndim:
            raise PlacementError(
                f"give placements: {there!r} has {there.ndim} axes and {mesh!r} has {mesh.ndim}"
            )
        placements = like.spec.placements
    if isinstance(placements, Layout):
        if placements.mesh_shape != mesh.shape:
            raise MeshMismatchError(f"{placements} is for another mesh than {mesh}")
        if placements.shape != tuple(shape):
            raise PlacementError(
                f"{placements} is for shape {placements.shape}, the tensor's is {tuple(shape)}"
            )
        return placements
    order = None if axis_order is None else [mesh.axis(axis) for axis in axis_order]
    return Layout.from_placements(
        mesh.shape, shape, normalize_placements(placements, mesh, len(shape)), order
    )


def copied_stride(like: torch.Tensor) -> tuple[int, ...]:
    """Strides that torch gives a copy: dense, and for dims of size 0 and 1 torch's numbers too."""
    return torch.empty_strided(like.shape, like.stride(), device="meta").clone().stride()


def compact_stride(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dims lie in memory in this order, the slowest first."""
    strides = [1] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)
