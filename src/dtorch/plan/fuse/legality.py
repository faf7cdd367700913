"""Which calls may be part of a region, and why another one may not."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import torch

from dtorch.inductor.admission import VECTOR_ELEMENTS
from dtorch.inductor.spelt import NUMBERS, is_spelt
from dtorch.op.local import Local
from dtorch.op.param import Slot, TorchCall
from dtorch.plan.fuse.price import FAULTED_BYTES
from dtorch.plan.passes.draft import OUTSIDE, Draft
from dtorch.redistribute import memory_order
from dtorch.spec import Spec

ROW_BYTES = 2**18
"""Largest row that counts as staying on the chip between what reduces it and what uses it."""


def why_not(draft: Draft, node: int) -> str:
    """Why a call cannot be part of a region; nothing where it can.

    Args:
        draft: the sequence.
        node: the call.
    """
    recipe, operator = draft.recipes[node], draft.operator(node)
    if not isinstance(operator.param, TorchCall) or operator.call.func.namespace != "aten":
        return "it is no call of torch" if operator.type != "Convert" else "it communicates"
    if recipe.written and not _writes_in_place(draft, node):
        return "it writes into what others may read"
    if operator.draws():
        return "it draws random numbers"
    plans = recipe.outputs
    if not plans or any(plans[j].source != "fresh" or plans[j].spec is None for j in recipe.kept):
        return "it gives a view" if recipe.views else "what it gives is known only when it has run"
    if _stays_kept(draft, node):
        return "its large result goes into memory that is kept"
    why = _kind(draft, node) or sharing(draft, node) or _numbers(draft, node)
    if why:
        return why
    specs = [x.spec for x in (*operator.inputs, *operator.outputs) if x is not None]
    if any(spec.mesh.device_type != "cpu" or spec.dtype.is_complex for spec in specs):
        return "its tensors are not real ones on cpu"
    return ""


def _stays_kept(draft: Draft, node: int) -> bool:
    """Whether a replay hands out a result so large that compiled code would ask for new pages each time."""
    if draft.facts.pool is None:
        return False
    specs = [draft.spec(number) for number in draft.outputs[node] if number in draft.wanted]
    return any(spec is not None and spec.nbytes >= FAULTED_BYTES * spec.mesh.size for spec in specs)


def _writes_in_place(draft: Draft, node: int) -> bool:
    """Whether a call writes its result over its first input alone, and that is known to lie apart."""
    recipe, read = draft.recipes[node], draft.inputs[node]
    if recipe.written != (0,) or recipe.write_back or recipe.reduce_first or draft.outputs[node]:
        return False
    if not recipe.outputs or len(recipe.outputs) != 1 or recipe.outputs[0].source != "argument":
        return False
    spec, outputs = draft.spec(read[0]), draft.operator(node).outputs
    made = outputs[0] if outputs else None  # an operator without rules says nothing of what it writes over
    if spec is None or made is None or spec.shape != made.shape or not spec.is_dense:
        return False
    return draft.facts.pool is not None and draft.memory(read[0]) != OUTSIDE


def _kind(draft: Draft, node: int) -> str:
    operator, exact = draft.operator(node), draft.mode == "exact"
    if torch.Tag.pointwise in operator.call.func.tags:
        if exact and operator.name not in operator.compiled_alike:
            return "compiled it rounds otherwise"
        spelt = is_spelt(operator.name, operator.arguments.get("alpha", 1))
        if exact and (operator.name in operator.alone_at_end or spelt) and _leaves_a_rest(operator):
            return "compiled it rounds otherwise behind whole vectors"
        if exact and spelt and _lies_apart(operator):
            return "compiled it rounds otherwise where its operands lie in other orders"
        return ""
    if operator.name not in operator.rowwise:
        return "it is no element-wise call"
    if exact:
        return "a reduction; compiled it sums in another order"
    row = _row_bytes(operator)
    if row > ROW_BYTES:
        return f"it needs rows of {row:,} bytes whole, more than stay on the chip"
    return ""


def _leaves_a_rest(operator: Any) -> bool:
    """Whether a part has elements behind whole vectors."""
    spec = operator.outputs[0].spec
    return any(spec.layout.local_numel(coord) % VECTOR_ELEMENTS for coord in spec.mesh.coords)


def _lies_apart(operator: Any) -> bool:
    """Whether the tensors are of different shapes, or in memory in different orders."""
    specs = [x.spec for x in operator.inputs if x is not None and x.spec is not None]
    return len({(spec.shape, spec.stride) for spec in specs}) > 1 or not specs[0].is_dense


def row_dims(operator: Any) -> tuple[int, ...]:
    """The dims of its first input that a reduction needs whole."""
    ndim, arguments = len(operator.shapes[0]), operator.arguments
    if "normalized_shape" in arguments:
        return tuple(range(ndim - len(arguments["normalized_shape"]), ndim))
    dims = arguments.get("dim")
    dims = [dims] if isinstance(dims, int) else dims or range(ndim)
    return tuple(dim % max(ndim, 1) for dim in dims)


def _row_bytes(operator: Any) -> int:
    """Bytes that one result of a reduction is made of."""
    spec = operator.inputs[0].spec
    return prod(spec.shape[dim] for dim in row_dims(operator) if spec.ndim) * spec.itemsize


def local_calls(recipe: Any) -> list[tuple[int, Local]] | None:
    """Position and call of torch of each distinct shard, where one makes its own without the others."""
    operator, program = recipe.operator, recipe.program
    found: list[tuple[int, Local]] | None = getattr(program, "torch_calls", lambda: None)()
    if found is not None or operator.name not in operator.rowwise or program.large:
        return found
    layout = operator.layouts[0]
    if any(layout.axes_of(dim) for dim in row_dims(operator) if len(layout.shape)) or layout.partial:
        return None
    return [
        (position, kernel.local) for position, kernel in zip(program.positions, program.kernels, strict=True)
    ]


def sharing(draft: Draft, node: int) -> str:
    """Whether each device makes a plain call for its own shard of everything."""
    calls = local_calls(draft.recipes[node])
    if calls is None:
        return "its devices work together, or each on its own thread"
    positions = {position for position, _ in calls}
    for output in draft.operator(node).outputs:
        if output is None or set(output.layout.distinct()) != positions:
            return "devices share its result otherwise than its inputs"
        if 0 in output.shape:
            return "it is empty"
    return ""


def _numbers(draft: Draft, node: int) -> str:
    """A number that each call gives anew can be handed over as a tensor, where torch takes one."""
    operator = draft.operator(node)
    types = {a.name: str(a.type) for a in operator.call.func._schema.arguments}
    for name, value in operator.arguments.items():
        slots = [value] if isinstance(value, Slot) else value if isinstance(value, (list, tuple)) else []
        for slot in slots:
            number = draft.inputs[node][slot.index] if isinstance(slot, Slot) else -1
            anew = number >= 0 and draft.spec(number) is None and number not in draft.facts.constants
            takes = types[name] == "Tensor" or NUMBERS.get(operator.name) == name
            if anew and (not takes or type(slot.sample) is not float):
                return f"its {name} is a number that each call gives anew"
    return ""


@cache
def local_stride(spec: Spec, coord: tuple[int, ...]) -> tuple[int, ...] | None:
    """The stride of the part of a device; None where the spec does not tell."""
    shape = spec.local_shape(coord)
    if shape == spec.shape:
        return spec.stride
    if not spec.is_dense:
        return None
    stride, step = [0] * spec.ndim, 1
    for dim in reversed(memory_order(spec.shape, spec.stride)):
        stride[dim] = step
        step *= max(shape[dim], 1)
    return tuple(stride)
