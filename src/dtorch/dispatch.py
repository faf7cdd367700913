"""The only door from torch: what `__torch_dispatch__` does with a call.

A call is scanned once: tensors become slots, everything else becomes part of the key. Plain torch tensors and
one-device tensors count as Replicate on the mesh of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtorch import autograd
from dtorch.errors import MeshMismatchError, UnsupportedError
from dtorch.graph.confirm import users_line
from dtorch.graph.graph import Graph
from dtorch.graph.recipe import Recipe
from dtorch.mesh import DeviceMesh
from dtorch.op import registry
from dtorch.op.operand import NoValue, Operand, Scalar, replicated
from dtorch.op.param import Slot, TorchCall
from dtorch.op.schema import base_name, schema_of
from dtorch.tensor import Tensor, wrap

_SLOTS = [Slot(i) for i in range(4096)]
_TENSOR = object()
_INFINITE = float("inf")
_GENERATOR, _PROXY = torch.Generator, torch._C._TorchDispatchModeKey.PROXY
_MODES, _MODE = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode
_NOT_TRACED = "only distributed inputs can be traced, and neither by torch.func.linearize nor by torch.export"
_TRUE, _FALSE = (bool, "True"), (bool, "False")
_PLAIN_KEYWORDS = frozenset(
    (int, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
)

Handler = Callable[[Any, tuple, dict], Any]
_HANDLERS: dict[Any, Handler] = {}
_KINDS: list[tuple[Callable[[Any], Any], Handler]] = []


def handles(*funcs: Any) -> Callable[[Handler], Handler]:
    """Decorator: `handler(func, args, kwargs)` answers calls of these torch overloads itself."""

    def enter(handler: Handler) -> Handler:
        for func in funcs:
            _HANDLERS[func] = handler
        return handler

    return enter


def handles_kind(belongs: Callable[[Any], Any]) -> Callable[[Handler], Handler]:
    """Decorator: as `handles`, for all overloads of a kind that no handler and no kind before it answers."""

    def enter(handler: Handler) -> Handler:
        _KINDS.append((belongs, handler))
        return handler

    return enter


class Door:
    """What is known of one torch overload at the door.

    Attributes:
        func: the overload; a door stands for it in keys.
        handler: what answers it, None for the ordinary way.
        free: positions and names of the arguments whose float value is an input, not part of the key; 0,
            infinity and NaN are part of it, since no parts of a pending sum may meet them.
    """

    __slots__ = ("free", "func", "handler")

    def __init__(self, func: Any) -> None:
        self.func = func
        self.handler = _HANDLERS.get(func) or _handler_of_kind(func)
        names = registry.class_of(func).free_scalars.get(base_name(func), ())
        known = schema_of(func).names
        self.free = frozenset([*names, *(known.index(name) for name in names if name in known)])


_DOORS: dict[int, Door] = {}


def _door(func: Any) -> Door:
    """The door of an overload; it holds the overload, so that no other one takes its id."""
    return _DOORS.setdefault(id(func), Door(func))


def dispatch(func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    """Answer one torch call that has a dtorch tensor among its arguments; torch's `__torch_dispatch__`."""
    door = _DOORS.get(id(func)) or _door(func)
    if door.handler is None:
        result = _again(door, args, kwargs)
        if result is not None:
            return result
        return _run(door, args, kwargs or {})
    with torch._C.DisableTorchFunction():
        return door.handler(func, args, kwargs or {})


def _again(door: Door, args: tuple, kwargs: dict | None) -> Tensor | None:
    """The short way of a call made before, of one graph's tensors and plain values; None for other calls.

    It does nothing that `_run` does not; it leaves out what such a call cannot need.
    """
    first = args[0] if args else None
    if type(first) is not Tensor or _MODES():
        return None
    mesh, graph = first._operand.spec.mesh, first._graph
    key: list[Any] = [door]
    operands: list[Any] = []
    scalars: list[Scalar] = []
    for i, value in enumerate(args):
        kind = type(value)
        if kind is Tensor:
            operand = value._operand
            shared, spec = operand.shared, operand.spec
            if operand.converted is not None or spec.mesh is not mesh or value._graph is not graph:
                return None
            if shared is not None and shared.upstream is not None:
                return None
            operands.append(operand)
            key.append(spec)
        elif kind is int or value is None:
            key.append(value)
        elif kind is bool:
            key.append(_TRUE if value else _FALSE)
        elif kind is float:
            if i in door.free and 0.0 < abs(value) < _INFINITE:
                scalars.append(Scalar(value))
                key.append(float)
            else:
                key.append(value.hex())
        elif kind is list:
            for item in value:
                if type(item) is not int:
                    return None
            key.append(tuple(value))
        else:
            return None
    if kwargs:
        for name, value in kwargs.items():
            if type(value) not in _PLAIN_KEYWORDS:
                return None
            key.append(name)
            key.append((_TRUE if value else _FALSE) if type(value) is bool else value)
    output = graph.constructor.again(key, operands + scalars if scalars else operands)
    if output is None:
        return None
    if output.shared is not None:
        return _wrap_view(output, graph, first)
    return wrap(output, graph)


def _wrap_view(output: Operand, graph: Graph, base: torch.Tensor) -> Tensor:
    """The tensor of a view; one of a normal tensor cannot be made as an inference tensor."""
    if torch.is_inference_mode_enabled() and not base.is_inference():
        with torch.inference_mode(False):
            return wrap(output, graph)
    return wrap(output, graph)


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Add a call to its graph the ordinary way, whatever handler its overload has."""
    door = _DOORS.get(id(func)) or _door(func)
    result = _again(door, args, kwargs)
    return _run(door, args, kwargs) if result is None else result


def _handler_of_kind(func: Any) -> Handler | None:
    return next((handler for belongs, handler in _KINDS if belongs(func)), None)


@handles_kind(registry.is_composite)
def _decompose(func: Any, args: tuple, kwargs: dict) -> Any:
    return func.decompose(*args, **kwargs)


def _run(door: Door, args: tuple, kwargs: dict) -> Any:
    """Scan, add to the graph, wrap what comes out."""
    if _MODES() and _MODE(_PROXY) is not None:
        raise UnsupportedError(f"make_fx would make a constant of {name_of(door.func)}: {_NOT_TRACED}")
    tensors: list[torch.Tensor] = []
    scalars: list[Scalar] = []
    key: list[Any] = [door]
    free = door.free
    for i, value in enumerate(args):
        kind = type(value)
        if kind is Tensor:
            tensors.append(value)
            key.append(value._operand.spec)
        elif (kind is float and i in free and 0.0 < abs(value) < _INFINITE) or kind is _GENERATOR:
            scalars.append(Scalar(value))
            key.append(kind)
        else:
            _scan(value, tensors, key)
    for name, value in kwargs.items():
        key.append(name)
        kind = type(value)
        if (kind is float and name in free and 0.0 < abs(value) < _INFINITE) or kind is _GENERATOR:
            scalars.append(Scalar(value))
            key.append(kind)
        else:
            _scan(value, tensors, key)
    mesh, graph, operands, plain = _operands(tensors, key, door)
    if scalars:
        operands += scalars  # type: ignore[arg-type]

    def make() -> TorchCall:
        return _call(door, args, kwargs)

    with graph.lock:
        if torch.is_autocast_enabled(mesh.device_type):
            with torch._C._DisableAutocast():
                recipe, results = graph.constructor.call(key, operands, make, plain)
        else:
            recipe, results = graph.constructor.call(key, operands, make, plain)
    if type(results) is Operand and not recipe.views:
        return wrap(results, graph)
    if results is None:
        return _run(door, args, kwargs)
    for i in recipe.written:
        if not isinstance(tensors[i], Tensor):
            _carry_back(tensors[i], operands[i])
    return wrap_results(recipe, results, tensors, graph)


def _operands(
    tensors: list[torch.Tensor], key: list[Any], door: Door
) -> tuple[DeviceMesh, Graph, list[Operand], Sequence[int]]:
    """Home and operands of a call, and which are plain or another graph's, so may change unseen."""
    first = tensors[0]
    if type(first) is Tensor:
        mesh, graph = first._operand.spec.mesh, first._graph
        if all(type(t) is Tensor and t._operand.spec.mesh is mesh and t._graph is graph for t in tensors):
            return mesh, graph, [t._operand for t in tensors], ()  # type: ignore[attr-defined]
    mesh, graph = home(tensors, door.func)
    operands, foreign = operands_at(tensors, mesh, graph)
    key.append(tuple([o.spec for o in operands]))
    return mesh, graph, operands, foreign


def operands_at(
    tensors: Sequence[torch.Tensor], mesh: DeviceMesh, graph: Graph
) -> tuple[list[Operand], list[int]]:
    """The operands of tensors on a mesh; and which are plain or another graph's, so may change unseen."""
    operands, foreign = [], []
    for i, tensor in enumerate(tensors):
        operands.append(operand_of(tensor, mesh))
        if not isinstance(tensor, Tensor):
            foreign.append(i)
        elif tensor._graph is not graph:
            tensor._graph.parts(tensor._operand)
            foreign.append(i)
    return operands, foreign


def _call(door: Door, args: tuple, kwargs: dict) -> TorchCall:
    free = door.free
    count = _count(args) + _count(tuple(kwargs.values()))
    slots, scalars = iter(_SLOTS), itertools.count(count)

    def template(value: Any, name: Any = None) -> Any:
        if type(value) is float and name in free and 0.0 < abs(value) < _INFINITE:
            return Slot(next(scalars), value)
        if type(value) is _GENERATOR:
            return Slot(next(scalars))
        if isinstance(value, torch.Tensor):
            return next(slots)
        if type(value) is list or type(value) is tuple:
            return type(value)([template(item) for item in value])
        return value

    call_args = tuple([template(value, i) for i, value in enumerate(args)])
    return TorchCall(
        name_of(door.func), call_args, {name: template(value, name) for name, value in kwargs.items()}
    )


def _count(values: Any) -> int:
    """Tensors among arguments, in the order in which `_scan` meets them."""
    if isinstance(values, torch.Tensor):
        return 1
    return sum(map(_count, values)) if type(values) in (list, tuple) else 0


def _carry_back(plain: torch.Tensor, operand: Operand) -> None:
    """Write into a plain tensor what was written into its copies on other devices."""
    assert operand.parts is not None
    if isinstance(operand.parts, NoValue):
        raise operand.parts.again()
    if operand.parts[0].data_ptr() != plain.data_ptr():
        plain.detach().copy_(operand.parts[0])


def name_of(func: Any) -> str:
    """The full name of an overload, `aten.add.Tensor`."""
    return f"{func.namespace}.{func._opname}.{func._overloadname}"


def _scan(value: Any, tensors: list[torch.Tensor], key: list[Any]) -> None:
    """Collect tensors, and write down what the key needs: types and bit patterns, not mere equality."""
    kind = type(value)
    if kind is Tensor:
        tensors.append(value)
        key.append(value._operand.spec)
    elif isinstance(value, torch.Tensor):
        tensors.append(value)
        key.append(_TENSOR)
    elif kind is list or kind is tuple:
        if all(type(item) is int for item in value):
            key.append(tuple(value))
            return
        key.append((kind, len(value)))
        for item in value:
            _scan(item, tensors, key)
    elif kind is float:
        key.append(value.hex())
    elif kind is bool:
        key.append(_TRUE if value else _FALSE)
    elif kind is complex:
        key.append((kind, repr(value)))
    else:
        key.append(value)


def home(tensors: Sequence[torch.Tensor], name: Any = "one operator") -> tuple[DeviceMesh, Graph]:
    """The mesh and the graph that a call of something of this name belongs to.

    Raises:
        MeshMismatchError: two distributed tensors live on different meshes.
    """
    mesh: DeviceMesh | None = None
    graph: Graph | None = None
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            continue
        theirs = tensor._operand.spec.mesh
        if mesh is None or (mesh.size == 1 and theirs.size > 1):
            mesh, graph = theirs, tensor._graph
        elif theirs.size > 1 and theirs != mesh:
            raise MeshMismatchError(
                f"{name} got tensors on two meshes, {mesh} and {theirs}; bring them together first, "
                f"x.redistribute(mesh, placements) or x.to(mesh)\n  called from {users_line()}"
            )
    if mesh is None or graph is None:
        raise UnsupportedError("no dtorch tensor among the arguments")
    return mesh, graph


def operand_of(tensor: torch.Tensor, mesh: DeviceMesh) -> Operand:
    """The operand of a tensor on a mesh; plain and one-device tensors count as Replicate."""
    if isinstance(tensor, Tensor):
        operand = tensor._operand
        if operand.spec.mesh is mesh or operand.spec.mesh == mesh:
            return operand
        return replicated(tensor._graph.constructor.value(operand), mesh)
    if tensor.requires_grad:
        autograd.watch_plain(tensor)
        tensor = tensor.detach()
    return replicated(tensor, mesh)


def wrap_results(recipe: Recipe, results: Any, tensors: Sequence[torch.Tensor], graph: Graph) -> Any:
    """Turn operands into tensors, in the form torch returns them."""
    plans = recipe.outputs
    if isinstance(results, Operand):
        results = [results]
    found: list[Any] = []
    for number, result in enumerate(results):
        if isinstance(result, Operand):
            found.append(_wrap_view(result, graph, tensors[0]) if recipe.views else wrap(result, graph))
        elif type(result) is int and plans is not None and plans[number].source == "argument":
            found.append(tensors[result])
        else:
            found.append(result)
    if recipe.single:
        return found[0] if found else None
    return recipe.returns(found)


# Static, not a class method: what torch calls for each operator costs one look-up less.
Tensor.__torch_dispatch__ = staticmethod(dispatch)
