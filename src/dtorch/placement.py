"""Placements: what one mesh axis does with a tensor.

    Shard(dim)     the axis cuts that dim of the tensor, as torch.chunk would
    Replicate()    every device along the axis holds the same
    Partial()      the value is the sum over the devices along the axis

They are small frozen values that equal, hash like and convert to those of torch.distributed.tensor. That
package takes half a second to import, so it is looked at only when the program has already loaded it.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dtorch.errors import PlacementError

if TYPE_CHECKING:
    from dtorch.mesh import DeviceMesh

_SHARD_TEXT = re.compile(r"S(?:(-?\d+)|\((-?\d+)\))")


class Placement:
    """Base of the three placements, and what they have in common."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self!r} cannot be changed; make a new placement")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self!r} cannot be changed; make a new placement")

    def is_shard(self, dim: int | None = None) -> bool:
        """Whether this is a Shard, and of that tensor dim when one is given."""
        return isinstance(self, Shard) and (dim is None or self.dim == dim)

    def is_replicate(self) -> bool:
        """Whether this is Replicate."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether this is a pending sum; False for any other `reduce_op` than "sum"."""
        return isinstance(self, Partial) and reduce_op in (None, "sum")

    def get_shard_index(self) -> int:
        """The tensor dim that is cut.

        Raises:
            PlacementError: this is not a Shard.
        """
        if isinstance(self, Shard):
            return self.dim
        raise PlacementError(f"{self!r} cuts no dim, so it has no shard index")

    def to_torch(self) -> Any:
        """The equal placement of torch.distributed.tensor, which is imported for it.

        Raises:
            PlacementError: a kind of Shard that torch does not have.
        """
        from torch.distributed import tensor

        if type(self) is Shard:
            return tensor.Shard(self.dim)
        if type(self) is Replicate:
            return tensor.Replicate()
        if type(self) is Partial:
            return tensor.Partial(self.reduce_op)
        raise PlacementError(f"{self!r} has no equal among torch's placements")


class Shard(Placement):
    """The axis cuts tensor dim `dim`; a negative dim counts from the end and is resolved with the tensor.

    Raises:
        PlacementError: `dim` is not an int.
    """

    __slots__ = ("dim",)
    dim: int

    def __init__(self, dim: int) -> None:
        object.__setattr__(self, "dim", _dim_index(dim))

    def __eq__(self, other: object) -> bool:
        # A subclass knows more than the dim: it says itself what it equals.
        if type(self) is not Shard:
            return NotImplemented
        if type(other) is Shard or _is_torch("Shard", other):
            return bool(self.dim == other.dim)  # type: ignore[attr-defined]
        return NotImplemented

    def __hash__(self) -> int:
        # The three hashes are torch's: equal values must hash equally.
        return hash(self.dim)

    def __repr__(self) -> str:
        return f"Shard({self.dim})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.dim,)


class Replicate(Placement):
    """Every device along the axis holds the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True if type(other) is Replicate or _is_torch("Replicate", other) else NotImplemented

    def __hash__(self) -> int:
        return hash(-1)

    def __repr__(self) -> str:
        return "Replicate()"

    def __reduce__(self) -> tuple[Any, ...]:
        return Replicate, ()


class Partial(Placement):
    """A pending sum: the value is the sum of what the devices along the axis hold.

    Raises:
        PlacementError: `reduce_op` is not "sum".
    """

    __slots__ = ()
    reduce_op: ClassVar[str] = "sum"

    def __init__(self, reduce_op: str = "sum") -> None:
        if reduce_op != "sum":
            raise PlacementError(
                f"Partial({reduce_op!r}): a Partial is a pending sum and nothing else; reduce first "
                f"(for example with torch.amax) and use Replicate()"
            )

    def __eq__(self, other: object) -> bool:
        if type(other) is Partial:
            return True
        if _is_torch("Partial", other):
            return bool(other.reduce_op == "sum")  # type: ignore[attr-defined]
        return NotImplemented

    def __hash__(self) -> int:
        return 1 + hash("sum")

    def __repr__(self) -> str:
        return "Partial()"

    def __reduce__(self) -> tuple[Any, ...]:
        return Partial, ()


def as_placement(value: Any) -> Placement:
    """One placement from ours, torch's, or a string: "R", "P", "S0" or "S(0)".

    Raises:
        PlacementError: anything else; torch's Partial of another reduction and its strided shards too.
    """
    if isinstance(value, (Shard, Replicate, Partial)):
        return value
    if isinstance(value, str):
        return _from_text(value)
    if _is_torch("Shard", value):
        return Shard(value.dim)
    if _is_torch("Replicate", value):
        return Replicate()
    if _is_torch("Partial", value):
        return Partial(value.reduce_op)
    if isinstance(value, type) and issubclass(value, Placement):
        raise PlacementError(f"{value.__name__} is a class; write {value.__name__}(...) with parentheses")
    raise PlacementError(
        f"{value!r} ({type(value).__name__}) is no placement; use Shard(dim), Replicate() or Partial(), "
        f'or the strings "S0", "R", "P"'
    )


def normalize_placements(placements: Sequence[Any], mesh: DeviceMesh, ndim: int) -> tuple[Placement, ...]:
    """Placements ready to be stored: one per mesh axis, of our classes, dims positive.

    On an axis of size 1 every placement means the same and is stored as Replicate.

    Args:
        placements: one per axis of `mesh`, each as `as_placement` takes it.
        mesh: the mesh they are for.
        ndim: number of dims of the tensor.

    Raises:
        PlacementError: not a sequence, too few or too many, no placement, or a dim the tensor lacks.
    """
    if isinstance(placements, (str, Placement)) or not isinstance(placements, Sequence):
        raise PlacementError(
            f"placements must be a list or tuple with one entry per mesh axis, got {placements!r}"
        )
    if len(placements) != mesh.ndim:
        raise PlacementError(
            f"{len(placements)} placements {list(placements)!r} for {mesh!r}, which has {mesh.ndim} axes; "
            f"give one per axis, Replicate() where nothing is cut"
        )
    return tuple(_on_axis(value, mesh, axis, ndim) for axis, value in enumerate(placements))


def _on_axis(value: Any, mesh: DeviceMesh, axis: int, ndim: int) -> Placement:
    """The stored form of the placement on one axis."""
    placement = as_placement(value)
    if isinstance(placement, Shard):
        dim = placement.dim
        if not -ndim <= dim < ndim:
            name = f" ({mesh.dim_names[axis]!r})" if mesh.dim_names else ""
            legal = f"dims {-ndim} to {ndim - 1} exist" if ndim else "a scalar has none to cut"
            raise PlacementError(
                f"{placement!r} on mesh axis {axis}{name}: the tensor has {ndim} dims, {legal}"
            )
        if dim < 0:
            placement = Shard(dim + ndim)
    return placement if mesh.shape[axis] > 1 else Replicate()


def _dim_index(dim: Any) -> int:
    """`dim` as an int; bools and floats are refused, numpy's and torch's integers taken."""
    try:
        if isinstance(dim, bool):
            raise TypeError
        return operator.index(dim)
    except TypeError:
        raise PlacementError(f"Shard({dim!r}): the dim must be an int, not {type(dim).__name__}") from None


def _from_text(text: str) -> Placement:
    """The placement that a rule string names."""
    if text == "R":
        return Replicate()
    if text == "P":
        return Partial()
    found = _SHARD_TEXT.fullmatch(text)
    if found is None:
        raise PlacementError(f'{text!r} is no placement; the strings are "R", "P", "S0" or "S(0)"')
    return Shard(int(found[1] or found[2]))


def _is_torch(name: str, value: Any) -> bool:
    """Whether `value` is exactly torch's class of that name; False while torch's package is not loaded."""
    module = sys.modules.get("torch.distributed.tensor.placement_types")
    return module is not None and type(value) is getattr(module, name, None)
