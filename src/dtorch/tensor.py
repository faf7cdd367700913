"""What the user holds: a torch tensor without data of its own, standing for a value spread over a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch import autograd, redistribute
from dtorch.errors import MeshMismatchError, PlacementError
from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import Operand
from dtorch.placement import Placement, normalize_placements
from dtorch.spec import Spec

Placements = Sequence[Any] | Layout | None


class Tensor(torch.Tensor):
    """A distributed tensor.

    Args:
        data: a tensor, array, sequence or number; copied.
        device_mesh: where it lives.
        placements: one per mesh axis, or a Layout; default all Replicate.
        graph: the graph its operators belong to; default the thread's.
        requires_grad: whether autograd follows it.
    """

    _operand: Operand
    _graph: Graph
    _watched: bool

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        data: Any,
        device_mesh: DeviceMesh | None = None,
        placements: Placements = None,
        graph: Graph | None = None,
        requires_grad: bool = False,
    ) -> Tensor:
        graph = graph or Graph.default_graph()
        full = torch.as_tensor(data).detach()
        mesh = device_mesh or graph.default_device_mesh or DeviceMesh(full.device.type)
        return distribute(full, mesh, placements, graph, requires_grad)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything is done in `__new__`."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        from dtorch.dispatch import dispatch

        return dispatch(func, args, kwargs or {})

    @property
    def device_mesh(self) -> DeviceMesh:
        """The devices the tensor is spread over."""
        return self._operand.spec.mesh

    @property
    def placements(self) -> tuple[Placement, ...]:
        """How, one placement per mesh axis."""
        return self._operand.spec.placements

    @property
    def layout_on_mesh(self) -> Layout:
        """How, exactly."""
        return self._operand.layout

    def to_torch(self) -> torch.Tensor:
        """The full value as a plain tensor of its own."""
        with self._graph.lock, torch._C.DisableTorchFunction():
            return self._graph.constructor.value(self._operand)

    def redistribute(self, device_mesh: DeviceMesh | None = None, placements: Placements = None) -> Tensor:
        """The same value under other placements, on this mesh or another one."""
        return _Redistribute.apply(self, device_mesh, placements)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """As torch; a leaf's gradient will have the leaf's placements."""
        super().requires_grad_(requires_grad)
        autograd.watch(self)
        return self


class _Redistribute(torch.autograd.Function):
    """Identity on the global value, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh | None, placements: Placements) -> Tensor:
        operand, graph = x._operand, x._graph
        ctx.moved = mesh is not None and mesh != operand.spec.mesh
        ctx.back = operand.spec
        target_mesh = operand.spec.mesh if mesh is None else mesh
        target = layout_of(placements, target_mesh, operand.shape, operand)
        with graph.lock, torch._C.DisableTorchFunction():
            if target is operand.layout and target_mesh == operand.spec.mesh:
                return wrap(Operand(operand.spec, operand.parts, operand.buffer, operand.offset), graph)
            parts = graph.constructor.convert(operand, target, target_mesh, keep=False, implicit=False)
        spec = operand.spec
        return wrap(Operand(Spec(spec.shape, spec.stride, spec.dtype, target, target_mesh), parts), graph)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if ctx.moved:
            return grad.redistribute(ctx.back.mesh, ctx.back.layout), None, None
        return grad, None, None


def layout_of(placements: Placements, mesh: DeviceMesh, shape: Sequence[int], like: Operand | None = None) -> Layout:
    """The layout that placements, a Layout, or None (all Replicate, or those of `like`) mean for a shape.

    Raises:
        PlacementError: wrong number of placements, a Shard beyond the tensor's dims, or a layout of another shape.
        MeshMismatchError: a layout for a mesh of another shape.
    """
    if placements is None:
        if like is None:
            return Layout.replicate(mesh.shape, shape)
        if like.spec.mesh.shape != mesh.shape:
            raise PlacementError(f"give placements: {like.spec.mesh} and {mesh} differ in shape")
        return like.layout
    if isinstance(placements, Layout):
        if placements.mesh_shape != mesh.shape:
            raise MeshMismatchError(f"{placements} is for another mesh than {mesh}")
        if placements.shape != tuple(shape):
            raise PlacementError(f"{placements} is for shape {placements.shape}, the tensor's is {tuple(shape)}")
        return placements
    return Layout.from_placements(mesh.shape, shape, normalize_placements(placements, mesh, len(shape)))


def distribute(
    full: torch.Tensor, mesh: DeviceMesh, placements: Placements, graph: Graph, requires_grad: bool = False
) -> Tensor:
    """A leaf whose parts are cut out of (and copied from) a full tensor."""
    mesh.check_available()
    layout = layout_of(placements, mesh, full.shape)
    with torch._C.DisableTorchFunction(), torch.no_grad():
        parts = redistribute.split(full, layout, mesh)
    spec = Spec(tuple(full.shape), full.stride(), full.dtype, layout, mesh)
    tensor = wrap(Operand(spec, parts), graph, requires_grad)
    autograd.watch(tensor)
    return tensor


def wrap(operand: Operand, graph: Graph, requires_grad: bool = False) -> Tensor:
    """The tensor that stands for an operand."""
    spec = operand.spec
    tensor = torch.Tensor._make_wrapper_subclass(
        Tensor,
        spec.shape,
        spec.stride,
        operand.offset,
        None,
        spec.dtype,
        torch.strided,
        spec.mesh.torch_device(0),
        False,
        requires_grad,
    )
    tensor._operand = operand
    tensor._graph = graph
    tensor._watched = False
    return tensor
