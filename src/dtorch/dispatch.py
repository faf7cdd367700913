"""The only door from torch: what `__torch_dispatch__` does with a call.

A call is scanned once: tensors become slots, everything else becomes part of the key. One that was made
before is recorded under its key; any other is added to its graph by `_add`.
"""

from __future__ import annotations

from typing import Any

import torch

from dtorch import native
from dtorch.dispatch_door import (
    DOORS,
    FALSE,
    TRUE,
    Door,
    door_of,
    handles_kind,
    name_of,
    parameters,
    scan,
    tensors_in,
)
from dtorch.dispatch_mixed import carry_back, check_plain_writes, home, operands_at
from dtorch.errors import UnsupportedError
from dtorch.graph.constructor import GraphConstructor
from dtorch.graph.graph import Graph
from dtorch.graph.outputs import Results
from dtorch.graph.pending import Pending
from dtorch.graph.recipe import OutputPlan, Recipe
from dtorch.graph.rounds import INSIDE
from dtorch.graph.settings import default_dtype, deterministic, imprecise
from dtorch.op import registry
from dtorch.op.operand import Buffer, Operand, Scalar
from dtorch.op.param import TorchCall
from dtorch.op.start import Start
from dtorch.tensor import Tensor, wrap

_inference = torch.is_inference_mode_enabled
_ORDINARY = object()
_modes, _mode = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_PROXY = torch._C._TorchDispatchModeKey.PROXY
_NOT_TRACED = "only distributed inputs can be traced, and neither by torch.func.linearize nor by torch.export"


def dispatch(func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    """Answer one torch call that has a dtorch tensor among its arguments; torch's `__torch_dispatch__`.

    It walks the arguments once, and asks the graph of the tensors whether the call was made before.
    """
    door = DOORS.get(id(func)) or door_of(func)
    if door.handler is not None and types is not _ORDINARY:
        with torch._C.DisableTorchFunction():
            return door.handler(func, args, kwargs or {})
    if _modes() and _mode(_PROXY) is not None:
        raise UnsupportedError(f"make_fx would make a constant of {name_of(func)}: {_NOT_TRACED}")
    key, operands, scalars, graph = scan(door, args, kwargs)
    if graph is not None:
        recorded = graph.constructor.again(key, operands + scalars if scalars else operands)
        if recorded is not None:
            recipe, results = recorded
            if type(results) is Operand and not (recipe.views and _inference()):
                return wrap(results, graph)
            return _wrapped(recipe, results, args, kwargs or {}, graph)
    with torch._C.DisableTorchFunction():
        return _add(door, args, kwargs or {}, key, scalars)


def run(func: Any, args: tuple, kwargs: dict) -> Any:
    """Add a call to its graph the ordinary way, whatever handler its overload has."""
    return dispatch(func, _ORDINARY, args, kwargs)


@handles_kind(registry.is_composite)
def _decompose(func: Any, args: tuple, kwargs: dict) -> Any:
    if _COMPOSITE in func.py_kernels:
        return func.py_kernels[_COMPOSITE](*args, **kwargs)
    return func._op_dk(_COMPOSITE, *args, **kwargs)  # as `func.decompose`, which asks anew whether it may


def _add(door: Door, args: tuple, kwargs: dict, key: list[Any], scalars: list[Scalar]) -> Any:
    """Add a call that is new, that mixes plain tensors or graphs, or that takes more than recording it."""
    tensors = tensors_in((*args, *kwargs.values()))
    mesh, graph = home(tensors, door.func)
    operands, foreign = operands_at(tensors, mesh, graph)
    if foreign:
        check_plain_writes(door.func, args, kwargs)
    if any(o is not getattr(t, "_operand", None) for o, t in zip(operands, tensors, strict=True)):
        key.append(tuple([o.spec for o in operands]))

    def make() -> TorchCall:
        return parameters(door, args, kwargs)

    with graph.lock, torch._C._DisableAutocast():
        recipe, results = graph.constructor.call(key, [*operands, *scalars], make, foreign)
    if results is None:
        return run(door.func, args, kwargs)
    for i in recipe.written:
        if not isinstance(tensors[i], Tensor):
            carry_back(tensors[i], operands[i])
    return _wrapped(recipe, results, args, kwargs, graph)


def _wrapped(recipe: Recipe, results: Results | Operand, args: tuple, kwargs: dict, graph: Graph) -> Any:
    """Turn operands into tensors, in the form torch returns them."""
    tensors = tensors_in((*args, *kwargs.values()))
    if recipe.views and _inference() and not tensors[0].is_inference():
        with torch.inference_mode(False):  # a view of a normal tensor cannot be an inference tensor
            return _tensors(recipe, results, tensors, graph)
    return _tensors(recipe, results, tensors, graph)


def _tensors(recipe: Recipe, results: Any, tensors: list[torch.Tensor], graph: Graph) -> Any:
    plans = recipe.outputs
    found: list[Any] = []
    for number, result in enumerate([results] if type(results) is Operand else results):
        if type(result) is Operand:
            found.append(wrap(result, graph))
        elif type(result) is int and plans is not None and plans[number].source == "argument":
            found.append(tensors[result])
        else:
            found.append(result)
    if recipe.single:
        return found[0] if found else None
    return recipe.returns(found)


made_before = native.before(
    dispatch,
    doors=DOORS,
    inside=INSIDE,
    recipes=GraphConstructor._recipes,
    Tensor=Tensor,
    PlainTensor=torch.Tensor,
    Operand=Operand,
    Scalar=Scalar,
    Start=Start,
    Generator=torch.Generator,
    Door=Door,
    Graph=Graph,
    Constructor=GraphConstructor,
    Pending=Pending,
    Recipe=Recipe,
    OutputPlan=OutputPlan,
    Buffer=Buffer,
    true_key=TRUE,
    false_key=FALSE,
    make_wrapper=torch.Tensor._make_wrapper_subclass,
    forbid_data_pointer=torch._C._set_throw_on_mutable_data_ptr,
    num_modes=_modes,
    current_backward=torch._C._current_graph_task_id,
    default_dtype=default_dtype,
    deterministic=deterministic,
    imprecise=imprecise,
    inference=_inference,
    view=Tensor.view,
    torch_view=torch.Tensor.view,
)
"""`dispatch`, with calls that were made before answered in C where that was compiled."""

# Static, not a class method: what torch calls for each operator costs one look-up less.
Tensor.__torch_dispatch__ = staticmethod(made_before)
Tensor.view = native.view_of(Tensor, Tensor.view)  # type: ignore[method-assign]
