"""Confirming a new call without running what is pending: it is tried on zeros, and then recorded.

A first call runs at once, and all that is pending before it, which cuts a sequence where later rounds do not.
So the plans of a stage of the program could only be made in its second round. A call that is likely to come
again (`lines.py`) is tried instead: with zeros for what has no value yet, or is written. Shapes, dtypes and
strides are those of any values, or the call could never be recorded. Where the trial fails the call
runs at once, and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dtorch import redistribute
from dtorch.graph import lines, rounds
from dtorch.graph.confirm import confirm, users_place
from dtorch.graph.recipe import Recipe
from dtorch.op.operand import Failed, Operand, Parts
from dtorch.op.param import TorchCall
from dtorch.redistribute.local_work import LocalWork
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.constructor import GraphConstructor

MAX_TRIAL_BYTES = 2**24
"""What a trial may make, zeros and outputs: a call that makes more runs once, at once."""


def confirm_ahead(
    constructor: GraphConstructor, recipe: Recipe, operands: Sequence[Any], plain: Sequence[int]
) -> None:
    """Confirm a recipe by a trial, if that may be; the recipe says whether it is confirmed.

    Args:
        constructor: of the graph that the call is added to; the caller holds its lock.
        recipe: not confirmed yet.
        operands: of the call, before conversion.
        plain: those that may change after the call.
    """
    if constructor.captured or not _may_be_tried(recipe, plain):
        return
    place, now = users_place(), rounds.present()
    lines.enter(place, now)
    lines.note(place, now)
    if not lines.returns(place, now):
        return
    targets = dict(recipe.conversions)
    given = [
        operand if operand.spec is None else _given(operand, targets.get(i), i in recipe.written)
        for i, operand in enumerate(operands)
    ]
    made = sum(x.spec.nbytes for x in given if type(x) is Operand and x.parts is None)
    made += sum(plan.spec.nbytes for plan in recipe.outputs or () if plan.spec is not None)
    if made > MAX_TRIAL_BYTES or any(type(x.parts) is Failed for x in given):
        return
    if recipe.program is None:
        recipe.program = constructor.runner.prepare(recipe.operator, recipe.operator.layouts)
    try:
        with LocalWork():
            inputs = [_zeros(x.spec) if x.parts is None else x.parts for x in given]
            results = constructor.runner.run(recipe.program, inputs)
    except Exception:  # the call itself tells, or works
        return
    confirm(recipe, results)


def _may_be_tried(recipe: Recipe, plain: Sequence[int]) -> bool:
    """Whether running the call once more has no effect but its results, and it may be recorded then."""
    operator, plans = recipe.operator, recipe.outputs
    if plans is None or recipe.fault is not None or recipe.described or recipe.write_back:
        return False
    theirs = isinstance(operator.param, TorchCall) and operator.param.op.startswith("aten.")
    if (
        not theirs
        or operator.draws()
        or operator.draws_alone()
        or any(plan.source == "value" for plan in plans)
    ):
        return False
    return not recipe.reduce_first and not any(i in recipe.written for i in plain)


def _given(operand: Operand, target: Any, written: bool) -> Operand:
    """What stands for an operand: itself, or one without parts."""
    if target is None and not written:
        return operand
    spec = operand.spec
    return Operand(spec if target is None else Spec(spec.shape, spec.stride, spec.dtype, target, spec.mesh))


def _zeros(spec: Spec) -> Parts:
    full = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype).zero_()
    return redistribute.split(full, spec.layout, spec.mesh)
