"""Redistributions in a row become one, and one that leads back becomes none.

    A -> B, B -> C      A -> C, where that sends less; A -> B counts if it is then needed no more
    A -> A              nothing

Sums must be the same sums in the same order: the first of the two adds up everything that is pending. Where
the second makes a pending sum, both are left alone: which device holds which addend would change.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.op.operand import Operand
from dtorch.ops.standard.convert import Convert, ConvertParam
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.table import Pass, Row
from dtorch.spec import Spec


def convert_of(draft: Draft, node: int | None) -> Convert | None:
    """The redistribution within one mesh that a node is, if it is one."""
    if node is None or node not in draft.place:
        return None
    operator = draft.operator(node)
    if not isinstance(operator, Convert) or operator.source.mesh != operator.target_mesh:
        return None
    return operator


def converting(draft: Draft, like: int, source: Spec, target: Layout) -> object:
    """The recipe of a conversion, as that of node `like` is one."""
    old = draft.operator(like)
    operator = Convert(ConvertParam(target, None, old.implicit), [Operand(source)])  # type: ignore[attr-defined]
    operator.infer()
    recipe = copy(draft.recipes[like])
    recipe.operator = operator
    recipe.program = draft.prepare(operator, operator.layouts)
    recipe.nbytes = operator.target_spec.nbytes
    return recipe


class _Two(NamedTuple):
    """A redistribution, the node that made its input, and whether that is needed no more."""

    first: int
    source: Spec
    alone: bool


def _in_a_row(draft: Draft, node: int) -> _Two | None:
    second = convert_of(draft, node)
    first_node = draft.maker.get(draft.inputs[node][0]) if second is not None else None
    first = convert_of(draft, first_node)
    if first is None or second is None or first_node is None:
        return None
    source, middle, target = first.source, first.target, second.target
    if middle.partial or target.partial or not source.is_dense:
        return None
    given, between = draft.inputs[first_node][0], draft.outputs[first_node][0]
    if draft.written_between(given, first_node, node) or draft.is_written(between):
        return None
    alone = draft.sole_reader(between) == node and draft.is_temporary(between)
    before = second.plan.bytes_total + (first.plan.bytes_total if alone else 0)
    after = redistribute.cost(source.layout, target, source.itemsize)
    return _Two(first_node, source, alone) if after < before or (alone and after == before) else None


def _straight(draft: Draft, node: int, found: _Two) -> str:
    first, second = draft.operator(found.first), draft.operator(node)
    assert isinstance(first, Convert)
    assert isinstance(second, Convert)
    before = second.plan.bytes_total + (first.plan.bytes_total if found.alone else 0)
    recipe = converting(draft, node, found.source, second.target)
    draft.rewrite(node, recipe, draft.inputs[found.first])
    if found.alone:
        draft.drop(found.first)
    now = draft.operator(node).plan.bytes_total  # type: ignore[attr-defined]
    return f"one redistribution sends {now:,} bytes, the two sent {before:,}"


def _leads_nowhere(draft: Draft, node: int) -> bool | None:
    """A redistribution to the layout that is there, of what nobody writes and whose copy nobody is given."""
    operator = convert_of(draft, node)
    if operator is None or operator.source.layout is not operator.target or not operator.source.is_dense:
        return None
    given, made = draft.inputs[node][0], draft.outputs[node][0]
    if not draft.is_temporary(made) or draft.is_written(made) or draft.is_written(given):
        return None
    return True


def _nothing(draft: Draft, node: int, found: bool) -> str:
    draft.read_instead(draft.outputs[node][0], draft.inputs[node][0])
    draft.drop(node)
    return "what it makes is there"


def _both(draft: Draft, node: int, found: _Two) -> tuple[int, ...]:
    return found.first, node


REDISTRIBUTES = Pass(
    "redistributes",
    "merge redistributions in a row, cancel those that lead back",
    (Row(_in_a_row, _straight, _both), Row(_leads_nowhere, _nothing)),
)
