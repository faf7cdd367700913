"""What becomes of the outputs of a run: fresh tensors, views and copies of inputs, plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dtorch.errors import PlacementError
from dtorch.graph import aliasing
from dtorch.graph.conversion import convert
from dtorch.graph.logical_graph import replicated_spec
from dtorch.graph.recipe import OutputPlan, Recipe
from dtorch.op.operand import Operand, Parts, Upstream

if TYPE_CHECKING:
    from dtorch.graph.constructor import GraphConstructor


Results = list[Any]
"""Per output: an Operand, an int (the input that it is), or a plain value."""


def outputs_of(
    constructor: GraphConstructor, recipe: Recipe, operands: Sequence[Operand | None], results: list[Parts]
) -> Results:
    """What a call gives, once its operator has run on `operands` (before conversion) with these results."""
    plans = recipe.outputs
    if plans is None:
        plans = tuple(_plan_of(recipe, operands, parts) for parts in results)
    found: Results = []
    for number, (plan, parts) in enumerate(zip(plans, results, strict=True)):
        if plan.source == "argument":
            found.append(plan.input)
        elif plan.source == "absent":
            found.append(None)
        elif plan.source == "value":
            found.append(parts[0])
        elif plan.source == "fresh":
            assert plan.spec is not None
            fresh = Operand(plan.spec, parts)
            if plan.target is not None:
                fresh = convert(constructor, fresh, plan.target, cause=recipe.operator, keep=False)
            found.append(fresh)
        else:
            found.append(_view_of(recipe, plan, operands, number, parts))
    return found


def _view_of(
    recipe: Recipe, plan: OutputPlan, operands: Sequence[Operand | None], number: int, parts: Parts
) -> Operand:
    """The operand of output `number`, a view: sharing storages with its base, or a copy that remembers it."""
    base = operands[plan.input]
    assert base is not None
    assert plan.spec is not None
    offset = plan.offset_of(operands)
    if plan.source == "view":
        return Operand(plan.spec, None, base.buffer, offset).give(parts)
    copy = Operand(plan.spec, parts, None, offset)
    copy.buffer.upstream = Upstream(base, aliasing.viewer(recipe.operator, operands, plan.input, number))
    return copy


def _plan_of(recipe: Recipe, operands: Sequence[Operand | None], parts: Parts) -> OutputPlan:
    """What becomes of an output whose shape only the run has shown."""
    result = parts[0]
    if not isinstance(result, torch.Tensor):
        return OutputPlan("value")
    if result.layout is not torch.strided or result.is_quantized:
        raise PlacementError(
            f"{recipe.operator.describe()} gives a {'quantized' if result.is_quantized else result.layout} "
            "tensor; dtorch holds strided ones"
        )
    spec = replicated_spec(recipe.operator.mesh, result)
    schema = recipe.operator.schema
    if schema.view_of is not None:
        slot = recipe.operator.arguments[schema.view_of]
        base = operands[slot.index]
        assert base is not None
        assert base.parts is not None
        if base.layout.is_replicate and aliasing.shares_storage(result, base.parts[0]):
            moved = _moved(base, int(base.parts[0].storage_offset()), result)
            return OutputPlan("view", slot.index, spec, None, moved)
        return OutputPlan("copy", slot.index, spec, None, _moved(base, 0, result))
    return OutputPlan("fresh", -1, spec)


def _moved(base: Operand, start: int, view: torch.Tensor) -> int:
    """How far behind its base torch would see a view start, where the base's local tensor starts at `start`.

    In elements of the view, which may be of another size (`view(dtype)`).
    """
    before = base.spec.itemsize
    seen = base.offset * before // view.itemsize - base.offset
    return seen + int(view.storage_offset()) - start * before // view.itemsize
