"""The same call on the same values is made once."""

from __future__ import annotations

from typing import Any

from dtorch.op.param import TorchCall
from dtorch.ops.standard.convert import Convert
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.table import Pass, Row

_NEVER = frozenset({"aten.empty", "aten.empty_strided", "aten.empty_like", "aten.new_empty"})


def call_key(draft: Draft, node: int) -> Any:
    """Equal for calls that compute the same: operator, inputs, and how often those were written before.

    None for calls that are not looked at: they write, draw random numbers, or are a user's own, which may do
    more than give a value.
    """
    recipe, operator = draft.recipes[node], draft.operator(node)
    if recipe.written or not draft.outputs[node] or not draft.inputs[node]:
        return None
    if isinstance(operator, Convert):
        what: Any = (operator.source, operator.target_spec)
    elif isinstance(operator.param, TorchCall) and operator.call.func.namespace == "aten":
        if operator.draws() or operator.name in _NEVER:
            return None
        what = recipe
    else:
        return None
    versions = tuple([draft.writes_before(number, node) for number in draft.inputs[node]])
    return what, draft.inputs[node], versions


def _earlier(draft: Draft, node: int) -> int | None:
    """An earlier call that computes the same, where nobody could tell the two results apart.

    The later result must be seen by nodes alone, and neither be written. Views of one operand are the same
    storages, whoever writes into them.
    """
    key = call_key(draft, node)
    if key is None:
        return None
    readers = draft.readers.get(draft.inputs[node][0], ())
    made = draft.outputs[node]
    for other in readers:
        if draft.place[other] >= draft.place[node] or len(draft.outputs[other]) != len(made):
            continue
        if call_key(draft, other) != key:
            continue
        views = draft.recipes[node].views
        if views and draft.wanted and not set(made).isdisjoint(draft.wanted):
            continue
        pairs = (*made, *draft.outputs[other])
        if not views and (
            not all(map(draft.is_temporary, made)) or any(draft.is_written(number) for number in pairs)
        ):
            continue
        return other
    return None


def _share(draft: Draft, node: int, other: int) -> str:
    for number, same in zip(draft.outputs[node], draft.outputs[other], strict=True):
        draft.read_instead(number, same)
    draft.drop(node)
    return f"the same as call {other}"


EQUAL = Pass("equal", "make the same call on the same values once", (Row(_earlier, _share),))
