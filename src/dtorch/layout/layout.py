"""The exact form of how a tensor is spread over a mesh.

A `Layout` is the mesh shape, the axes on which the value is a pending sum (Partial), and for every tensor
dim the factors by which it is cut (factors.py). Placements are what a user reads and writes; a
layout also knows in which order and at which boundaries, which is what `view`, `reshape` and fused weights
need.

A layout answers what a device holds (`local_shape`, `local_indices`) and what a torch view does to it:
`view`, `permute`, `slice` ... return the layout of the result if every device can make its part from its
own part, else None. They never communicate, and Partial axes stay as they are.

Layouts are interned: equal ones are the same object, also after pickling, so comparing and hashing is by
identity. A device is given by its coordinate on the mesh, one index per axis.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any
from weakref import WeakValueDictionary

from dtorch.errors import PlacementError, ShapeError
from dtorch.layout.factors import (
    Dims,
    Factors,
    add_axis,
    factor_range,
    factors_axes,
    factors_size,
    index_runs,
    normal_dim,
    representative_positions,
)
from dtorch.layout.placements import describe_factors, dims_from_placements, placements_of
from dtorch.layout.views import expanded, kept_ends, local_slice, permuted, slice_factors, squeezed, view_dims
from dtorch.placement import Placement

FactorsLike = Iterable[tuple[int, Sequence[int]]]

_INTERNED: WeakValueDictionary[tuple[Any, ...], Layout] = WeakValueDictionary()
# Reentrant: a finalizer that runs inside may make one too.
_LOCK = threading.RLock()


class Layout:
    """How a tensor is spread over a mesh; see the module's text.

    Attributes:
        mesh_shape: sizes of the mesh axes.
        partial: axes on which the value is a pending sum, ascending.
        dims: factors of every tensor dim, in normal form.
        shape: global sizes of the tensor.
        ndim: number of tensor dims.
        cut_axes: axes that cut some dim, ascending.
        is_replicate: whether every device holds the whole value.
    """

    __slots__ = (
        "mesh_shape", "partial", "dims", "shape", "ndim", "cut_axes", "is_replicate",
        "_roles", "_memo", "__weakref__",
    )  # fmt: skip
    mesh_shape: tuple[int, ...]
    partial: tuple[int, ...]
    dims: Dims
    shape: tuple[int, ...]
    ndim: int
    cut_axes: tuple[int, ...]
    is_replicate: bool
    _roles: tuple[int | str, ...]
    # Answers already given: local shapes by coordinate, placements by axis names.
    _memo: dict[Any, Any]

    @classmethod
    def of(
        cls, mesh_shape: Sequence[int], dims: Iterable[FactorsLike], partial: Sequence[int] = ()
    ) -> Layout:
        """The layout with these factors per dim, in normal form; axes of mesh size 1 are dropped.

        Raises:
            PlacementError: an axis the mesh lacks or that is used twice, a negative size, a dim without
                factors.
        """
        mesh_shape = tuple(mesh_shape)
        exact = tuple(tuple((n, tuple(axes)) for n, axes in factors) for factors in dims)
        used = [*partial, *(axis for factors in exact for axis in factors_axes(factors))]
        if not set(used).issubset(range(len(mesh_shape))):
            raise PlacementError(
                f"mesh axes {sorted(set(used))} in a layout for a mesh of shape {mesh_shape}"
            )
        if len(set(used)) != len(used):
            twice = sorted({axis for axis in used if used.count(axis) > 1})
            raise PlacementError(
                f"mesh axes {twice} used twice; one axis cuts one dim, is Partial, or replicates"
            )
        for dim, factors in enumerate(exact):
            if not factors or any(not isinstance(n, int) or n < 0 for n, _ in factors):
                raise PlacementError(f"factors {factors} of dim {dim}: at least one, with sizes of 0 or more")
        return _intern(mesh_shape, exact, tuple(sorted(axis for axis in partial if mesh_shape[axis] > 1)))

    @classmethod
    def replicate(cls, mesh_shape: Sequence[int], shape: Sequence[int]) -> Layout:
        """Every device holds the whole tensor of `shape`."""
        return _replicated(tuple(mesh_shape), tuple(shape))

    @classmethod
    def from_placements(
        cls,
        mesh_shape: Sequence[int],
        shape: Sequence[int],
        placements: Sequence[Any] | Layout,
        axis_order: Sequence[int] | None = None,
    ) -> Layout:
        """The layout of placements, one per mesh axis.

        Args:
            mesh_shape: sizes of the mesh axes.
            shape: global sizes of the tensor.
            placements: as `as_placement` takes them; a Layout for this mesh and shape is returned as it is.
            axis_order: axes, outermost first, for dims that several axes cut; axes left out follow in mesh
                order.

        Raises:
            PlacementError: a wrong number of placements, a dim the tensor lacks, a layout of another mesh
                or shape.
        """
        mesh_shape, shape = tuple(mesh_shape), tuple(shape)
        if isinstance(placements, Layout):
            if (placements.mesh_shape, placements.shape) != (mesh_shape, shape):
                raise PlacementError(
                    f"{placements!r} given for shape {list(shape)} on a mesh of shape {mesh_shape}"
                )
            return placements
        return _intern(mesh_shape, *dims_from_placements(mesh_shape, shape, placements, axis_order))

    def placements(self, axis_names: Sequence[str] | None = None) -> tuple[Placement, ...]:
        """One placement per mesh axis; what is no plain Shard prints its factors, with `axis_names` if given.

        `from_placements` of them is this layout again.
        """
        key = ("placements", None if axis_names is None else tuple(axis_names))
        if key not in self._memo:
            self._memo[key] = placements_of(self.mesh_shape, self.dims, self.partial, axis_names)
        return self._memo[key]

    # What a device holds.

    def local_shape(self, coord: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of the part of the device at `coord`."""
        found = self._memo.get(coord)
        if found is None:
            found = tuple(
                prod(stop - start for start, stop in self.local_ranges(d, coord)) for d in range(self.ndim)
            )
            self._memo[coord] = found
        return found

    def local_numel(self, coord: tuple[int, ...]) -> int:
        """Number of elements of the part of the device at `coord`."""
        return prod(self.local_shape(coord))

    def local_ranges(self, dim: int, coord: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """(start, stop) that the device at `coord` holds of every factor of `dim`."""
        return tuple(factor_range(factor, self.mesh_shape, coord) for factor in self.dims[dim])

    def local_indices(self, dim: int, coord: Sequence[int]) -> list[tuple[int, int]]:
        """Global indices of `dim` that the device holds: ascending (start, stop) runs that do not touch."""
        return index_runs(self.local_ranges(dim, coord), [n for n, _ in self.dims[dim]])

    # What an axis does.

    def role(self, axis: int) -> int | str:
        """The dim that `axis` cuts, or "R" or "P"."""
        return self._roles[axis]

    def axes_of(self, dim: int) -> tuple[int, ...]:
        """Axes that cut `dim`, outermost first."""
        return factors_axes(self.dims[dim])

    def distinct(self) -> tuple[int, ...]:
        """For every position the first position that holds the same part."""
        return representative_positions(self.mesh_shape, tuple(sorted((*self.cut_axes, *self.partial))))

    # The same tensor, spread differently.

    def drop(self, axes: Iterable[int]) -> Layout:
        """With these axes, cut or Partial, made Replicate; axes left in a factor chunk it anew."""
        gone = frozenset(axes)
        partial = tuple(axis for axis in self.partial if axis not in gone)
        return _intern(self.mesh_shape, _without(self.dims, gone), partial)

    def with_partial(self, axes: Iterable[int]) -> Layout:
        """With these axes Partial, whatever they were."""
        added = frozenset(axis for axis in axes if self.mesh_shape[axis] > 1)
        return _intern(self.mesh_shape, _without(self.dims, added), tuple(sorted(added.union(self.partial))))

    def without_partial(self) -> Layout:
        """With Partial axes made Replicate."""
        return self.drop(self.partial) if self.partial else self

    def with_dim(self, dim: int, factors: FactorsLike) -> Layout:
        """With the factors of one dim replaced.

        Raises:
            PlacementError: as for `of`.
        """
        return Layout.of(self.mesh_shape, (*self.dims[:dim], factors, *self.dims[dim + 1 :]), self.partial)

    def add_shard(self, axis: int, dim: int) -> Layout | None:
        """With `axis` chunking what each device holds of `dim`; None if no factors say that.

        Raises:
            PlacementError: the axis is not Replicate.
        """
        if self._roles[axis] != "R":
            raise PlacementError(f"mesh axis {axis} of {self!r} is not Replicate, so it cannot cut dim {dim}")
        if self.mesh_shape[axis] == 1:
            return self
        return self._with_dim(dim, add_axis(self.mesh_shape, self.dims[dim], axis))

    # Views: the layout of the result, or None if a device would need what others hold.

    def view(self, shape: Sequence[int]) -> Layout | None:
        """`tensor.view(shape)`; no size is -1.

        Raises:
            ShapeError: another number of elements.
        """
        shape = tuple(shape)
        if shape == self.shape:
            return self
        if prod(shape) != prod(self.shape):
            raise ShapeError(f"view of shape {list(self.shape)} as {list(shape)}: another number of elements")
        dims = view_dims(self.dims, self.shape, shape)
        return None if dims is None else self._with(dims)

    def blocking_axes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Axes that must become Replicate to make `view(shape)` local: of the smallest product, ascending."""
        shape = tuple(shape)
        if self.view(shape) is not None:
            return ()
        first, last = kept_ends(self.shape, shape)
        cut = sorted(
            axis for factors in self.dims[first : self.ndim - last] for axis in factors_axes(factors)
        )
        choices = [axes for count in range(1, len(cut) + 1) for axes in combinations(cut, count)]
        choices.sort(key=lambda axes: prod(self.mesh_shape[axis] for axis in axes))
        return next(axes for axes in choices if self.drop(axes).view(shape) is not None)

    def permute(self, order: Sequence[int]) -> Layout:
        """`tensor.permute(order)`.

        Raises:
            ShapeError: `order` does not name every dim once.
        """
        return self._with(permuted(self.dims, order))

    def unsqueeze(self, dim: int) -> Layout:
        """`tensor.unsqueeze(dim)`.

        Raises:
            ShapeError: no such place.
        """
        if not -self.ndim - 1 <= dim <= self.ndim:
            raise ShapeError(f"unsqueeze at {dim} of a tensor with {self.ndim} dims")
        dim %= self.ndim + 1
        return self._with((*self.dims[:dim], ((1, ()),), *self.dims[dim:]))

    def squeeze(self, dims: int | Sequence[int] | None = None) -> Layout | None:
        """`tensor.squeeze(dims)`: dims of another size than 1 stay; None if no dim is left for a cut.

        Axes that cut a removed dim cut the dim before it (else after it): devices that held nothing still
        do. They make the result by a view to its local shape: their size of the removed dim is 0, not 1.
        """
        if not self.ndim:
            return self
        chosen = range(self.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
        gone = {dim for dim in map(self._dim, chosen) if self.shape[dim] == 1}
        out = squeezed(self.dims, gone)
        return None if out is None else self._with(out)

    def expand(self, shape: Sequence[int]) -> Layout:
        """`tensor.expand(shape)`; -1 keeps a size.

        Raises:
            ShapeError: a size that is neither 1 nor kept.
        """
        return self._with(expanded(self.dims, self.shape, shape))

    def slice(self, dim: int, start: int | None, stop: int | None, step: int = 1) -> Layout | None:
        """`tensor[start:stop:step]` on one dim, as Python reads the bounds; each device's: `local_slice`."""
        dim = self._dim(dim)
        return self._with_dim(dim, slice_factors(self.dims[dim], *self._bounds(dim, start, stop, step)))

    def local_slice(
        self, dim: int, start: int | None, stop: int | None, step: int, coord: Sequence[int]
    ) -> tuple[int, int]:
        """(start, stop) of a `slice` that is local, on the device at `coord`; the step stays."""
        dim = self._dim(dim)
        sizes = [high - low for low, high in self.local_ranges(dim, coord)]
        return local_slice(self.dims[dim], sizes, *self._bounds(dim, start, stop, step))

    def select(self, dim: int, index: int) -> Layout | None:
        """`tensor.select(dim, index)`: local only where the dim is not cut.

        Raises:
            ShapeError: no such index.
        """
        dim = self._dim(dim)
        if not -self.shape[dim] <= index < self.shape[dim]:
            raise ShapeError(f"index {index} of dim {dim} with size {self.shape[dim]}")
        return None if self.axes_of(dim) else self._with((*self.dims[:dim], *self.dims[dim + 1 :]))

    def _with(self, dims: Iterable[Factors]) -> Layout:
        return _intern(self.mesh_shape, tuple(dims), self.partial)

    def _with_dim(self, dim: int, factors: Factors | None) -> Layout | None:
        return None if factors is None else self._with((*self.dims[:dim], factors, *self.dims[dim + 1 :]))

    def _dim(self, dim: int) -> int:
        if not -self.ndim <= dim < self.ndim:
            raise ShapeError(f"dim {dim} of a tensor with {self.ndim} dims")
        return dim % self.ndim

    def _bounds(self, dim: int, start: int | None, stop: int | None, step: int) -> tuple[int, int, int]:
        if step < 1:
            raise ShapeError(f"slice with step {step}: torch takes positive steps only")
        return slice(start, stop, step).indices(self.shape[dim])

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Layout cannot be changed; its methods return other layouts")

    def __copy__(self) -> Layout:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Layout:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout.of, (self.mesh_shape, self.dims, self.partial)

    def __repr__(self) -> str:
        partial = "".join(f", partial on {axis}" for axis in self.partial)
        mesh = "x".join(map(str, self.mesh_shape))
        return f"Layout([{', '.join(describe_factors(factors) for factors in self.dims)}] on {mesh}{partial})"


@lru_cache(1024)
def _replicated(mesh_shape: tuple[int, ...], shape: tuple[int, ...]) -> Layout:
    """Remembered, since each plain tensor in a call asks for one."""
    return Layout.of(mesh_shape, [((n, ()),) for n in shape])


def _intern(mesh_shape: tuple[int, ...], dims: Dims, partial: tuple[int, ...]) -> Layout:
    """The one layout of these values; checks nothing."""
    dims = tuple([normal_dim(mesh_shape, factors) for factors in dims])
    key = (mesh_shape, dims, partial)
    with _LOCK:
        found = _INTERNED.get(key)
        if found is None:
            found = _INTERNED[key] = _new(*key)
    return found


def _new(mesh_shape: tuple[int, ...], dims: Dims, partial: tuple[int, ...]) -> Layout:
    roles: list[int | str] = ["P" if axis in partial else "R" for axis in range(len(mesh_shape))]
    for dim, factors in enumerate(dims):
        for axis in factors_axes(factors):
            roles[axis] = dim
    cut = tuple(axis for axis, role in enumerate(roles) if isinstance(role, int))
    layout = object.__new__(Layout)
    shape, whole = tuple(map(factors_size, dims)), not cut and not partial
    # In the order of the slots; the memo comes last.
    values: tuple[Any, ...] = mesh_shape, partial, dims, shape, len(dims), cut, whole, tuple(roles), {}
    for name, value in zip(Layout.__slots__, values):
        object.__setattr__(layout, name, value)
    return layout


def _without(dims: Dims, axes: frozenset[int]) -> Dims:
    """The dims with `axes` cutting nothing."""
    return tuple(tuple((n, tuple(a for a in cut if a not in axes)) for n, cut in factors) for factors in dims)
