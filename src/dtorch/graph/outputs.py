"""What becomes of outputs that only a run has shown, and of those that view an input."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtorch.errors import PlacementError
from dtorch.graph import aliasing
from dtorch.graph.recipe import OutputPlan, Recipe
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import meta_of
from dtorch.op.operand import Operand, Parts, Upstream
from dtorch.spec import Spec


def view_of(recipe: Recipe, plan: OutputPlan, base: Operand | None, number: int, parts: Parts) -> Operand:
    """The operand of output `number`, a view of `base`: sharing its storages, or a copy that remembers it."""
    assert base is not None
    assert plan.spec is not None
    offset = base.offset + plan.offset
    if plan.source == "view":
        return Operand(plan.spec, parts, base.buffer, offset)
    copy = Operand(plan.spec, parts, None, offset)
    copy.buffer.upstream = Upstream(base, aliasing.viewer(recipe.operator, plan.input, number))
    return copy


def whole_spec(mesh: DeviceMesh, tensor: torch.Tensor) -> Spec:
    """The spec of a tensor that every device of the mesh holds whole."""
    meta = meta_of(tensor)
    return Spec(meta.shape, meta.stride, meta.dtype, Layout.replicate(mesh.shape, meta.shape), mesh)


def plan_of(recipe: Recipe, operands: Sequence[Operand | None], parts: Parts) -> OutputPlan:
    """What becomes of an output whose shape only the run has shown."""
    result = parts[0]
    if not isinstance(result, torch.Tensor):
        return OutputPlan("value")
    if result.layout is not torch.strided:
        raise PlacementError(
            f"{recipe.operator.describe()} gives a {result.layout} tensor; dtorch holds strided ones"
        )
    spec = whole_spec(recipe.operator.mesh, result)
    schema = recipe.operator.schema
    if schema.view_of is not None:
        slot = recipe.operator.arguments[schema.view_of]
        base = operands[slot.index]
        assert base is not None
        assert base.parts is not None
        if base.layout.is_replicate and aliasing.shares_storage(result, base.parts[0]):
            return OutputPlan("view", slot.index, spec, None, int(result.storage_offset()))
        return OutputPlan("copy", slot.index, spec, None, 0)
    return OutputPlan("fresh", -1, spec)
