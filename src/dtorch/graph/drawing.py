"""Random numbers drawn when the call is made, while the calls around it wait.

torch's stream is drawn from in the order of the program. The numbers depend on no value, so nothing that is
pending has to run first: they are operands from outside, like plain tensors. What they overwrite is either
not made at all, where it was made for that (`empty_like(x).bernoulli_()`, a dropout's mask), or a copy into
it is recorded. Of an operator that draws and computes, the numbers are drawn and the rest is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dtorch import redistribute
from dtorch.graph.recipe import Recipe
from dtorch.op.operand import Operand, Parts
from dtorch.op.param import Slot, TorchCall
from dtorch.ops.standard.dropout import Dropout
from dtorch.ops.standard.random import Random
from dtorch.redistribute.local_work import LocalWork
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.constructor import GraphConstructor

_COPY = TorchCall("aten.copy_.default", (Slot(0), Slot(1)), {})
_MULTIPLY = TorchCall("aten.mul.Tensor", (Slot(0), Slot(1)), {})


def may_wait(constructor: GraphConstructor, recipe: Recipe) -> bool:
    """Whether to draw now and let all else wait; with nothing pending the call may as well run.

    A call that somebody collects runs as ever. In a function that is captured nothing may run; the draw is
    put on the tape, so that a replay draws anew.
    """
    if not recipe.draws or constructor.graph.recorders:
        return False
    return constructor.captured or bool(constructor.pending.nodes)


@dataclass(frozen=True)
class Draw:
    """Draws the parts of an operand.

    Attributes:
        operator: what draws.
        spec: of the operand.
        others: the operator's inputs beside the first one: generators, or None.
    """

    operator: Random | Dropout
    spec: Spec
    others: tuple[Any, ...]

    def __call__(self) -> Parts:
        """Parts of their own."""
        spec = self.spec
        full = self.operator.draw(self.others)
        if spec.layout.is_replicate and spec.mesh.shares_storage:
            return [full] * spec.mesh.size
        return redistribute.split(full, spec.layout, spec.mesh)


def ahead(constructor: GraphConstructor, recipe: Recipe, operands: Sequence[Any]) -> list[Any]:
    """Draw, and say what the call gives, as `GraphConstructor.call` does."""
    operator, x, plans = recipe.operator, operands[0], recipe.outputs
    assert isinstance(operator, Random | Dropout)
    assert plans is not None
    written = bool(recipe.written)
    spec: Any = x.spec if written else plans[-1].spec
    draw = Draw(operator, spec, tuple([None if o.spec is not None else o.parts.value for o in operands[1:]]))
    fresh = written and _was_made_for_this(constructor, x)
    drawn = _drawn(constructor, draw, x if fresh else Operand(spec))
    if fresh:
        constructor.pending.nodes.pop()
        return [plans[0].input]
    constructor.pending.nbytes += spec.nbytes
    if isinstance(operator, Dropout):
        kept = constructor.add_operator(_MULTIPLY, [x, drawn])
        return [*constructor.add_operator(_times(operator.scale), kept), drawn]
    if not written:
        return [drawn]
    constructor.add_operator(_COPY, [x, drawn])
    return [plans[0].input]


def _drawn(constructor: GraphConstructor, draw: Draw, into: Operand) -> Operand:
    with LocalWork(), torch._C.DisableTorchFunction():
        parts = draw() if constructor.tape is None else constructor.tape.draw(draw)
    into.parts = parts
    if constructor.tape is not None:
        constructor.tape.make(into, draw)
    return into


def _times(number: float) -> TorchCall:
    return TorchCall("aten.mul.Tensor", (Slot(0), number), {})


def _was_made_for_this(constructor: GraphConstructor, x: Operand) -> bool:
    """Whether the last pending call makes what is overwritten now, and nothing has viewed or read it.

    Drawn parts have no gaps, so it must have none.
    """
    if not constructor.pending.nodes:
        return False
    recipe, _, outputs, _ = constructor.pending.nodes[-1]
    fresh = recipe.outputs is not None and all(plan.source == "fresh" for plan in recipe.outputs)
    untouched = outputs == (x,) and x.shared is None and x.converted is None
    return fresh and not recipe.written and untouched and x.spec.is_dense
