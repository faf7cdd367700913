"""A call on operands of other shapes or layouts than it was recorded with."""

from __future__ import annotations

from typing import Any

from dtorch.errors import DtorchError
from dtorch.graph.build import Surroundings, build
from dtorch.graph.settings import default_dtype
from dtorch.plan.passes.draft import Draft
from dtorch.spec import Spec


def rebuilt(draft: Draft, node: int, specs: list[Spec | None]) -> Any | None:
    """The recipe of a node's call on other operands, if a rule takes them as they are."""
    operator = draft.operator(node)
    around = Surroundings("auto", False, default_dtype())
    try:
        recipe = build(operator.param, specs, {}, around)
    except DtorchError:
        return None
    outputs = recipe.outputs
    if recipe.conversions or recipe.written or not outputs or len(outputs) != 1 or outputs[0].spec is None:
        return None
    if outputs[0].source not in ("fresh", "view") or recipe.operator.type != operator.type:
        return None
    old = draft.recipes[node]
    recipe.kept, recipe.nbytes = old.kept, old.nbytes
    recipe.program = draft.prepare(recipe.operator, recipe.operator.layouts)
    return recipe
