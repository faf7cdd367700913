"""A draft tells how things stand now, whatever is asked first and whatever was rewritten before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Shard
from dtorch.plan import cache
from dtorch.plan.passes.draft import Draft


def draft_of(graph: dtorch.Graph) -> Draft:
    """y = x + 1 (0), a view (1), a write through it (2), y exp (3): as recorded."""
    x = dtorch.Tensor(torch.ones(4, 3), DeviceMesh("cpu", [0, 1]), [Shard(0)], graph=graph)
    with cache.watched() as plans, dtorch.passes(**{one.name: False for one in dtorch.passes()}):
        for _ in range(2):  # interpreted, then by a plan
            y = x + 1
            view = y.view(4, 3)
            view.neg_()
            found = y.exp()
            graph.sync()
    del found
    return Draft(*plans[-1].asked)


Question = Callable[[Draft, int], Any]
QUESTIONS: dict[str, Question] = {
    "aliases": lambda draft, y: draft.aliases(y),
    "writes_before": lambda draft, y: draft.writes_before(y, 3),
    "written_between": lambda draft, y: draft.written_between(y, 0, 3),
    "is_written": lambda draft, y: draft.is_written(y),
    "is_temporary": lambda draft, y: draft.is_temporary(y),
    "sole_reader": lambda draft, y: draft.sole_reader(y),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_any_question_may_be_the_first(graph: dtorch.Graph, name: str) -> None:
    draft = draft_of(graph)
    (y,) = draft.outputs[0]
    found = QUESTIONS[name](draft, y)
    assert found == QUESTIONS[name](draft, y)


@pytest.mark.parametrize("name", QUESTIONS)
def test_after_a_rewrite_it_answers_as_one_made_anew(graph: dtorch.Graph, name: str) -> None:
    asked, anew = draft_of(graph), draft_of(graph)
    (y,) = asked.outputs[0]
    QUESTIONS[name](asked, y)
    for draft in (asked, anew):
        draft.drop(2)
        draft.drop(1)
    assert anew.place == {0: 0, 3: 1}
    assert QUESTIONS[name](asked, y) == QUESTIONS[name](anew, y)
