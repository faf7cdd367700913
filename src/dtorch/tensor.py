"""What the user holds: a torch tensor without data of its own, standing for a value spread over a mesh.

Printing is in tensor_text.py, copies, pickles and `.data` in tensor_state.py, moves between placements and
meshes in tensor_move.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from dtorch import autograd, redistribute, tensor_memory, tensor_state, tensor_text
from dtorch.errors import DeviceError, PlacementError, UnsupportedError
from dtorch.future import TensorFuture, events_on
from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import NoValue, Operand, Parts, keeps_value
from dtorch.redistribute.local_work import unseen
from dtorch.spec import Spec
from dtorch.tensor_layout import PlacementList, Placements, copied_stride, is_placements, layout_of

__all__ = ["PlacementList", "Placements", "Tensor", "distribute", "layout_of", "leaf", "wrap"]

_view = torch.Tensor.view


class Tensor(torch.Tensor):
    """A distributed tensor.

    Args:
        data: a tensor, array, sequence or number, with the dtype that `torch.tensor` gives it; copied. A
            distributed one keeps its mesh and placements unless others are given.
        device_mesh: where it lives; default the graph's, else the default device alone.
        placements: one per mesh axis, or a Layout; default all Replicate. A Partial holds the value on the
            first device along its axis and zeros on the others.
        graph: the graph its operators belong to; default the thread's.
        requires_grad: whether autograd follows it; it is a leaf.
        axis_order: mesh axes, outermost first, where several cut one dim.

    Raises:
        TypeError: sizes instead of values.
        PlacementError: placements that do not fit the mesh or the tensor.
        DeviceError: the mesh names a device that this machine lacks.
    """

    __slots__ = ("_graph", "_operand")

    _operand: Operand
    _graph: Graph
    _watched = False

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        data: Any,
        device_mesh: DeviceMesh | None = None,
        placements: Placements = None,
        graph: Graph | None = None,
        requires_grad: bool = False,
        *more: Any,
        axis_order: Sequence[int | str] | None = None,
    ) -> Tensor:
        from dtorch.creation import from_values

        if more or isinstance(device_mesh, (int, float, list, tuple)):
            raise TypeError(
                "dtorch.Tensor(data, device_mesh=...) takes values, not sizes; "
                "for a tensor of given sizes write dtorch.empty(2, 3, device_mesh=...)"
            )
        return from_values(
            data,
            device_mesh=device_mesh,
            placements=placements,
            graph=graph,
            requires_grad=requires_grad,
            axis_order=axis_order,
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    # -- what it is -----------------------------------------------------------------------------------------

    @property
    def is_dtensor(self) -> bool:
        """True: the tensor is distributed, also on a mesh of one device."""
        return True

    @property
    def graph(self) -> Graph:
        """The graph that the tensor's operators belong to."""
        return self._graph

    @property
    def device_mesh(self) -> DeviceMesh:
        """The devices the tensor is spread over."""
        return self._operand.spec.mesh

    @property
    def placements(self) -> PlacementList:
        """How, one placement per mesh axis."""
        return PlacementList(self._operand.spec.placements)

    @property
    def dist_layout(self) -> Layout:
        """How, exactly; taken wherever placements are. (`layout` is torch's: `torch.strided`.)"""
        return self._operand.layout

    @property
    def requires_grad(self) -> bool:
        """As torch; a leaf's gradient will have the leaf's placements."""
        return torch._C.TensorBase.requires_grad.__get__(self)  # type: ignore[attr-defined]

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        torch._C.TensorBase.requires_grad.__set__(self, value)  # type: ignore[attr-defined]
        autograd.watch(self)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """As torch; a leaf's gradient will have the leaf's placements."""
        super().requires_grad_(requires_grad)
        autograd.watch(self)
        return self

    # -- reading --------------------------------------------------------------------------------------------

    def to_torch(self) -> torch.Tensor:
        """The full value as a plain tensor of its own, on the first device; autograd follows it."""
        from dtorch.tensor_move import full_value

        return full_value(self)

    full_tensor = to_torch

    def to_torch_async(self) -> TensorFuture:
        """The full value, without waiting for the devices."""
        value = self.to_torch()
        return TensorFuture(value, events_on([value.device]))

    def to_local(self, position: int | Sequence[int] | None = None) -> torch.Tensor:
        """A copy of what one device holds, without history.

        Args:
            position: index in mesh order, or coordinate; may be left out where there is one device.

        Raises:
            AxisError: the mesh has no such position.
            PlacementError: no position, and several devices.
        """
        mesh = self.device_mesh
        if position is None and mesh.size > 1:
            raise PlacementError(
                f"to_local(): say whose part, 0 to {mesh.size - 1} or a coordinate on {mesh!r}"
            )
        part = self._graph.parts(self._operand)[mesh.position(position or 0)]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            return part.clone()

    def item(self) -> Any:
        """The value of a tensor of one element, as a Python number."""
        return tensor_state.read(self).item()

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers."""
        return tensor_state.read(self).tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """The full value as an array of its own.

        Raises:
            RuntimeError: the tensor requires grad, and `force` is False.
        """
        if self.requires_grad and torch.is_grad_enabled() and not force:
            raise RuntimeError("numpy() of a tensor that requires grad: use tensor.detach().numpy()")
        return tensor_state.read(self).numpy(force=True)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("a distributed tensor has no array to share; its value is always a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return tensor_text.text(self)

    def __format__(self, spec: str) -> str:
        if self.dim() == 0:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    # -- moving ---------------------------------------------------------------------------------------------

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Placements = None,
        *,
        axis_order: Sequence[int | str] | None = None,
    ) -> Tensor:
        """The same value under other placements, on this mesh or another one.

        Args:
            device_mesh: the new mesh; None for the present one.
            placements: one per mesh axis, or a Layout; None for the present ones.
            axis_order: mesh axes, outermost first, where several cut one dim.

        Returns:
            A tensor of the same value; where nothing changes it shares storage with this one.

        Raises:
            PlacementError: placements that do not fit; or none, and the mesh has another number of axes.
            DeviceError: the mesh names a device that this machine lacks.
        """
        from dtorch.tensor_move import moved

        if device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
            raise TypeError(
                f"redistribute({device_mesh!r}): the first argument is a DeviceMesh; "
                "placements alone are redistribute(placements=...)"
            )
        mesh = self.device_mesh if device_mesh is None else device_mesh
        mesh.check_available()
        layout = layout_of(placements, mesh, self.shape, self._operand, axis_order)
        return moved(self, mesh, layout)

    def redistribute_like(self, other: Tensor) -> Tensor:
        """The same value where another tensor lives, under its placements (its layout if shapes agree)."""
        layout = other.dist_layout if other.shape == self.shape else other.placements
        return self.redistribute(other.device_mesh, layout)

    def redistribute_by_dict(
        self,
        device_mesh: DeviceMesh | None = None,
        placements_dict: Mapping[str | int, Any] | None = None,
        default_placement_mode: str = "raise_error",
        convert_shard_size_one_to_replicate: bool = True,
    ) -> Tensor:
        """The same value, with placements given by the names or indices of mesh axes.

        Args:
            device_mesh: the new mesh; None for the present one.
            placements_dict: axis -> placement; names that the mesh lacks are ignored.
            default_placement_mode: what axes left out get: "raise_error", "replicate", or "keep" (what the
                axis of that name, else of that index, has now).
            convert_shard_size_one_to_replicate: whether a Shard of a tensor dim of size 1 becomes Replicate.

        Raises:
            PlacementError: an axis left out under "raise_error", an index out of range, or an unknown mode.
        """
        from dtorch.tensor_move import placements_by_axis

        mesh = self.device_mesh if device_mesh is None else device_mesh
        whole = convert_shard_size_one_to_replicate
        given, mode = placements_dict or {}, default_placement_mode
        return self.redistribute(mesh, placements_by_axis(self, mesh, given, mode, whole))

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As torch (`to(dtype)`, `to(device)` ...), and `to(mesh)`: the same parts on other devices.

        Another device type is the same mesh on devices of that type.

        Raises:
            MeshMismatchError: a mesh of another shape; `redistribute` says how to spread over it.
            DeviceError: one device of several, or a device that this machine lacks.
        """
        from dtorch.tensor_move import target_of

        if len(args) == 1 and not kwargs and args[0] is self.dtype:
            return self  # what models ask most
        mesh, rest = target_of(self, args, kwargs)
        if mesh is None:
            return super().to(*args, **kwargs)
        there = self if mesh == self.device_mesh else self.redistribute(mesh)
        return there.to(*rest[0], **rest[1]) if any(rest) else there

    def cpu(self, *args: Any, **kwargs: Any) -> Any:
        """The same mesh on the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The same mesh on GPUs."""
        return self.to("cuda" if device is None else device)

    def view(self, *args: Any, **kwargs: Any) -> Any:
        """As torch, and `view(placements)`: the local parts read under other placements, as a copy.

        What was Replicate on n devices is n times the value as Partial, and n copies side by side as Shard.

        Raises:
            PlacementError: parts that differ from device to device cannot be read as Replicate.
            ShapeError: the parts do not fit the placements.
        """
        if len(args) == 1 and type(args[0]) is not int and is_placements(args[0]):
            from dtorch.tensor_move import reread

            return reread(self, args[0])
        return _view(self, *args, **kwargs)

    def copy_(self, src: Any, non_blocking: bool = False) -> Tensor:
        """As torch, from any tensor: plain, under other placements, on another mesh."""
        if isinstance(src, Tensor) and src.device_mesh != self.device_mesh:
            same = self.dist_layout if src.shape == self.shape else None
            whole = Layout.replicate(self.device_mesh.shape, src.shape)
            src = src.redistribute(self.device_mesh, whole if same is None or same.partial else same)
        super().copy_(src, non_blocking)
        return self

    @property
    def data(self) -> Tensor:
        """The same storage, out of autograd's sight; a tensor assigned to it takes its place."""
        return tensor_state.shared(self)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        tensor_state.set_data(self, value)

    grad = tensor_state.GRAD
    share_memory_ = tensor_memory.share_memory_
    is_shared = tensor_memory.is_shared
    data_ptr = tensor_memory.data_ptr
    storage = tensor_memory.storage
    untyped_storage = tensor_memory.untyped_storage
    new_tensor = tensor_memory.new_tensor  # type: ignore[assignment]
    __bool__, __int__, __float__ = tensor_memory.as_bool, tensor_memory.as_int, tensor_memory.as_float
    __complex__, __index__ = tensor_memory.as_complex, tensor_memory.as_index
    __copy__ = tensor_state.shallow_copy
    __deepcopy__ = tensor_state.deep_copy
    __dlpack__ = tensor_state.dlpack

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return tensor_state.reduce(self)


def distribute(
    full: torch.Tensor,
    mesh: DeviceMesh,
    placements: Placements,
    graph: Graph,
    requires_grad: bool = False,
    axis_order: Sequence[int | str] | None = None,
) -> Tensor:
    """A leaf whose parts are cut out of (and copied from) a full tensor.

    Raises:
        UnsupportedError: a meta tensor, or one that is not strided.
        PlacementError, DeviceError: as `Tensor`.
    """
    if full.layout is not torch.strided or full.is_quantized:
        raise UnsupportedError(f"a {full.layout} tensor cannot be distributed; x.to_dense() can")
    if mesh.description is None and (full.device.type == "meta" or isinstance(full, Tensor)):
        raise DeviceError("a meta tensor has no value to distribute")
    mesh.check_available()
    layout = layout_of(placements, mesh, full.shape, None, axis_order)
    parts: Parts = NoValue()
    with torch._C.DisableTorchFunction(), torch.no_grad(), unseen(mesh):
        if full.device.type != "meta" and keeps_value(mesh, full.dtype, full.numel()):
            full = full.detach().resolve_conj().resolve_neg()
            parts = redistribute.split(full, layout, mesh)
        stride = copied_stride(full)
    made = leaf(parts, Spec(layout.shape, stride, full.dtype, layout, mesh), graph, requires_grad)
    if graph.constructor.tape is not None:
        graph.constructor.tape.split(made._operand, layout, mesh, full)
    return made


def leaf(parts: Parts, spec: Spec, graph: Graph, requires_grad: bool = False) -> Tensor:
    """The leaf tensor of parts that nobody else holds, one per device in mesh order."""
    tensor = wrap(Operand(spec, parts), graph, requires_grad)
    graph.constructor.pending.nbytes += spec.nbytes  # may be dropped while calls wait that read it
    autograd.watch(tensor)
    return tensor


Spec.tensor_class = Tensor
default_collate_fn_map[Tensor] = tensor_memory.collate

_make_wrapper = torch.Tensor._make_wrapper_subclass
_forbid_data_pointer = torch._C._set_throw_on_mutable_data_ptr


def wrap(operand: Operand, graph: Graph, requires_grad: bool = False) -> Tensor:
    """The tensor that stands for an operand."""
    symbol = operand.spec.symbol
    if operand.offset or requires_grad:
        rest: Any = (operand.spec.stride, operand.offset, *symbol[4:], False, requires_grad)
        tensor = _make_wrapper(*symbol[:2], *rest)
    else:
        tensor = _make_wrapper(*symbol)
    _forbid_data_pointer(tensor)  # a capsule of to_dlpack would hold a null pointer
    tensor._operand = operand
    tensor._graph = graph
    return tensor
