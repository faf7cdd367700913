"""From one mesh and layout to another: what it costs, and doing it.

`plan` says beforehand, for any two layouts on any two meshes, which steps it takes and how many bytes each
device receives; `cost` is its total alone. `execute` moves the parts of this process. A tensor's parts are a
list of plain tensors, one per device in mesh order; replicas may be one object where the devices share
storage.

`counting.py` says what devices hold and need, `pricing.py` what is sent, `copying.py` moves it; `blocks.py`
is the arithmetic of two layouts of one dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from dtorch.errors import MeshMismatchError, ShapeError
from dtorch.layout import Layout
from dtorch.redistribute.copying import dim_order, make, memory_order, result_at, sum_dtype
from dtorch.redistribute.counting import Geometry, one_mesh
from dtorch.redistribute.local_work import LocalWork
from dtorch.redistribute.pricing import cheapest

if TYPE_CHECKING:
    from dtorch.mesh import DeviceMesh

__all__ = [
    "Redistribution",
    "Step",
    "assemble",
    "cost",
    "dim_order",
    "execute",
    "memory_order",
    "plan",
    "split",
    "sum_dtype",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a redistribution.

    Attributes:
        kind: what a backend would call.

            local           every device has what it needs
            all_gather      cut axes become Replicate, and no device throws anything away
            all_reduce      pending sums become whole
            reduce_scatter  pending sums become whole, each device with a piece
            all_to_all      axes cut another dim, or the same in another order
            exchange        several of these at once
            transfer        to another mesh

        axes: mesh axes whose role changes, ascending; none for a transfer.
        bytes_total: bytes received, over all devices.
        bytes_max: bytes received by the device that receives most.
    """

    kind: str
    axes: tuple[int, ...]
    bytes_total: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Redistribution:
    """What a redistribution does; no steps where source and destination are the same.

    Attributes:
        steps: in order.
        bytes_total: bytes received, over all devices and steps.
        bytes_max: bytes received by the device that receives most.
        received: bytes received by each device, in the order of the destination mesh; devices that are only
            in another source mesh follow.
    """

    steps: tuple[Step, ...]
    bytes_total: int
    bytes_max: int
    received: tuple[int, ...]


@lru_cache(maxsize=65536)
def plan(
    src: Layout,
    dst: Layout,
    itemsize: int,
    src_mesh: DeviceMesh | None = None,
    dst_mesh: DeviceMesh | None = None,
) -> Redistribution:
    """The cheapest redistribution by bytes.

    Args:
        src: layout of the source.
        dst: layout of the destination, of the same global shape.
        itemsize: bytes per element.
        src_mesh: devices of the source; None for any one mesh that both are on.
        dst_mesh: devices of the destination; None for those of the source.

    Raises:
        ShapeError: the layouts are of different shapes.
        MeshMismatchError: a layout for a mesh of another shape.
    """
    way = cheapest(src, dst, _checked(src, dst, src_mesh, dst_mesh))
    steps = tuple(
        Step(kind, axes, sum(received) * itemsize, max(received) * itemsize)
        for kind, axes, received, _ in way.moves
    )
    received = tuple(count * itemsize for count in way.received)
    return Redistribution(steps, way.total * itemsize, way.largest * itemsize, received)


def cost(src: Layout, dst: Layout, itemsize: int) -> int:
    """Bytes that all devices together receive in the cheapest redistribution on one mesh.

    Raises:
        ShapeError: the layouts are of different shapes.
        MeshMismatchError: the layouts are for meshes of different shapes.
    """
    if src is dst:
        return 0
    return cheapest(src, dst, _checked(src, dst, None, None)).total * itemsize


def execute(
    parts: Sequence[torch.Tensor],
    src: Layout,
    dst: Layout,
    src_mesh: DeviceMesh,
    dst_mesh: DeviceMesh | None = None,
    order: Sequence[int] | None = None,
) -> list[torch.Tensor]:
    """The parts under another layout.

    Args:
        parts: one tensor per source device, of its local shape, all of one dtype.
        src: their layout.
        dst: the layout of the result, of the same global shape.
        src_mesh: the devices of `parts`.
        dst_mesh: the devices of the result; None for `src_mesh`.
        order: dims of the global tensor from the largest stride to the smallest; None reads it off the parts,
        which
            cannot tell where local sizes are 1.

    Returns:
        Fresh compact tensors without autograd history, one per destination device; those of devices that hold
        the same are one object where the mesh shares storage. `parts` itself if neither layout nor devices
        change.

    Raises:
        ShapeError: the layouts are of different shapes.
        MeshMismatchError: a layout for a mesh of another shape, or not one part per device.
    """
    dst_mesh = src_mesh if dst_mesh is None else dst_mesh
    geometry = _checked(src, dst, src_mesh, dst_mesh)
    if len(parts) != src_mesh.size:
        raise MeshMismatchError(f"{len(parts)} parts for {src_mesh!r} with {src_mesh.size} devices")
    if src is dst and geometry.same:
        return parts if isinstance(parts, list) else list(parts)
    positions = dst_mesh.owners(dst)
    order = _order_of(parts) if order is None else tuple(order)
    made: dict[int, torch.Tensor] = {}
    with LocalWork():
        for position in positions:
            if position not in made:
                result = result_at(src, dst, geometry, position)
                device = dst_mesh.torch_device(position)
                made[position] = make(result, parts, order, parts[0].dtype, device)
    return [made[position] for position in positions]


def split(full: torch.Tensor, layout: Layout, mesh: DeviceMesh) -> list[torch.Tensor]:
    """The parts of a full tensor under a layout: fresh tensors, as `execute` makes them.

    A pending sum has the value on the first device along its axis and zeros on the others.

    Raises:
        ShapeError: the layout is of another shape.
        MeshMismatchError: the layout is for a mesh of another shape.
    """
    whole = Layout.replicate(layout.mesh_shape, full.shape)
    if layout is not whole:
        return execute([full] * mesh.size, whole, layout, mesh)
    _checked(layout, layout, mesh, mesh)
    positions = mesh.owners(layout)
    copies = {position: _copy_to(full, mesh.torch_device(position)) for position in set(positions)}
    return [copies[position] for position in positions]


def assemble(parts: Sequence[torch.Tensor], layout: Layout, mesh: DeviceMesh) -> torch.Tensor:
    """The full tensor that parts make: a fresh tensor on the first device.

    Raises:
        MeshMismatchError: the layout is for a mesh of another shape, or not one part per device.
    """
    if len(parts) != mesh.size:
        raise MeshMismatchError(f"{len(parts)} parts for {mesh!r} with {mesh.size} devices")
    device = mesh.torch_device(0)
    if layout.is_replicate:
        return _copy_to(parts[0], device)
    whole = Layout.replicate(layout.mesh_shape, layout.shape)
    result = result_at(layout, whole, _checked(layout, whole, mesh, mesh), 0)
    with LocalWork():
        return make(result, parts, _order_of(parts), parts[0].dtype, device)


def _copy_to(full: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A compact copy in the same order of dims, of the strides that torch gives a clone."""
    with LocalWork():
        return torch.empty_like(full, device=device).copy_(full)


def _order_of(parts: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The order of dims in memory, read off the largest part."""
    return dim_order(max(parts, key=torch.Tensor.numel))


def _checked(src: Layout, dst: Layout, src_mesh: DeviceMesh | None, dst_mesh: DeviceMesh | None) -> Geometry:
    """Where the devices coincide, if layouts and meshes fit each other."""
    if src.shape != dst.shape:
        raise ShapeError(f"redistribution of shape {list(src.shape)} to shape {list(dst.shape)}")
    dst_mesh = src_mesh if dst_mesh is None else dst_mesh
    if src_mesh is None or dst_mesh is None:
        if src.mesh_shape != dst.mesh_shape:
            raise MeshMismatchError(
                f"{src!r} and {dst!r} are for meshes of different shapes; say which devices"
            )
        return one_mesh(src.mesh_shape)
    for layout, mesh in ((src, src_mesh), (dst, dst_mesh)):
        if layout.mesh_shape != mesh.shape:
            raise MeshMismatchError(f"{layout!r} on {mesh!r}")
    return _geometry(src_mesh, dst_mesh)


@lru_cache(maxsize=4096)
def _geometry(src_mesh: DeviceMesh, dst_mesh: DeviceMesh) -> Geometry:
    """Where the devices of two meshes coincide."""
    if _kind(src_mesh) == _kind(dst_mesh):
        if (src_mesh.shape, src_mesh.device_ids) == (dst_mesh.shape, dst_mesh.device_ids):
            return one_mesh(src_mesh.shape)
        at = {device: position for position, device in enumerate(src_mesh.device_ids)}
        device = tuple(at.get(id, -1) for id in dst_mesh.device_ids)
    else:
        device = (-1,) * dst_mesh.size
    return Geometry(src_mesh.shape, dst_mesh.shape, device, device, False)


def _kind(mesh: DeviceMesh) -> tuple[str, Any]:
    """Which devices the ids of a mesh count: those of this machine, or those of a data sheet."""
    return mesh.device_type, mesh.description and mesh.description.device
