"""Making distributed tensors: from values, from local parts, and by torch's factories.

Random values are drawn as torch draws them for one device, then spread, so the same seed gives the same
tensor on every mesh and under all placements. Constants are made where they live: no device holds more than
its part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from dtorch.errors import MeshError, UnsupportedError
from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import NoValue, keeps_value
from dtorch.redistribute import dim_order
from dtorch.redistribute.local_work import unseen
from dtorch.spec import Spec
from dtorch.tensor import Tensor, distribute, leaf
from dtorch.tensor_layout import Placements, compact_stride, copied_stride, layout_of
from dtorch.tensor_move import layout_of_parts
from dtorch.tensor_state import read

_DTYPE_LOCK = threading.RLock()
Device = str | int | torch.device | None


def get_default_device_mesh(
    device: Device = None, device_mesh: DeviceMesh | None = None, graph: Graph | None = None
) -> DeviceMesh:
    """The mesh on which a tensor made with these arguments lives.

    Args:
        device: one device, as torch names it.
        device_mesh: a mesh; not together with `device`.
        graph: whose default mesh counts where neither is given; None is the thread's.

    Raises:
        MeshError: both a device and a mesh, or something that is neither.
    """
    if device is not None and device_mesh is not None:
        raise MeshError(f"device={device!r} and device_mesh={device_mesh!r}: give one of them, not both")
    if device_mesh is not None:
        if not isinstance(device_mesh, DeviceMesh):
            raise MeshError(f"device_mesh must be a dtorch.DeviceMesh, got {device_mesh!r}")
        return device_mesh
    if device is not None:
        return DeviceMesh(torch.device("cuda", device) if isinstance(device, int) else device)
    default = (graph or Graph.default_graph()).default_device_mesh
    return DeviceMesh(torch.get_default_device()) if default is None else default


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Make torch's factories use a graph's default dtype, for the length of one call."""
    if dtype is None:
        yield
        return
    with _DTYPE_LOCK:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


# -- from values --------------------------------------------------------------------------------------------


def from_values(
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
    device_mesh: DeviceMesh | None = None,
    placements: Placements = None,
    graph: Graph | None = None,
    axis_order: Sequence[int | str] | None = None,
) -> Tensor:
    """A leaf from a tensor, array, sequence or number; see `Tensor`.

    Raises:
        MeshError: both `device` and `device_mesh`.
        PlacementError, DeviceError, UnsupportedError: as `Tensor`.
    """
    if isinstance(data, Tensor) and device is None and device_mesh is None:
        device_mesh = data.device_mesh
        placements = data.dist_layout if placements is None else placements
    graph = graph or Graph.default_graph()
    mesh = get_default_device_mesh(device, device_mesh, graph)
    with torch._C.DisableTorchFunction(), torch.no_grad(), default_dtype(graph.default_dtype), unseen(mesh):
        if isinstance(data, Tensor) and mesh.description is not None and type(data._operand.parts) is NoValue:
            data = _stand_in(data, torch.device("meta"))
        full = _plain(data, dtype)
    return distribute(full, mesh, placements, graph, requires_grad, axis_order)


def _plain(data: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """The full value as a plain tensor; those of torch keep their device."""
    if isinstance(data, Tensor):
        data = read(data)
    if isinstance(data, torch.Tensor):
        return data.detach() if dtype is None else data.detach().to(dtype)
    return torch.tensor(_without_tensors(data), dtype=dtype, device="cpu")


def _without_tensors(data: Any) -> Any:
    """Nested sequences with our tensors as numbers: torch would read them from memory that they lack."""
    if isinstance(data, Tensor):
        return data.tolist()
    if isinstance(data, (list, tuple)):
        return [_without_tensors(item) for item in data]
    return data


def tensor(data: Any, **options: Any) -> Tensor:
    """torch.tensor, distributed: a leaf from values, copied.

    Args:
        data: a tensor, array, sequence or number.
        options: dtype, device or device_mesh, placements, axis_order, graph, requires_grad.
    """
    return from_values(data, **options)


def from_torch(data: torch.Tensor, **options: Any) -> Tensor:
    """A leaf from a plain tensor, copied; options as of `tensor`.

    Raises:
        TypeError: not a torch tensor.
    """
    if not isinstance(data, torch.Tensor):
        raise TypeError(
            f"from_torch takes a torch tensor, got {type(data).__name__}; dtorch.tensor takes values"
        )
    return from_values(data, **options)


def from_numpy(array: Any, **options: Any) -> Tensor:
    """A leaf from an array, with its dtype, copied; options as of `tensor`.

    Raises:
        TypeError: not an array.
    """
    if not hasattr(array, "__array__") or isinstance(array, torch.Tensor):
        raise TypeError(
            f"from_numpy takes a numpy array, got {type(array).__name__}; dtorch.tensor takes values"
        )
    return from_values(array, **options)


def distribute_tensor(
    tensor: torch.Tensor, device_mesh: DeviceMesh | None = None, placements: Placements = None
) -> Tensor:
    """torch's DTensor function of this name: a leaf as `from_torch`, which requires grad if `tensor` does.

    A distributed tensor is redistributed. Nothing is broadcast: there is one process, and one value.

    Raises:
        UnsupportedError: `tensor` is no leaf, so that gradients would end here unseen.
        TypeError, MeshError, PlacementError, DeviceError: as `from_torch` and `redistribute`.
    """
    if isinstance(tensor, Tensor):
        return tensor.redistribute(device_mesh, placements)
    if isinstance(tensor, torch.Tensor) and not tensor.is_leaf:
        raise UnsupportedError(
            "distribute_tensor takes a leaf, since no gradient goes back through it; pass tensor.detach()"
        )
    requires_grad = getattr(tensor, "requires_grad", False)
    return from_torch(tensor, device_mesh=device_mesh, placements=placements, requires_grad=requires_grad)


def from_local(
    parts: Iterable[torch.Tensor],
    device_mesh: DeviceMesh,
    placements: Placements = None,
    *,
    graph: Graph | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A leaf from what each device holds, copied.

    Args:
        parts: one plain tensor per device, in mesh order, all of one dtype.
        device_mesh: the devices.
        placements: one per mesh axis, or a Layout; default all Replicate. Along a Replicate axis the first
            part counts; that the others hold the same values is not checked, which would read everything.

    Raises:
        ShapeError: not one part per device, or a part whose sizes are not those that torch.chunk would cut.
        TypeError: parts that are no plain tensors, or of several dtypes.
        PlacementError, DeviceError: as `Tensor`.
    """
    parts = parts if isinstance(parts, torch.Tensor) else list(parts)
    if isinstance(parts, torch.Tensor) or not all(
        type(p) in (torch.Tensor, torch.nn.Parameter) for p in parts
    ):
        raise TypeError("from_local takes a list of plain torch tensors, one per device in mesh order")
    if len({part.dtype for part in parts}) > 1:
        raise TypeError(f"from_local: parts of several dtypes, {[str(part.dtype) for part in parts]}")
    device_mesh.check_available()
    layout = layout_of_parts(
        [tuple(part.shape) for part in parts], device_mesh, placements or _whole(device_mesh)
    )
    kept = device_mesh.owners(layout)
    with torch.no_grad(), torch._C.DisableTorchFunction(), unseen(device_mesh):
        order = dim_order(max(parts, key=torch.Tensor.numel))
        made = {at: _copy(parts[at], order, device_mesh.torch_device(at)) for at in dict.fromkeys(kept)}
    stride = compact_stride(layout.shape, order)
    spec = Spec(layout.shape, stride, parts[0].dtype, layout, device_mesh)
    held = keeps_value(device_mesh, spec.dtype, spec.numel)
    return leaf(
        [made[at] for at in kept] if held else NoValue(), spec, graph or Graph.default_graph(), requires_grad
    )


def _whole(mesh: DeviceMesh) -> list[str]:
    return ["R"] * mesh.ndim


def _copy(part: torch.Tensor, order: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.empty_permuted(part.shape, tuple(order), dtype=part.dtype, device=device).copy_(part)


# -- by torch's factories -----------------------------------------------------------------------------------


def _factory(func: Callable[..., torch.Tensor], constant: Callable[[tuple], Any] | None = None) -> Any:
    """torch's factory `func` with dtorch's options.

    Args:
        func: the factory.
        constant: the value all elements have, from the positional arguments; None where they differ. It is a
            function so that `full` and `zeros` are alike; `empty` gives None as the value.
    """

    takes_like = func.__name__.endswith("_like")

    def make(
        *args: Any,
        device: Device = None,
        device_mesh: DeviceMesh | None = None,
        placements: Placements = None,
        axis_order: Sequence[int | str] | None = None,
        graph: Graph | None = None,
        requires_grad: bool = False,
        **options: Any,
    ) -> Tensor:
        _only_strided(func.__name__, options)
        graph = graph or Graph.default_graph()
        like = (args[0] if args else options.pop("input")) if takes_like else None
        if isinstance(like, Tensor) and device is None and device_mesh is None:
            device_mesh = like.device_mesh
            placements = like.dist_layout.without_partial() if placements is None else placements
        mesh = get_default_device_mesh(device, device_mesh, graph)
        mesh.check_available()
        where = mesh.first_device() if constant is None else torch.device("meta")
        if mesh.description is not None and func is not torch.arange:
            where = torch.device("meta")  # nothing is drawn
        if like is not None:
            args = (_stand_in(like, where), *args[1:])
        elif where.type != "meta" and options.get("generator") is not None:
            where = options["generator"].device
        with (
            torch._C.DisableTorchFunction(),
            torch.no_grad(),
            default_dtype(graph.default_dtype),
            unseen(mesh),
        ):
            made = func(*args, device=where, **options)
        if constant is None:
            return distribute(made, mesh, placements, graph, requires_grad, axis_order)
        layout = layout_of(placements, mesh, made.shape, None, axis_order)
        value = options["fill_value"] if "fill_value" in options else constant(args)
        return _filled(made, value, layout, mesh, graph, requires_grad)

    make.__name__ = make.__qualname__ = func.__name__
    make.__doc__ = (
        f"torch.{func.__name__}, distributed; the same values on every mesh and under all placements.\n\n"
        "Besides torch's arguments it takes device= or device_mesh=, placements= (default all Replicate),\n"
        "axis_order= and graph=."
    )
    return make


def _only_strided(name: str, options: dict[str, Any]) -> None:
    options.pop("pin_memory", None)
    if options.pop("layout", None) not in (None, torch.strided):
        raise UnsupportedError(f"dtorch.{name}: distributed tensors are strided")
    if options.pop("out", None) is not None:
        raise UnsupportedError(f"dtorch.{name}(out=...): write out.copy_(...) or torch.{name}(..., out=out)")


def _stand_in(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A plain tensor with the sizes and strides of another one."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


def _filled(
    meta: torch.Tensor, value: Any, layout: Layout, mesh: DeviceMesh, graph: Graph, requires_grad: bool
) -> Tensor:
    """All elements the same (None: whatever is there), made part by part; pending sums hold it once."""
    order = dim_order(meta)
    spec = Spec(layout.shape, copied_stride(meta), meta.dtype, layout, mesh)
    if not keeps_value(mesh, spec.dtype, spec.numel):
        return leaf(NoValue(), spec, graph, requires_grad)
    kept = mesh.owners(layout)
    made: dict[int, torch.Tensor] = {}
    with torch._C.DisableTorchFunction(), torch.no_grad(), unseen(mesh):
        for at in dict.fromkeys(kept):
            coord = mesh.coords[at]
            holds = not any(coord[axis] for axis in layout.partial)
            shape, device = layout.local_shape(coord), mesh.torch_device(at)
            made[at] = torch.empty_permuted(shape, order, dtype=meta.dtype, device=device)
            if value is not None or not holds:
                made[at].fill_(value if holds else 0)
    return leaf([made[at] for at in kept], spec, graph, requires_grad)


def _nothing(args: tuple) -> None:
    return None


def _fill_value(args: tuple) -> Any:
    """The second argument of `full` and `full_like`."""
    value = args[1] if len(args) > 1 else None
    if value is None:
        raise TypeError("full() needs a fill_value")
    return value.item() if isinstance(value, torch.Tensor) else value


zeros = _factory(torch.zeros, lambda args: 0)
ones = _factory(torch.ones, lambda args: 1)
full = _factory(torch.full, _fill_value)
empty = _factory(torch.empty, _nothing)
rand = _factory(torch.rand)
randn = _factory(torch.randn)
randint = _factory(torch.randint)
arange = _factory(torch.arange)
zeros_like = _factory(torch.zeros_like, lambda args: 0)
ones_like = _factory(torch.ones_like, lambda args: 1)
full_like = _factory(torch.full_like, _fill_value)
empty_like = _factory(torch.empty_like, _nothing)
rand_like = _factory(torch.rand_like)
randn_like = _factory(torch.randn_like)
randint_like = _factory(torch.randint_like)
