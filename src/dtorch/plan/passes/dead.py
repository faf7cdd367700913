"""Calls whose results nobody sees are left out."""

from __future__ import annotations

from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.table import Pass, Row


def _unseen(draft: Draft, node: int) -> bool | None:
    """Nobody reads or wants an output, and nothing is written."""
    if draft.recipes[node].written:
        return None
    seen = any(number in draft.readers or number in draft.wanted for number in draft.outputs[node])
    return None if seen else True


def _drop(draft: Draft, node: int, found: bool) -> str:
    draft.drop(node)
    return "nobody sees what it makes"


DEAD = Pass("dead", "leave out what nobody sees", (Row(_unseen, _drop),), backwards=True)
