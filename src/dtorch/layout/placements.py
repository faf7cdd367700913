"""Between placements, one per mesh axis, and the factors of a layout.

Placements say less than a layout: which dim an axis cuts, not in which order and not at which boundaries.
So what a layout prints beyond plain `Shard` is a `FactorShard`, which carries the factors of its dim and
makes the same layout again when it is handed back.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from dtorch.errors import PlacementError, UnsupportedError
from dtorch.layout.factors import Dims, Factors, add_axis, factors_axes, factors_size, normal_dim
from dtorch.placement import Partial, Placement, Replicate, Shard, as_placement


class FactorShard(Shard):
    """A Shard that is no plain chunk of the dim; made by `Layout.placements`, taken where placements are.

    Prints as torch's `_StridedShard` where all pieces are equal, else with its factors: `Shard(0: 7@dp *
    12)`.

    Args:
        dim: the tensor dim.
        factors: all factors of that dim, mesh axes as indices.
        split_factor: number of blocks that the axis cuts alike; None where torch cannot say it.
        axis_names: names to print for the mesh axes; no part of the value.
    """

    __slots__ = ("axis_names", "factors", "split_factor")
    factors: Factors
    split_factor: int | None
    axis_names: tuple[str, ...] | None

    def __init__(
        self,
        dim: int,
        factors: Factors,
        split_factor: int | None = None,
        axis_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(dim)
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "split_factor", split_factor)
        object.__setattr__(self, "axis_names", None if axis_names is None else tuple(axis_names))

    def to_torch(self) -> Any:
        if self.split_factor is None:
            raise UnsupportedError(
                f"{self!r}: torch has no placement for such pieces; redistribute to Shard first"
            )
        from torch.distributed.tensor.placement_types import _StridedShard

        return _StridedShard(self.dim, split_factor=self.split_factor)

    def __eq__(self, other: object) -> bool:
        if type(other) is FactorShard:
            return (self.dim, self.factors, self.split_factor) == (
                other.dim,
                other.factors,
                other.split_factor,
            )
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.dim, self.factors, self.split_factor))

    def __repr__(self) -> str:
        if self.split_factor is not None:
            return f"_StridedShard(dim={self.dim}, sf={self.split_factor})"
        return f"Shard({self.dim}: {describe_factors(self.factors, self.axis_names)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FactorShard, (self.dim, self.factors, self.split_factor, self.axis_names)


def describe_factors(factors: Factors, axis_names: Sequence[str] | None = None) -> str:
    """`7@dp * 12`: 7 cut by dp, each piece 12 whole; axes by index without names."""
    return " * ".join(
        "".join([str(n), *(f"@{axis if axis_names is None else axis_names[axis]}" for axis in axes)])
        for n, axes in factors
    )


def placements_of(
    mesh_shape: tuple[int, ...], dims: Dims, partial: Sequence[int], axis_names: Sequence[str] | None = None
) -> tuple[Placement, ...]:
    """One placement per mesh axis; plain where a dim is chunked by its axes in mesh order."""
    out: list[Placement] = [Partial() if axis in partial else Replicate() for axis in range(len(mesh_shape))]
    for dim, factors in enumerate(dims):
        axes = tuple(sorted(factors_axes(factors)))
        plain = factors == normal_dim(mesh_shape, ((factors_size(factors), axes),))
        even = all(not cut or (len(cut) == 1 and n == mesh_shape[cut[0]]) for n, cut in factors)
        for axis in axes:
            split = _split_factor(factors, axis) if even else None
            if plain or split == 1:
                out[axis] = Shard(dim)
            else:
                out[axis] = FactorShard(dim, factors, split, axis_names)
    return tuple(out)


def _split_factor(factors: Factors, axis: int) -> int:
    """Blocks that `axis` cuts alike: all outside it that no lower axis has cut, as torch counts."""
    place = next(i for i, (_, axes) in enumerate(factors) if axis in axes)
    return prod(n for n, axes in factors[:place] if not axes or axes[0] > axis)


def dims_from_placements(
    mesh_shape: tuple[int, ...],
    shape: Sequence[int],
    placements: Sequence[Any],
    axis_order: Sequence[int] | None = None,
) -> tuple[Dims, tuple[int, ...]]:
    """Factors of every dim (normal form) and the Partial axes.

    Raises:
        PlacementError: a wrong number of placements, a dim the tensor lacks, or factors of another size.
    """
    if len(placements) != len(mesh_shape):
        raise PlacementError(
            f"{len(placements)} placements for a mesh of shape {mesh_shape}: give one for each axis"
        )
    order = _axis_order(len(mesh_shape), axis_order)
    cutting: list[list[tuple[int, Shard]]] = [[] for _ in shape]
    partial = []
    for axis in order:
        placement = as_placement(placements[axis])
        if mesh_shape[axis] == 1:
            continue
        if isinstance(placement, Shard):
            cutting[_dim(placement, axis, len(shape))].append((axis, placement))
        elif placement.is_partial():
            partial.append(axis)
    dims = tuple(_cut_dim(mesh_shape, dim, n, cutting[dim]) for dim, n in enumerate(shape))
    return dims, tuple(sorted(partial))


def _axis_order(num_axes: int, axis_order: Sequence[int] | None) -> list[int]:
    """All axes, those of `axis_order` first."""
    first = list(axis_order or ())
    if len(set(first)) != len(first) or not set(first).issubset(range(num_axes)):
        raise PlacementError(f"axis_order {first} must name axes of a mesh with {num_axes} axes, each once")
    return first + [axis for axis in range(num_axes) if axis not in first]


def _dim(placement: Shard, axis: int, ndim: int) -> int:
    """The tensor dim of a Shard, positive."""
    if not -ndim <= placement.dim < ndim:
        raise PlacementError(f"{placement!r} on mesh axis {axis}: the tensor has {ndim} dims")
    return placement.dim % ndim


def _cut_dim(mesh_shape: tuple[int, ...], dim: int, n: int, cutting: Sequence[tuple[int, Shard]]) -> Factors:
    """Factors of one dim of size n cut by `cutting`, (axis, placement) pairs, outermost first."""
    axes = tuple(axis for axis, _ in cutting)
    known = next((placement for _, placement in cutting if isinstance(placement, FactorShard)), None)
    if known is None:
        return normal_dim(mesh_shape, ((n, axes),))
    if factors_size(known.factors) != n:
        raise PlacementError(
            f"{known!r} is for a dim of size {factors_size(known.factors)}; dim {dim} has size {n}"
        )
    factors = normal_dim(
        mesh_shape, tuple((m, tuple(a for a in cut if a in axes)) for m, cut in known.factors)
    )
    for axis in axes:
        if axis in factors_axes(factors):
            continue
        finer = add_axis(mesh_shape, factors, axis)
        if finer is None:
            raise PlacementError(
                f"mesh axis {axis} cannot cut dim {dim} ({describe_factors(factors)}) further"
            )
        factors = finer
    return factors
