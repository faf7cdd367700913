"""Calls on described devices: recorded and priced, never run.

What a call gives is known from its recipe alone. Whole numbers and truth values below 1 MiB that depend on no
tensor without value are computed all the same, since programs branch on masks and positions; everything else
is a `NoValue`, and nothing is drawn from random generators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dtorch.errors import UnsupportedError
from dtorch.graph import aliasing
from dtorch.graph.conversion import convert
from dtorch.graph.logical_graph import node_of
from dtorch.graph.recipe import OutputPlan, Recipe, without_spec
from dtorch.layout import Layout
from dtorch.op.call import MetaFailed
from dtorch.op.operand import NoValue, Operand, Upstream, keeps_value
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.constructor import GraphConstructor

Results = list[Any]


def complete(recipe: Recipe) -> None:
    """Make a recipe one for described devices: what a run would have told is inferred."""
    recipe.described = recipe.checked = True
    operator = recipe.operator
    if recipe.outputs is not None or recipe.reduce_first:
        return
    if not operator.schema.returned:
        recipe.outputs = ()  # a check of values: nothing to check
        return
    try:
        metas = operator.infer_output_meta_info()
    except MetaFailed:
        return  # its outputs depend on values
    operator.output_metas = tuple(metas)
    mesh = operator.mesh
    specs = [
        None if m is None else Spec(m.shape, m.stride, m.dtype, Layout.replicate(mesh.shape, m.shape), mesh)
        for m in metas
    ]
    operator.outputs = tuple(None if spec is None else Operand(spec) for spec in specs)
    view_of = operator.view_of()
    source = "fresh" if view_of is None else "copy"
    recipe.outputs = tuple(
        without_spec(operator, number)
        if spec is None
        else OutputPlan(source, -1 if view_of is None else view_of, spec)
        for number, spec in enumerate(specs)
    )


def call(
    constructor: GraphConstructor, recipe: Recipe, operands: Sequence[Any], in_backward: bool
) -> Results | None:
    """What a call gives; None where pending sums had to be reduced in place first.

    Raises:
        UnsupportedError: the sizes of the outputs, or an output that is no tensor, depend on values.
    """
    if recipe.fault is not None:
        raise recipe.fault
    if recipe.reduce_first:
        aliasing.reduce_first(constructor, recipe, operands)
        return None
    if _computable(recipe, operands):
        return constructor.run(recipe, operands, in_backward)
    plans = recipe.outputs
    if plans is None or not all(plan.spec or plan.source in ("argument", "absent") for plan in plans):
        raise UnsupportedError(_why_not(recipe))
    legal = constructor.legal(recipe, operands) if recipe.conversions else operands
    results: Results = [_output(recipe, plan, number, operands) for number, plan in enumerate(plans)]
    for i in recipe.written:
        aliasing.lose(operands[i])
    if constructor.graph.recorders:
        made = [result for result in results if isinstance(result, Operand)]
        changed = [legal[i] for i in recipe.written]
        constructor.graph.note(node_of(recipe.operator, operands, None, in_backward), legal, made + changed)
    aliasing.written(constructor, recipe, operands, legal)
    for number, plan in enumerate(plans):
        if plan.target is not None:
            fresh, results[number] = results[number], None
            results[number] = convert(constructor, fresh, plan.target, cause=recipe.operator, keep=False)
    return results


def _computable(recipe: Recipe, operands: Sequence[Any]) -> bool:
    """Whether all values that the call needs are there, and all that it gives are kept."""
    if any(isinstance(operand.parts, NoValue) for operand in operands) or recipe.operator.draws():
        return False
    return recipe.outputs is None or all(
        plan.spec is None or keeps_value(plan.spec.mesh, plan.spec.dtype, plan.spec.numel)
        for plan in recipe.outputs
    )


def _why_not(recipe: Recipe) -> str:
    """Why nobody can tell what a call gives: it depends on values, or torch's meta kernel refuses it."""
    operator = recipe.operator
    try:
        operator.infer_output_meta_info()
        reason = "what it gives depends on values"
    except MetaFailed as failed:
        reason = f"what it gives cannot be told without running it ({failed.error})"
    return f"{operator.describe()}: {reason}.\n  {NoValue().error}"


def _output(recipe: Recipe, plan: OutputPlan, number: int, operands: Sequence[Any]) -> Any:
    """An output: the number of the input it is, or an operand that shares its storage, or a fresh one."""
    if plan.source == "argument":
        return plan.input
    if plan.source == "absent":
        return None
    assert plan.spec is not None
    if plan.source == "fresh":
        same = recipe.operator.name == "aten._unsafe_view"  # a view that autograd does not take for one
        return Operand(plan.spec, operands[0].parts if same else NoValue())
    base: Operand = operands[plan.input]
    offset = plan.offset_of(operands)
    if plan.source == "view":
        assert base.parts is not None
        return Operand(plan.spec, None, base.buffer, offset).give(base.parts)
    copy = Operand(plan.spec, NoValue(), None, offset)
    copy.buffer.upstream = Upstream(base, aliasing.viewer(recipe.operator, operands, plan.input, number))
    return copy
