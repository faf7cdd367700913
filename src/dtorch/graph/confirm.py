"""Errors that say what to do, and the check that inferred metadata is what really came out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from dtorch import redistribute
from dtorch.errors import DtorchError, OperatorError, PlacementError
from dtorch.graph import lines, rounds
from dtorch.graph.recipe import OutputPlan, Recipe
from dtorch.graph.rounds import INSIDE
from dtorch.op.call import meta_of
from dtorch.op.operand import Operand
from dtorch.op.operator import Operator
from dtorch.spec import Spec


def users_line() -> str:
    """File and line of the nearest caller outside dtorch and torch."""
    return line_of(users_place(2))


def users_place(depth: int = 1) -> Any:
    """Code object and instruction of the nearest caller outside dtorch and torch; errors resolve them.

    Args:
        depth: how many callers up to begin; nearer ones are known to be dtorch's, and a look costs.
    """
    frame: Any = sys._getframe(depth)
    while frame is not None:
        if not INSIDE[frame.f_globals.get("__name__")]:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


def line_of(place: Any) -> str:
    """File and line of a place that `users_place` noted, or as they were read from a file."""
    if place is None:
        return "(called by autograd)"
    if isinstance(place, str):
        return place
    code, instruction = place
    line = next((line for start, stop, line in code.co_lines() if start <= instruction < stop), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def failure_at(
    error: Exception, operator: Operator, given: Sequence[Operand | None], place: Any = (), note: str = ""
) -> Exception:
    """The same kind of error, naming the operator, the placements it was given and the user's line.

    Args:
        error: what was raised.
        operator: the operator that raised it.
        given: its inputs.
        place: where the user called it, from `users_place`; by default the present caller.
        note: a line more.
    """
    if isinstance(error, DtorchError) and (place == () or "called from" in str(error)):
        return error
    places = ", ".join("-" if x is None or x.spec is None else str(list(x.spec.placements)) for x in given)
    where = users_line() if place == () else line_of(place)
    text = f"{error}\n  in {operator.describe()} with placements {places}\n  called from {where}"
    text += f"\n  {note}" if note else ""
    try:
        explained = type(error)(text)
    except Exception:
        return OperatorError(text)  # its class takes more than a text
    return explained if explained.args == (text,) else OperatorError(text)


def refuse_implicit(recipe: Recipe, specs: Sequence[Spec | None]) -> None:
    """Under the policy "error", refuse conversions of inputs that send bytes.

    Raises:
        PlacementError: an input would need communication.
    """
    operator = recipe.operator
    fixes, total = [], 0
    for i, target in recipe.conversions:
        spec = specs[i]
        assert spec is not None
        sent = redistribute.cost(spec.layout, target, spec.itemsize)
        if sent:
            total += sent
            fixes.append(f"input {i}.redistribute(placements={list(target.placements())}), {sent} bytes")
    if not fixes:
        return
    have = "\n".join(f"    input {i}: {list(s.placements)}" for i, s in enumerate(specs) if s is not None)
    rules = "\n".join(f"    {line}" for line in str(operator.signature).splitlines())
    raise PlacementError(
        f'{operator.describe()} fits no placement rule without communication, and the policy is "error".\n'
        f"  placements:\n{have}\n  legal on one mesh axis:\n{rules}\n"
        f"  cheapest fix ({total} bytes): {'; '.join(fixes)}\n  called from {users_line()}"
    )


def confirm(recipe: Recipe, results: list[list[Any]]) -> None:
    """Compare a first run's outputs with what was inferred; whole outputs take the real run's strides.

    Tensors that torch did not make, since nobody asked for them, are absent; its meta kernels may make them.

    Raises:
        OperatorError: a shard has another shape or dtype than its layout says, or is there on some devices
            only, so the value would be wrong.
    """
    if recipe.outputs is None:
        recipe.checked = True
        return
    if len(results) != len(recipe.outputs):
        raise OperatorError(
            f"{recipe.operator.describe()} gave {len(results)} outputs, not {len(recipe.outputs)}"
        )
    plans = list(recipe.outputs)
    for number, (plan, parts) in enumerate(zip(plans, results, strict=True)):
        if plan.source == "fresh" and all(part is None for part in parts):
            plans[number] = OutputPlan("absent")
            continue
        if plan.spec is None:
            continue
        spec = plan.spec
        for coord, part in zip(spec.mesh.coords, parts, strict=True):
            if part is None:
                raise OperatorError(f"{recipe.operator.describe()}: output {number} at {coord} is absent")
            if tuple(part.shape) != spec.layout.local_shape(coord) or part.dtype != spec.dtype:
                raise OperatorError(
                    f"{recipe.operator.describe()}: output {number} at {coord} is {tuple(part.shape)} "
                    f"{part.dtype}, its layout says {spec.layout.local_shape(coord)} {spec.dtype}"
                )
        if not spec.layout.cut_axes and plan.source == "fresh":
            meta = meta_of(parts[0])
            plans[number] = msgspec.structs.replace(
                plan, spec=Spec(meta.shape, meta.stride, meta.dtype, spec.layout, spec.mesh)
            )
    recipe.outputs = tuple(plans)
    recipe.checked = True
    place, now = users_place(), rounds.present()
    lines.enter(place, now)
    recipe.meet(place, now)
    _allow_recording(recipe)


def _allow_recording(recipe: Recipe) -> None:
    plans = recipe.outputs
    assert plans is not None
    recipe.kept = tuple(j for j, plan in enumerate(plans) if plan.source in ("fresh", "view"))
    recipe.moves = any(plan.target is not None for plan in plans)
    recipe.nbytes = sum(
        plan.spec.nbytes for plan in plans if plan.source == "fresh" and plan.spec is not None
    )
    known = all(plan.source in ("fresh", "view", "argument", "absent") for plan in plans)
    seen = bool(recipe.kept) or bool(
        recipe.written
    )  # what neither gives nor writes is called for its effects
    recipe.lazy = known and seen and not recipe.write_back and not recipe.operator.draws()
    recipe.draws = recipe.operator.draws_alone() and known and not (recipe.conversions or recipe.write_back)
    alone = recipe.single and len(plans) == len(recipe.kept) == 1
    if recipe.lazy and alone and not (recipe.conversions or recipe.written or recipe.moves):
        recipe.simple = plans[0]
