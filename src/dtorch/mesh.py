"""Device meshes: which devices there are, and in what shape they stand.

A mesh is a plain value. Making one touches no device, so a cuda mesh can be made, priced and sent about on a
machine without a GPU. An "axis" belongs to a mesh, a "dim" to a tensor; the public names that say `dim_name`
are torch's and mean the name of an axis. A position is a device's place in the mesh, counted row by row.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dtorch.errors import AxisError, DeviceError, MeshError
from dtorch.mesh_description import Description
from dtorch.mesh_input import parse_device_type, parse_ids, parse_names, whole_number
from dtorch.options import GlobalOption

if TYPE_CHECKING:
    from dtorch.layout import Layout

_T = TypeVar("_T")
_RAISE: Any = object()


class DeviceMesh:
    """Devices of one type in a grid.

    Args:
        device_type: "cpu" or "cuda". A cpu mesh may name any number of virtual devices.
        mesh: device ids as a nested list, range, array or tensor, one level per axis. None is one device and
            not distributed; "cuda:1" then says which.
        mesh_dim_names: one name per axis, or None.

    Attributes:
        device_type: "cpu" or "cuda".
        device_ids: ids of the devices, row by row.
        shape: devices along each axis; () when not distributed.
        dim_names: names of the axes, or None.
        ndim: number of axes.
        size: number of devices.
        coords: coordinate of each device, row by row.
        description: the devices by their data sheet, on a mesh of `dtorch.described_mesh`; else None.

    Raises:
        MeshError: an unknown device type; ids that are no ints, negative, repeated, ragged or none at all;
            names that are no strings, empty, repeated, or not one per axis.
    """

    __slots__ = (
        "__weakref__", "_hash", "coords", "description", "device_ids", "device_type", "dim_names", "ndim",
        "shape", "size",
    )  # fmt: skip

    _hash: int
    coords: tuple[tuple[int, ...], ...]
    description: Description | None
    device_ids: tuple[int, ...]
    device_type: str
    dim_names: tuple[str, ...] | None
    ndim: int
    shape: tuple[int, ...]
    size: int

    def __init__(
        self,
        device_type: str | torch.device,
        mesh: Any = None,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> None:
        kind, index = parse_device_type(device_type)
        if mesh is None:
            shape: tuple[int, ...] = ()
            ids: tuple[int, ...] = (index or 0,)
        elif index is not None:
            raise MeshError(
                f"device type {str(device_type)!r} is one device; with mesh={mesh!r} write {kind!r}"
            )
        else:
            shape, ids = parse_ids(mesh)
        self._fill(kind, ids, shape, parse_names(mesh_dim_names, len(shape)))

    def _fill(
        self,
        kind: str,
        ids: tuple[int, ...],
        shape: tuple[int, ...],
        names: tuple[str, ...] | None,
        description: Description | None = None,
    ) -> None:
        values = {
            "device_type": kind,
            "device_ids": ids,
            "shape": shape,
            "dim_names": names,
            "ndim": len(shape),
            "size": len(ids),
            "coords": tuple(itertools.product(*map(range, shape))),
            "description": description,
            "_hash": hash((kind, ids, shape, names, description)),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self!r} cannot be changed; make a new mesh")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self!r} cannot be changed; make a new mesh")

    # -- what it is

    @property
    def mesh(self) -> torch.Tensor:
        """Device ids as an int64 cpu tensor of the mesh's shape, a fresh one each time."""
        # A mesh is also read inside modes that turn factories into distributed tensors.
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return torch.tensor(self.device_ids, dtype=torch.int64, device="cpu").view(self.shape)

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """torch's name of `dim_names`."""
        return self.dim_names

    @property
    def is_distributed(self) -> bool:
        """Whether the mesh has axes. One device given without a list of ids is not distributed."""
        return self.ndim > 0

    # -- axes

    def axis(self, axis: str | int) -> int:
        """Index of an axis given by name or by index (negative counts from the end).

        Raises:
            AxisError: the mesh has no such axis.
        """
        if isinstance(axis, str):
            if self.has_dim_name(axis):
                return self.dim_name_index(axis)
        elif not isinstance(axis, bool) and isinstance(axis, int) and -self.ndim <= axis < self.ndim:
            return axis % self.ndim
        raise AxisError(f"{self!r} has no axis {axis!r}; {self._axes_text()}")

    def has_dim_name(self, name: str) -> bool:
        """Whether an axis has that name."""
        return self.dim_names is not None and name in self.dim_names

    @overload
    def dim_name_index(self, name: str) -> int: ...
    @overload
    def dim_name_index(self, name: str, default: _T) -> int | _T: ...
    def dim_name_index(self, name: str, default: Any = _RAISE) -> Any:
        """Index of the axis of that name, or `default` where there is none.

        Raises:
            AxisError: there is none, and no default.
        """
        if self.dim_names is not None and name in self.dim_names:
            return self.dim_names.index(name)
        if default is _RAISE:
            raise AxisError(f"{self!r} has no axis {name!r}; {self._axes_text()}")
        return default

    def check_all_dim_names_in_set(self, names: Collection[str]) -> bool:
        """Whether every axis has a name and that name is in `names`; True for a mesh without axes."""
        if self.dim_names is None:
            return self.ndim == 0
        return set(self.dim_names) <= ({names} if isinstance(names, str) else set(names))

    # -- parts

    def unbind(self, dims: str | int | Sequence[str | int]) -> list[DeviceMesh]:
        """The meshes left when axes are taken away, one for each coordinate on those axes.

        Args:
            dims: one axis or several, by name or index. Names the mesh lacks are ignored.

        Returns:
            The parts, the first named axis running fastest: the last named is the outermost of the list.
            `[self]` if no axis is left to take away. Taking all axes leaves single devices.

        Raises:
            AxisError: an index out of range.
            MeshError: one axis named twice.
        """
        asked = [dims] if isinstance(dims, (str, int)) else list(dims)
        axes = [self.axis(d) for d in asked if not isinstance(d, str) or self.has_dim_name(d)]
        if len(set(axes)) < len(axes):
            raise MeshError(f"unbind({dims!r}) of {self!r} names one axis twice")
        if not axes:
            return [self]
        kept = [axis for axis in range(self.ndim) if axis not in axes]
        outer_first = list(reversed(axes))
        parts = itertools.product(*(range(self.shape[axis]) for axis in outer_first))
        return [self._part(dict(zip(outer_first, part, strict=True)), kept) for part in parts]

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The mesh of the named axes alone, in the order named, through the first device of the others.

        Raises:
            AxisError: the mesh has no such axis.
            MeshError: one axis named twice, none named, or an index instead of a name.
        """
        asked = (names,) if isinstance(names, str) else names
        if not isinstance(asked, tuple) or not asked or not all(isinstance(name, str) for name in asked):
            raise MeshError(f"mesh[{names!r}]: write names of axes, as mesh['tp']; unbind takes indices")
        kept = [self.axis(name) for name in asked]
        if len(set(kept)) < len(kept):
            raise MeshError(f"mesh[{names!r}] of {self!r} names one axis twice")
        return self._part({axis: 0 for axis in range(self.ndim) if axis not in kept}, kept)

    def _part(self, fixed: dict[int, int], kept: Sequence[int]) -> DeviceMesh:
        """The mesh over the axes `kept`, in that order, at the coordinates `fixed` of the others."""
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(self.ndim)]
        start = sum(strides[axis] * index for axis, index in fixed.items())
        shape = tuple(self.shape[axis] for axis in kept)
        coords = itertools.product(*map(range, shape))
        steps = [strides[axis] for axis in kept]
        ids = tuple(self.device_ids[start + sum(map(operator.mul, steps, coord))] for coord in coords)
        names = tuple(self.dim_names[axis] for axis in kept) if self.dim_names and kept else None
        described = None if self.description is None else self.description.along(kept)
        return _rebuild(self.device_type, ids, shape, names, described)

    # -- devices

    def torch_device(self, position: int | Sequence[int]) -> torch.device:
        """The device on which the local tensors of a position live.

        Under DTORCH_DTENSOR_IN_SAME_DEVICE=1 that is the first GPU for every position of a cuda mesh.

        Args:
            position: index in mesh order, or coordinate.

        Raises:
            AxisError: the mesh has no such position.
        """
        index = self.position(position)
        if self.device_type == "cpu":
            return torch.device("cpu")
        same = GlobalOption.get_dtensor_in_same_device()
        return torch.device("cuda", 0 if same else self.device_ids[index])

    def position(self, position: int | Sequence[int]) -> int:
        """Index in mesh order of a position given by index or by coordinate, neither negative.

        Raises:
            AxisError: the mesh has no such position.
        """
        if isinstance(position, Sequence):
            coord = tuple(position)
            if len(coord) != self.ndim or not all(0 <= c < n for c, n in zip(coord, self.shape)):
                raise AxisError(f"{self!r} has no coordinate {coord}; its shape is {self.shape}")
            return reduce(lambda index, step: index * step[0] + step[1], zip(self.shape, coord), 0)
        index = operator.index(position)
        if not 0 <= index < self.size:
            raise AxisError(f"{self!r} has no position {index}; positions are 0 to {self.size - 1}")
        return index

    @property
    def shares_storage(self) -> bool:
        """Whether all positions are one physical device, so that replicas may be one tensor."""
        return self.device_type == "cpu" or self.size == 1 or GlobalOption.get_dtensor_in_same_device()

    def owners(self, layout: Layout) -> tuple[int, ...]:
        """For every position the first position that holds the same part in the same memory."""
        return layout.distinct() if self.shares_storage else tuple(range(self.size))

    def first_device(self) -> torch.device:
        """The device of position 0."""
        return self.torch_device(0)

    def to_device(self) -> torch.device:
        """The device of a mesh that has just one.

        Raises:
            DeviceError: the mesh has several.
        """
        if self.size != 1:
            raise DeviceError(f"{self!r} is {self.size} devices, not one; first_device() gives the first")
        return self.first_device()

    def missing_devices(self) -> tuple[int, ...]:
        """Ids of the mesh that this machine does not have; always none for virtual cpu devices."""
        if self.device_type == "cpu":
            return ()
        present = GlobalOption.get_num_gpu()
        return tuple(id for id in self.device_ids if id >= present)

    def check_available(self) -> None:
        """Refuse a mesh whose devices this machine lacks; called before a tensor is placed on it.

        Raises:
            DeviceError: a device is missing.
        """
        missing = self.missing_devices()
        if missing:
            here = GlobalOption.get_num_gpu()
            raise DeviceError(
                f"{self!r} needs cuda devices {list(missing)}, and {here} GPUs are here; "
                f"use a cpu mesh, or DTORCH_DTENSOR_IN_SAME_DEVICE=1 to let one GPU stand for several"
            )

    # -- as a value

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self._hash == other._hash and self._value() == other._value()

    def __hash__(self) -> int:
        return self._hash

    def _value(self) -> tuple[Any, ...]:
        return self.device_type, self.device_ids, self.shape, self.dim_names, self.description

    def described(self, description: Description) -> DeviceMesh:
        """The same mesh on devices of a data sheet: tensors on it have no storage."""
        return _rebuild("cpu", self.device_ids, self.shape, self.dim_names, description)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._value()

    def __repr__(self) -> str:
        kind = self.device_type if self.description is None else self.description.device.name
        if not self.ndim:
            (id,) = self.device_ids
            return f"DeviceMesh('{kind}')" if not id else f"DeviceMesh('{kind}:{id}')"
        names = self.dim_names
        shape = f"({', '.join(map('{}={}'.format, names, self.shape))})" if names else f"{self.shape}"
        if self.device_ids == tuple(range(self.size)):
            stride = tuple(math.prod(self.shape[axis + 1 :]) for axis in range(self.ndim))
            return f"DeviceMesh({shape}, {kind!r}, stride={stride})"
        return f"DeviceMesh({shape}, {kind!r}, ids={list(self.device_ids)})"

    def _axes_text(self) -> str:
        if not self.ndim:
            return "it is one device and has no axes"
        return f"its axes are {list(self.dim_names) if self.dim_names else list(range(self.ndim))}"


def init_device_mesh(
    device_type: str | torch.device,
    mesh_shape: int | Sequence[int],
    mesh_dim_names: Sequence[str] | None = None,
) -> DeviceMesh:
    """A mesh of devices 0, 1, 2 ... in the given shape, as torch's function of that name.

    Args:
        device_type: "cpu" or "cuda".
        mesh_shape: devices along each axis; an int is one axis.
        mesh_dim_names: one name per axis, or None.

    Raises:
        MeshError: a shape without axes or with a size that is not an int above 0, or as `DeviceMesh`.
    """
    sizes = [mesh_shape] if isinstance(mesh_shape, int) else list(mesh_shape)
    shape = tuple(whole_number(size, f"mesh_shape {mesh_shape!r}: a size") for size in sizes)
    if not shape:
        raise MeshError(
            f"mesh_shape {mesh_shape!r} has no axes; DeviceMesh({str(device_type)!r}) is one device"
        )
    if min(shape) < 1:
        raise MeshError(f"mesh_shape {mesh_shape!r}: every size must be at least 1, got {min(shape)}")
    ids: Any = range(math.prod(shape))
    for size in reversed(shape[1:]):
        ids = [ids[start : start + size] for start in range(0, len(ids), size)]
    return DeviceMesh(device_type, ids, mesh_dim_names)


def _rebuild(
    kind: str,
    ids: tuple[int, ...],
    shape: tuple[int, ...],
    names: tuple[str, ...] | None,
    description: Description | None = None,
) -> DeviceMesh:
    """A mesh from parts that were checked before."""
    mesh = object.__new__(DeviceMesh)
    mesh._fill(kind, ids, shape, names, description)
    return mesh
