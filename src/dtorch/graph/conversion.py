"""Bringing an operand under another layout: an operator of its own, so that what is sent is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dtorch import redistribute
from dtorch.graph.confirm import users_place
from dtorch.graph.logical_graph import Node
from dtorch.graph.recipe import Recipe, Recipes
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import NoValue, Operand, Parts, keeps_value
from dtorch.op.operator import Operator
from dtorch.ops.standard.convert import Convert, ConvertParam
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.constructor import GraphConstructor

_RECIPES = Recipes()


def convert(
    constructor: GraphConstructor,
    operand: Operand,
    target: Layout,
    mesh: DeviceMesh | None = None,
    *,
    cause: Operator | None = None,
    keep: bool = True,
    implicit: bool = True,
) -> Operand:
    """The operand under another layout, a visible node; from the nearest copy that is held.

    Args:
        constructor: of the operand's graph.
        operand: what to convert.
        target: its new layout.
        mesh: its new mesh; None for the same one.
        cause: the operator that needs it.
        keep: whether later consumers may share the result, which then must not be written.
        implicit: whether dtorch chose the conversion.
    """
    source, here = operand, mesh is None or mesh == operand.spec.mesh
    held = operand.conversions() if here else None
    if held:
        if keep and target in held:
            return held[target]
        itemsize = operand.spec.itemsize
        source = min((operand, *held.values()), key=lambda o: redistribute.cost(o.layout, target, itemsize))
    recipe = _recipe(constructor, source.spec, target, mesh, implicit)
    operator: Convert = recipe.operator  # type: ignore[assignment]
    result = Operand(operator.target_spec)
    if operator.target_mesh.description is not None or isinstance(source.parts, NoValue):
        result.parts = _described(constructor, recipe, source)
    elif constructor.eager:
        result.parts = constructor.runner.run(recipe.program, [constructor.ready(source)])[0]
    else:
        constructor.append((recipe, [source], (result,), users_place()))
    if constructor.graph.recorders:
        in_backward = torch._C._current_graph_task_id() != -1
        node = Node(operator, (source.spec,), (result.spec,), cause, in_backward)
        constructor.graph.note(node, (source,), (result,), operand if cause is None else None)
    if keep and here and operator.plan.bytes_total:
        # What was sent once need not be sent again; local conversions are cheaper made than held.
        operand.keep_conversion(result)
        if result.parts is None:
            constructor.pending.converted.append(operand)
    return result


def forget() -> None:
    """Drop all recipes of conversions, as in a new process."""
    _RECIPES.clear()


def _described(constructor: GraphConstructor, recipe: Recipe, source: Operand) -> Parts:
    """A conversion to described devices: of a value that is kept the value, else nothing but the layout.

    Raises:
        UnsupportedError: from there to real devices, of what has no value.
    """
    spec: Spec = recipe.operator.target_spec  # type: ignore[attr-defined]
    if spec.mesh.description is None:
        raise source.parts.again()  # type: ignore[union-attr]
    if isinstance(source.parts, NoValue) or not keeps_value(spec.mesh, spec.dtype, spec.numel):
        return NoValue()
    return constructor.runner.run(recipe.program, [constructor.parts(source)])[0]


def _recipe(
    constructor: GraphConstructor, spec: Spec, target: Layout, mesh: DeviceMesh | None, implicit: bool
) -> Recipe:
    key = (spec, target, mesh, implicit)
    found = _RECIPES.get(key)
    if found is None:
        operator = Convert(ConvertParam(target, mesh, implicit), [Operand(spec)])
        operator.infer()
        found = Recipe(operator)
        found.program = constructor.runner.prepare(operator, ())
        found.kept = (0,)
        found.nbytes = operator.target_spec.nbytes
        _RECIPES.keep(key, found)
    return found
