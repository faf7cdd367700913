"""What a distributed tensor is, apart from its values."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import torch

from dtorch.errors import MeshMismatchError, ShapeError
from dtorch.layout import Layout

if TYPE_CHECKING:
    from dtorch.mesh import DeviceMesh
    from dtorch.placement import Placement

_INTERNED: WeakValueDictionary[tuple[Any, ...], Spec] = WeakValueDictionary()
# Reentrant: a finalizer that runs inside may make one too.
_LOCK = threading.RLock()


class Spec:
    """Shape, stride, dtype, layout and mesh of a distributed tensor, all global.

    Specs are interned: equal ones are the same object, also after pickling, so comparing and hashing is by
    identity.

    Attributes:
        shape: sizes.
        stride: distances in elements, as `torch.Tensor.stride` of the global tensor.
        dtype: element type.
        layout: how the tensor is spread over the mesh.
        mesh: the devices.
        ndim, numel: number of dims and elements.
        itemsize: bytes per element.
        nbytes: bytes of all elements, each once.

    Raises:
        ShapeError: shape, stride and layout disagree.
        MeshMismatchError: the layout is for a mesh of another shape.
    """

    tensor_class: ClassVar[type] = torch.Tensor  # of the tensors that users hold

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout
    mesh: DeviceMesh
    ndim: int
    numel: int
    itemsize: int
    nbytes: int

    def __new__(
        cls, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, layout: Layout, mesh: DeviceMesh
    ) -> Spec:
        key = (tuple(shape), tuple(stride), dtype, layout, mesh)
        with _LOCK:
            found = _INTERNED.get(key)
            if found is None:
                found = _INTERNED[key] = _new(*key)
        return found

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """One placement per mesh axis, printed with the mesh's axis names."""
        return self.layout.placements(self.mesh.dim_names)

    @cached_property
    def device(self) -> torch.device:
        """The device that torch shows for the tensor: that of the mesh's first position."""
        return self.mesh.torch_device(0)

    @property
    def owners(self) -> tuple[int, ...]:
        """For every position the first position that holds the same part in the same memory."""
        return self.mesh.owners(self.layout)

    @cached_property
    def is_dense(self) -> bool:
        """Whether there are elements, and they fill their stretch of memory without gaps, each place once."""
        if not self.numel:
            return False
        step = 1
        for stride, size in sorted((d, n) for d, n in zip(self.stride, self.shape, strict=True) if n != 1):
            if stride != step:
                return False
            step *= size
        return True

    @cached_property
    def symbol(self) -> tuple[Any, ...]:
        """What torch makes a tensor of: class, shape, stride, offset, memory format, dtype, layout, device.

        None where torch's own choice is the same, since looking through an argument costs.
        """
        packed = [prod(self.shape[i + 1 :]) for i in range(self.ndim)]
        stride = None if self.numel and list(self.stride) == packed else self.stride
        return self.tensor_class, self.shape, stride, None, None, self.dtype, torch.strided, self.device

    def local_shape(self, coord: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of the part of the device at `coord`."""
        return self.layout.local_shape(coord)

    def local_nbytes(self, coord: tuple[int, ...]) -> int:
        """Bytes of the part of the device at `coord`."""
        return self.layout.local_numel(coord) * self.itemsize

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Spec cannot be changed; make another one")

    def __copy__(self) -> Spec:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Spec:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.shape, self.stride, self.dtype, self.layout, self.mesh)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Spec({list(self.shape)}, {dtype}, {list(self.placements)}, {self.mesh!r})"


def _new(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, layout: Layout, mesh: DeviceMesh
) -> Spec:
    if layout.shape != shape or len(stride) != len(shape):
        raise ShapeError(f"a spec of shape {list(shape)} and stride {list(stride)} with {layout!r}")
    if layout.mesh_shape != tuple(mesh.shape):
        raise MeshMismatchError(f"{layout!r} on {mesh!r}")
    numel = prod(shape)
    spec = object.__new__(Spec)
    # Through the instance's dict: the class refuses assignment, cached_property writes there too.
    spec.__dict__.update(
        shape=shape, stride=stride, dtype=dtype, layout=layout, mesh=mesh, ndim=len(shape), numel=numel,
        itemsize=dtype.itemsize, nbytes=numel * dtype.itemsize,
    )  # fmt: skip
    return spec
