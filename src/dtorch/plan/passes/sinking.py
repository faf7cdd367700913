"""A reduction of pending sums moves below what is linear, where less is sent there.

    reduce(x), view, B -> C        view(x) still pending, then one redistribution
    reduce(a) + reduce(b)          reduce(a + b)                                         "fast" alone

A view moves elements and rounds nothing, so the sums are the same ones. Adding first adds in another order,
and rounds otherwise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dtorch import redistribute
from dtorch.op.param import TorchCall
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.rebuilt import rebuilt
from dtorch.plan.passes.redistributes import convert_of, converting
from dtorch.plan.passes.table import Pass, Row


class _Sunk(NamedTuple):
    """What replaces a chain: the recipe on pending sums, the conversions it makes needless, bytes saved."""

    recipe: Any
    above: tuple[int, ...]
    sent: int
    before: int


def _reduces(draft: Draft, number: int, reader: int) -> int | None:
    """The node that made an operand by reducing all pending sums, for one reader alone."""
    node = draft.maker.get(number)
    operator = convert_of(draft, node)
    if operator is None or node is None:
        return None
    pending = operator.source.layout.partial and not operator.target.partial
    alone = draft.sole_reader(number) == reader and draft.is_temporary(number)
    if not pending or not alone or not operator.source.is_dense:
        return None
    given = draft.inputs[node][0]
    if draft.is_written(number) or draft.written_between(given, node, reader):
        return None
    return node


def _view_of_a_sum(draft: Draft, node: int) -> _Sunk | None:
    """node is a redistribution, of a view, of a reduction."""
    last = convert_of(draft, node)
    view = draft.maker.get(draft.inputs[node][0]) if last is not None else None
    if last is None or view is None or len(draft.inputs[view]) != 1 or not draft.recipes[view].views:
        return None
    between = draft.outputs[view]
    if len(between) != 1 or draft.sole_reader(between[0]) != node or between[0] in draft.wanted:
        return None
    above = _reduces(draft, draft.inputs[view][0], view)
    if above is None or last.source.layout.partial or last.target.partial or not last.source.is_dense:
        return None
    first = convert_of(draft, above)
    assert first is not None
    if draft.written_between(draft.inputs[above][0], above, node):
        return None
    recipe = rebuilt(draft, view, [first.source])
    if recipe is None:
        return None
    made = recipe.outputs[0].spec
    if (made.shape, made.stride) != (last.source.shape, last.source.stride):
        return None
    sent = redistribute.cost(made.layout, last.target, made.itemsize)
    before = first.plan.bytes_total + last.plan.bytes_total
    return _Sunk(recipe, (above,), sent, before) if sent < before else None


def _under_the_view(draft: Draft, node: int, found: _Sunk) -> str:
    view = draft.maker[draft.inputs[node][0]]
    above = found.above[0]
    target = draft.operator(node).target  # type: ignore[attr-defined]
    draft.rewrite(view, found.recipe, draft.inputs[above])
    spec = found.recipe.outputs[0].spec
    draft.rewrite(node, converting(draft, node, spec, target), draft.inputs[node])
    draft.drop(above)
    return f"reduced below the view: {found.before:,} -> {found.sent:,} bytes"


def _shown(draft: Draft, node: int, found: _Sunk) -> tuple[int, ...]:
    view = draft.maker.get(draft.inputs[node][0])
    return (*found.above, *(() if view in (None, *found.above) else (view,)), node)


def _sum_of_sums(draft: Draft, node: int) -> _Sunk | None:
    """node adds or subtracts two reductions of the same kind."""
    operator, inputs = draft.operator(node), draft.inputs[node]
    if not isinstance(operator.param, TorchCall) or operator.name not in ("aten.add", "aten.sub"):
        return None
    if draft.recipes[node].written or len(draft.outputs[node]) != 1:
        return None
    tensors = [number for number in inputs if draft.spec(number) is not None]
    if len(tensors) != 2 or tensors[0] == tensors[1]:
        return None
    above = [_reduces(draft, number, node) for number in tensors]
    if None in above:
        return None
    a, b = (convert_of(draft, n) for n in above)
    assert a is not None
    assert b is not None
    if a.source.layout is not b.source.layout or a.target is not b.target:
        return None
    specs = [None if draft.spec(n) is None else a.source for n in inputs]
    recipe = rebuilt(draft, node, specs)
    spec = None if recipe is None else recipe.outputs[0].spec
    if spec is None or spec.layout is not a.source.layout:
        return None
    sent = redistribute.cost(spec.layout, a.target, spec.itemsize)
    return _Sunk(recipe, tuple(n for n in above if n is not None), sent, 2 * sent)


def _add_first(draft: Draft, node: int, found: _Sunk) -> str:
    """The later reduction's place in the order is taken by the addition, the addition's by the reduction."""
    first, second = sorted(found.above, key=draft.place.__getitem__)
    given = {draft.outputs[n][0]: draft.inputs[n][0] for n in found.above}
    target = draft.operator(second).target  # type: ignore[attr-defined]
    inputs = [given.get(number, number) for number in draft.inputs[node]]
    conversion = converting(draft, second, found.recipe.outputs[0].spec, target)
    draft.rewrite(second, found.recipe, inputs)
    draft.rewrite(node, conversion, draft.outputs[second])
    draft.drop(first)
    return f"added up before the reduction: {found.before:,} -> {found.sent:,} bytes"


SINKING = Pass("sinking", "reduce below views", (Row(_view_of_a_sum, _under_the_view, _shown),))
ADD_FIRST = Pass(
    "add_first",
    "add pending sums before they are reduced",
    (Row(_sum_of_sums, _add_first, _shown),),
    modes=("fast",),
)
