"""A view of a view is a view of what that one views.

    view(x, A), view(that, B)      view(x, B)

Both are the same storages with the same strides; the one in between is left out where nobody else reads it.
"""

from __future__ import annotations

from typing import Any

from dtorch.ops.standard.view import View
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.rebuilt import rebuilt
from dtorch.plan.passes.table import Pass, Row


def _of_a_view(draft: Draft, node: int) -> Any | None:
    """The recipe of the view on what the view before it views."""
    if not isinstance(draft.operator(node), View):
        return None
    (between,) = draft.inputs[node]
    inner = draft.maker.get(between)
    if inner is None or not isinstance(draft.operator(inner), View) or between in draft.wanted:
        return None
    if draft.sole_reader(between) != node:
        return None
    recipe = rebuilt(draft, node, [draft.spec(draft.inputs[inner][0])])
    same = recipe is not None and recipe.outputs[0].spec is draft.spec(draft.outputs[node][0])
    return recipe if same else None


def _straight(draft: Draft, node: int, recipe: Any) -> str:
    inner = draft.maker[draft.inputs[node][0]]
    draft.rewrite(node, recipe, draft.inputs[inner])
    draft.drop(inner)
    return "a view of a view"


def _both(draft: Draft, node: int, recipe: Any) -> tuple[int, ...]:
    return draft.maker[draft.inputs[node][0]], node


VIEWS = Pass("views", "leave out views that only a view reads", (Row(_of_a_view, _straight, _both),))
