"""Why a captured function is refused at a call: what would have to run within it, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtorch.errors import CaptureError
from dtorch.graph.confirm import users_line
from dtorch.graph.recipe import Recipe

_OUTSIDE = "keep it outside"
_ON_MESH = "make it under dtorch.device_mesh(mesh), or distribute it once outside by dtorch.Tensor(x, mesh)"


def asked() -> CaptureError:
    """The function asks for a value."""
    return CaptureError(
        "capture(): the function asks for the value of a distributed tensor (item, bool, print, to_torch "
        f"...); move that out of the function\n  asked at {users_line()}"
    )


def ran(recipe: Recipe, operands: Sequence[Any], plain: Sequence[int]) -> CaptureError:
    """A call cannot be recorded ahead.

    Args:
        recipe: of the call.
        operands: of the call.
        plain: those that are plain tensors.
    """
    what, why = recipe.operator.describe(), _reason(recipe, operands, plain)
    return CaptureError(f"capture(): {what} cannot be recorded ahead: {why}\n  called from {users_line()}")


def _reason(recipe: Recipe, operands: Sequence[Any], plain: Sequence[int]) -> str:
    for i in plain:
        shape, written = list(operands[i].spec.shape), i in recipe.written
        if written:
            return f"it writes the plain tensor of shape {shape}, which is on no mesh; {_ON_MESH}"
    if recipe.outputs is None:
        return f"what it gives is known only when it has run; {_OUTSIDE}"
    if recipe.operator.draws():
        return f"the random numbers that it draws depend on values; {_OUTSIDE}"
    if recipe.write_back:
        written = operands[recipe.write_back[0]]
        where = f"{list(written.spec.shape)} under {list(written.spec.placements)}"
        return (
            f"it writes the tensor of shape {where}, which it has to gather first; redistribute that outside"
        )
    if plain:
        shape = list(max((operands[i].spec for i in plain), key=lambda spec: spec.nbytes).shape)
        return f"it reads the plain tensor of shape {shape}, too large to be copied each time; {_ON_MESH}"
    return _OUTSIDE
