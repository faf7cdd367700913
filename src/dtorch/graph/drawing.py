"""Random numbers drawn when the call is made, while the calls around it wait.

torch's stream is drawn from in the order of the program. The numbers depend on no value, so nothing that is
pending has to run first: they are operands from outside, like plain tensors. What they overwrite is either
not made at all, where it was made for that (`empty_like(x).bernoulli_()`, a dropout's mask), or a copy into
it is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dtorch import redistribute
from dtorch.graph.overlap import is_dense
from dtorch.graph.recipe import Recipe
from dtorch.op.operand import Operand
from dtorch.op.param import Slot, TorchCall
from dtorch.ops.standard.random import Random
from dtorch.redistribute.local_work import LocalWork

if TYPE_CHECKING:
    from dtorch.graph.constructor import GraphConstructor

_COPY = TorchCall("aten.copy_.default", (Slot(0), Slot(1)), {})


def may_wait(constructor: GraphConstructor, recipe: Recipe) -> bool:
    """Whether to draw now and let all else wait; with nothing pending the call may as well run.

    A call that somebody collects runs as ever, and so does one in a function that is captured, which refuses
    it: a replay would give the same numbers each time.
    """
    return (
        recipe.draws
        and bool(constructor.pending.nodes)
        and not constructor.graph.recorders
        and not constructor.captured
    )


def ahead(constructor: GraphConstructor, recipe: Recipe, operands: Sequence[Any]) -> list[Any]:
    """Draw, and say what the call gives, as `GraphConstructor.call` does."""
    operator, x, plans = recipe.operator, operands[0], recipe.outputs
    assert isinstance(operator, Random)
    assert plans is not None
    written = bool(recipe.written)
    spec: Any = x.spec if written else plans[0].spec
    with LocalWork(), torch._C.DisableTorchFunction():
        full = operator.draw([None if o.spec is not None else o.parts.value for o in operands[1:]])
        shared = spec.layout.is_replicate and spec.mesh.shares_storage
        parts = [full] * spec.mesh.size if shared else redistribute.split(full, spec.layout, spec.mesh)
    del full
    if not written:
        constructor.pending.nbytes += spec.nbytes
        return [Operand(spec, parts)]
    if _was_made_for_this(constructor, x):
        constructor.pending.nodes.pop()
        x.parts = parts
    else:
        constructor.pending.nbytes += spec.nbytes
        constructor.add_operator(_COPY, [x, Operand(spec, parts)])
    return [plans[0].input]


def _was_made_for_this(constructor: GraphConstructor, x: Operand) -> bool:
    """Whether the last pending call makes what is overwritten now, and nothing has viewed or read it.

    Drawn parts have no gaps, so it must have none.
    """
    recipe, _, outputs, _ = constructor.pending.nodes[-1]
    fresh = recipe.outputs is not None and all(plan.source == "fresh" for plan in recipe.outputs)
    untouched = outputs == (x,) and x.shared is None and x.converted is None
    return fresh and not recipe.written and untouched and is_dense(x.spec)
