"""Moves between placements, meshes and plain tensors that autograd follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dtorch.errors import (
    AxisError,
    DeviceError,
    MeshMismatchError,
    PlacementError,
    ShapeError,
    UnsupportedError,
)
from dtorch.graph import aliasing
from dtorch.graph.conversion import convert
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import Operand
from dtorch.placement import Placement, Replicate, as_placement
from dtorch.spec import Spec
from dtorch.tensor import Tensor, distribute, wrap
from dtorch.tensor_layout import compact_stride, layout_of


def moved(x: Tensor, mesh: DeviceMesh, layout: Layout) -> Tensor:
    """The same value on a mesh, under a layout for it; its gradient comes back to the old mesh."""
    return _converted(x, mesh, layout) if _is_constant(x) else _Redistribute.apply(x, mesh, layout)


def full_value(x: Tensor) -> torch.Tensor:
    """The full value as a plain tensor; the gradient is spread as the tensor was."""
    return x._graph.read(x._operand) if _is_constant(x) else _ToTorch.apply(x)


def reread(x: Tensor, placements: Any) -> Tensor:
    """The local parts under other placements, copied; see `Tensor.view`."""
    return _Reinterpret.apply(x, placements)


def _is_constant(x: Tensor) -> bool:
    """Whether a torch.func transform runs, to which the tensor is constant; it refuses such functions."""
    return torch._C._are_functorch_transforms_active() and not x.requires_grad


def _converted(x: Tensor, mesh: DeviceMesh, target: Layout) -> Tensor:
    operand, graph = x._operand, x._graph
    with graph.lock, torch._C.DisableTorchFunction():
        if target is operand.layout and mesh == operand.spec.mesh:
            return wrap(operand, graph)
        if operand.shared is not None and operand.shared.upstream is not None:
            aliasing.refresh(graph.constructor, operand)  # a copied view, brought up to date
        return wrap(convert(graph.constructor, operand, target, mesh, keep=False, implicit=False), graph)


class _Redistribute(torch.autograd.Function):
    """Identity on the global value, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, target: Layout) -> Tensor:
        ctx.back = x._operand.spec
        ctx.moved = mesh != ctx.back.mesh
        return _converted(x, mesh, target)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if ctx.moved:
            return grad.redistribute(ctx.back.mesh, ctx.back.layout.without_partial()), None, None
        return grad, None, None


class _ToTorch(torch.autograd.Function):
    """A distributed tensor's full value; the gradient is spread as the tensor was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> torch.Tensor:
        ctx.back = x._operand.spec
        ctx.graph = x._graph
        return x._graph.read(x._operand)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _FromTorch.apply(grad, ctx.back.mesh, ctx.back.layout.without_partial(), ctx.graph)


class _FromTorch(torch.autograd.Function):
    """A plain tensor spread over a mesh, the other way round."""

    @staticmethod
    def forward(ctx: Any, full: torch.Tensor, mesh: DeviceMesh, layout: Layout, graph: Any) -> Tensor:
        if isinstance(full, Tensor):
            return full.redistribute(mesh, layout)
        return distribute(full, mesh, layout, graph)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return grad.to_torch(), None, None, None


class _Reinterpret(torch.autograd.Function):
    """The local parts under other placements, copied.

    Seen as a map of local parts it is the identity, so the gradient is read back the same way: where a value
    is Replicate its gradient is a pending sum, where it is Partial its gradient is Replicate.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, placements: Any) -> Tensor:
        spec = x._operand.spec
        parts = x._graph.parts(x._operand)
        mesh = spec.mesh
        target = layout_of_parts([tuple(part.shape) for part in parts], mesh, placements)
        alike = set(range(mesh.ndim)) - set(spec.layout.cut_axes) - set(spec.layout.partial)
        whole = {axis for axis in range(mesh.ndim) if target.role(axis) == "R"}
        differ = [axis for axis in sorted(whole - alike) if mesh.shape[axis] > 1]
        if differ:
            raise PlacementError(
                f"view({list(target.placements())}) of {list(spec.placements)}: the parts differ "
                f"along mesh axis {differ[0]}, so they are no Replicate; "
                "redistribute(placements=...) makes them so"
            )
        ctx.spec, ctx.target = spec, target
        with torch._C.DisableTorchFunction():
            kept = mesh.owners(target)
            made = {position: parts[position].clone() for position in dict.fromkeys(kept)}
        stride = compact_stride(target.shape, range(target.ndim))
        return wrap(
            Operand(Spec(target.shape, stride, spec.dtype, target, mesh), [made[p] for p in kept]), x._graph
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if ctx.spec.layout.partial:
            raise UnsupportedError("view(placements) of a pending sum has no gradient; redistribute it first")
        given = grad.redistribute(placements=_dual(ctx.target))
        return given.view(_dual(ctx.spec.layout)), None


def _dual(layout: Layout) -> Layout:
    """The layout of a gradient's parts: Replicate and Partial change places."""
    whole = [a for a, n in enumerate(layout.mesh_shape) if n > 1 and layout.role(a) == "R"]
    return Layout.of(layout.mesh_shape, layout.dims, whole)


def layout_of_parts(shapes: Sequence[tuple[int, ...]], mesh: DeviceMesh, placements: Any) -> Layout:
    """The layout whose parts have exactly these shapes.

    Args:
        shapes: one per device, in mesh order.
        mesh: the devices.
        placements: one per mesh axis, or a Layout, which says the sizes itself.

    Raises:
        ShapeError: a part has another shape than the layout gives its device; the text lists the right ones.
        PlacementError: placements that do not fit the mesh or the dims.
    """
    if len(shapes) != mesh.size:
        raise ShapeError(
            f"{len(shapes)} parts for {mesh!r}, which has {mesh.size} devices; give one for each"
        )
    ndims = {len(shape) for shape in shapes}
    if len(ndims) > 1:
        raise ShapeError(f"parts with different numbers of dims: {', '.join(map(str, map(list, shapes)))}")
    if isinstance(placements, Layout):
        layout = layout_of(placements, mesh, placements.shape)
    else:
        layout = layout_of(placements, mesh, _global_shape(shapes, mesh, placements))
    for coord, shape in zip(mesh.coords, shapes):
        expected = layout.local_shape(coord)
        if expected != shape:
            every = ", ".join(str(list(layout.local_shape(c))) for c in mesh.coords)
            raise ShapeError(
                f"the part at {coord} is {list(shape)}, {list(layout.placements(mesh.dim_names))} makes "
                f"it {list(expected)}: "
                f"torch.chunk cuts {list(layout.shape)} into {every}"
            )
    return layout


def _global_shape(shapes: Sequence[tuple[int, ...]], mesh: DeviceMesh, placements: Any) -> list[int]:
    """Sizes along each dim, added over the devices that cut it."""
    roles = [as_placement(p) for p in placements or ()]
    ndim = len(shapes[0])
    sizes = list(shapes[0])
    for dim in range(ndim):
        cutting = {
            a for a, p in enumerate(roles[: mesh.ndim]) if p.is_shard() and p.get_shard_index() % ndim == dim
        }
        if cutting:
            along = [
                s[dim]
                for c, s in zip(mesh.coords, shapes)
                if all(a in cutting or not i for a, i in enumerate(c))
            ]
            sizes[dim] = sum(along)
    return sizes


def placements_by_axis(
    tensor: Tensor, mesh: DeviceMesh, given: Mapping[str | int, Any], mode: str, size_one_whole: bool
) -> list[Placement]:
    """One placement per axis of `mesh`, from those given by name or index and a rule for the others.

    Args:
        tensor: whose dims and present placements count.
        mesh: the mesh they are for.
        given: axis -> placement.
        mode: "raise_error", "replicate" or "keep".
        size_one_whole: whether a Shard of a tensor dim of size 1 becomes Replicate.

    Raises:
        PlacementError: an axis without placement under "raise_error", an index out of range, an unknown mode.
    """
    if mode not in ("raise_error", "replicate", "keep"):
        raise PlacementError(
            f"default_placement_mode {mode!r}: there are 'raise_error', 'replicate' and 'keep'"
        )
    found: dict[int, Placement] = {}
    for axis, placement in given.items():
        if isinstance(axis, int) or mesh.has_dim_name(axis):
            found[mesh.axis(axis)] = _positive(as_placement(placement), tensor.ndim)
    for axis in range(mesh.ndim):
        if axis not in found:
            found[axis] = _left_out(tensor, mesh, axis, mode, given)
    chosen = [found[axis] for axis in range(mesh.ndim)]
    if not size_one_whole:
        return chosen
    ones = {dim for dim, size in enumerate(tensor.shape) if size == 1}
    return [Replicate() if p.is_shard() and p.get_shard_index() in ones else p for p in chosen]


def _positive(placement: Placement, ndim: int) -> Placement:
    dim = placement.get_shard_index() if placement.is_shard() else 0
    if not placement.is_shard() or dim >= 0:
        return placement
    if dim < -ndim:
        raise PlacementError(f"{placement!r}: the tensor has {ndim} dims")
    return as_placement(f"S{dim + ndim}")


def _left_out(
    tensor: Tensor, mesh: DeviceMesh, axis: int, mode: str, given: Mapping[str | int, Any]
) -> Placement:
    name = mesh.dim_names[axis] if mesh.dim_names else axis
    if mode == "replicate":
        return Replicate()
    if mode == "keep":
        have = tensor.device_mesh
        before = have.dim_name_index(name, None) if isinstance(name, str) and have.dim_names else axis
        if before is not None and before < have.ndim:
            return tensor.placements[before]
        raise AxisError(
            f"{have!r} has no axis {name!r} whose placement could be kept; name it in placements_dict"
        )
    raise PlacementError(
        f"mesh axis {name!r} of {mesh!r} has no placement in {dict(given)!r}; "
        "name it, or give default_placement_mode='replicate' or 'keep'"
    )


def target_of(tensor: Tensor, args: tuple, kwargs: dict) -> tuple[DeviceMesh | None, tuple[tuple, dict]]:
    """The mesh that the arguments of `to` mean, and the arguments left; None where they are torch's business.

    Raises:
        MeshMismatchError, DeviceError: as `Tensor.to`.
    """
    kwargs = dict(kwargs)
    named = next((n for n in ("device_mesh", "mesh", "device") if n in kwargs), None)
    first = kwargs.pop(named) if named is not None else (args[0] if args else None)
    rest = args if named is not None else args[1:]
    mesh = tensor.device_mesh
    if isinstance(first, DeviceMesh):
        if first.shape != mesh.shape:
            raise MeshMismatchError(
                f"to({first!r}) of a tensor on {mesh!r}: the shapes differ; "
                "redistribute(mesh, placements) says how"
            )
        return first, (rest, kwargs)
    if isinstance(first, Tensor):
        return _mesh_on(mesh, first.device_mesh.device_type, None), ((first.dtype, *rest), kwargs)
    if isinstance(first, torch.Tensor):
        return _mesh_on(mesh, first.device.type, None), ((first.dtype, *rest), kwargs)
    if isinstance(first, (str, int, torch.device)) and not isinstance(first, bool):
        device = torch.device("cuda", first) if isinstance(first, int) else torch.device(first)
        return _mesh_on(mesh, device.type, device.index), (rest, kwargs)
    return None, (args, kwargs)


def _mesh_on(mesh: DeviceMesh, kind: str, index: int | None) -> DeviceMesh:
    """The mesh on devices of another type; a single device may also be named. Described devices stay."""
    if mesh.description is None and mesh.size == 1 and not mesh.ndim:
        return DeviceMesh(kind if index is None else f"{kind}:{index}")
    if mesh.description is not None or (kind == mesh.device_type and (index is None or kind == "cpu")):
        return mesh
    if index is not None or kind not in ("cpu", "cuda"):
        where = kind if index is None else f"{kind}:{index}"
        raise DeviceError(
            f"a tensor on {mesh!r} cannot go to {where!r}; to_torch() gives its full value, "
            "to(mesh) and redistribute(mesh, placements) move it to another mesh"
        )
    with torch._C.DisableTorchFunction():
        return DeviceMesh(kind, mesh.mesh, mesh.dim_names)
