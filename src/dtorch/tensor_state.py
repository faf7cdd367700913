"""Copies, pickles and `.data` of distributed tensors.

A pickle holds the local parts, each once, and plain values that say where they belong; so it loads under
`torch.load(weights_only=True)`, in any process, and one shard on disk is no larger than the shard.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from dtorch.errors import MeshMismatchError, PlacementError
from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import NoValue, Operand, Parts, copied
from dtorch.spec import Spec
from dtorch.tensor_layout import copied_stride, layout_of

if TYPE_CHECKING:
    from dtorch.tensor import Tensor

_OWN = frozenset({"_operand", "_graph", "_watched", "_dtorch_hooked"})


def read(tensor: Tensor) -> torch.Tensor:
    """The full value, without autograd history."""
    return tensor._graph.read(tensor._operand)


def dlpack(tensor: Tensor, *, copy: bool | None = None, **options: Any) -> Any:
    """The full value for another library: a copy, since there is no one memory to share.

    Raises:
        BufferError: the tensor requires grad, or `copy` is False.
    """
    if tensor.requires_grad:
        raise BufferError("a tensor that requires grad cannot be exported: use tensor.detach()")
    if copy is False:
        raise BufferError("a distributed tensor has no memory to share; its value is always a copy")
    return read(tensor).__dlpack__(**options)


def shared(tensor: Tensor) -> Tensor:
    """Another tensor on the same storage, with a version counter of its own."""
    from dtorch.tensor import wrap

    there = tensor._operand
    return wrap(there, tensor._graph)


def set_data(tensor: Tensor, value: torch.Tensor) -> None:
    """`tensor.data = value`; plain values are spread as the tensor was, or Replicate if that does not fit."""
    from dtorch.tensor import Tensor, distribute

    if not isinstance(value, Tensor):
        mesh, placements = tensor.device_mesh, tensor.placements
        layout: Layout | None = None
        try:
            same = tensor.shape == value.shape
            layout = tensor.dist_layout if same else layout_of(placements, mesh, value.shape)
        except PlacementError:
            pass  # fewer dims, or factors of another size
        value = distribute(value, mesh, layout, tensor._graph)
    torch._C.TensorBase.data.__set__(tensor, value)  # type: ignore[attr-defined]
    there = value._operand
    tensor._operand = there
    tensor._graph = value._graph


def set_grad(tensor: Tensor, value: torch.Tensor | None) -> None:
    """`tensor.grad = value`; what could not be accumulated into later is refused at once.

    Raises:
        MeshMismatchError: the value is distributed over another mesh.
    """
    there = getattr(value, "_operand", None)
    if there is not None and there.spec.mesh != tensor.device_mesh:
        raise MeshMismatchError(
            f"a gradient on {there.spec.mesh} for a tensor on {tensor.device_mesh}; "
            "bring it there first, grad.redistribute_like(tensor)"
        )
    _grad.__set__(tensor, value)


_grad: Any = torch._C.TensorBase.grad
GRAD = property(_grad.__get__, set_grad, _grad.__delete__)


def _is_compatible(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether `tensor.data = value` is possible: a plain tensor would be left without memory."""
    from dtorch.tensor import Tensor

    if isinstance(value, Tensor) != isinstance(tensor, Tensor):
        return False
    with torch._C._ExcludeDispatchKeyGuard(_WRAPPERS):
        return torch._has_compatible_shallow_copy_type(tensor, value)


def shallow_copy(tensor: Tensor) -> Tensor:
    """A leaf on the same storage, as `copy.copy` makes of a plain tensor."""
    return _dressed(shared(tensor), tensor.requires_grad, _attributes(tensor))


def deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """A leaf with storage of its own, its gradient and attributes copied too.

    Raises:
        RuntimeError: the tensor is not a leaf.
    """
    from dtorch.tensor import wrap

    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol; "
            "detach() the tensor first"
        )
    with torch.no_grad(), torch._C.DisableTorchFunction():
        there = tensor._operand.parts
        parts = copied(there if isinstance(there, NoValue) else tensor._graph.parts(tensor._operand))
        twin = wrap(Operand(_compact(tensor._operand.spec), parts), tensor._graph)
        memo[id(tensor)] = twin
        _dressed(twin, tensor.requires_grad, copy.deepcopy(_attributes(tensor), memo))
        if tensor.grad is not None:
            twin.grad = copy.deepcopy(tensor.grad, memo)
    return twin


def reduce(tensor: Tensor) -> tuple[Any, ...]:
    """What pickle stores: plain tensors and values, and the function that puts them together."""
    spec = _compact(tensor._operand.spec)
    mesh = spec.mesh
    unique: dict[int, int] = {}
    kept: Parts = []
    where = []
    for part in tensor._graph.parts(tensor._operand):
        if id(part) not in unique:
            unique[id(part)] = len(kept)
            kept.append(_own_storage(part))
        where.append(unique[id(part)])
    state = (
        (mesh.device_type, mesh.device_ids, mesh.shape, mesh.dim_names),
        (spec.layout.dims, spec.layout.partial),
        spec.stride,
        tensor.requires_grad,
        _attributes(tensor),
    )
    return rebuild_tensor, (kept, where, state)


def rebuild_tensor(parts: list[torch.Tensor], where: list[int], state: tuple[Any, ...]) -> Tensor:
    """Put a pickled tensor together, on this thread's default graph.

    Raises:
        DeviceError: its mesh names a device that this machine lacks.
    """
    from dtorch.tensor import wrap

    (kind, ids, shape, names), (dims, partial), stride, requires_grad, attributes = state
    mesh = _mesh(kind, ids, shape, names)
    mesh.check_available()
    layout = Layout.of(mesh.shape, dims, partial)
    with torch._C.DisableTorchFunction():
        there = [parts[index].to(mesh.torch_device(position)) for position, index in enumerate(where)]
    spec = Spec(layout.shape, stride, parts[0].dtype, layout, mesh)
    return _dressed(wrap(Operand(spec, there), Graph.default_graph()), requires_grad, attributes)


def _mesh(
    kind: str, ids: tuple[int, ...], shape: tuple[int, ...], names: tuple[str, ...] | None
) -> DeviceMesh:
    if not shape:
        return DeviceMesh(f"{kind}:{ids[0]}")
    with torch._C.DisableTorchFunction():
        return DeviceMesh(kind, torch.tensor(ids, device="cpu").view(shape), names)


def _attributes(tensor: Tensor) -> dict[str, Any]:
    """What others hung on the tensor; `_is_param` among it makes it a Parameter."""
    return {name: value for name, value in tensor.__dict__.items() if name not in _OWN}


def _dressed(tensor: Tensor, requires_grad: bool, attributes: dict[str, Any]) -> Tensor:
    tensor.__dict__.update(attributes)
    return tensor.requires_grad_(requires_grad)


def _compact(spec: Spec) -> Spec:
    """The spec of a clone: dense strides where those of a view leave holes or overlap."""
    with torch._C.DisableTorchFunction():
        meta = torch.empty_strided(spec.shape, spec.stride, device="meta")
        stride = copied_stride(meta)
    return Spec(spec.shape, stride, spec.dtype, spec.layout, spec.mesh)


def _own_storage(part: torch.Tensor) -> torch.Tensor:
    """The part itself, or a copy where it is a piece of a larger storage, which would be written whole."""
    part = part.detach()
    return part if part.untyped_storage().nbytes() == part.numel() * part.itemsize else part.clone()


# Loading with weights_only=True calls nothing that is not named here.
torch.serialization.add_safe_globals([rebuild_tensor])

# torch asks this where `.data` is set. Wrappers alone, of this package and of others, bear the key.
_WRAPPERS = torch._C.DispatchKeySet(torch._C.DispatchKey.PythonTLSSnapshot)
_COMPATIBLE = torch.library.Library("aten", "IMPL")
_COMPATIBLE.impl("_has_compatible_shallow_copy_type", _is_compatible, "PythonTLSSnapshot")
