"""A replay writes its large results into memory that it keeps.

The kernel is the one that torch calls with memory of its own, so the bits are the same. A gradient that the
program still holds keeps its block; one that it has let go of gives the block to the next replay. Done on
cpu, for results of one call of torch, where that call has a form that writes into what it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch

from dtorch.inductor.listing import PRESENT
from dtorch.op.binding import function_of
from dtorch.op.call import arguments_text
from dtorch.op.local import Local
from dtorch.op.param import Slot
from dtorch.op.schema import schema_of
from dtorch.plan.fuse.legality import local_calls, local_stride
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.reuse import ELEMENT_WISE, fresh_result, out_of
from dtorch.plan.passes.table import Pass, Row
from dtorch.plan.pool import Pool

MIN_BYTES = 2**18
"""Smaller results are left alone: their memory comes from a pool of the C library."""

INTO = ELEMENT_WISE | {
    f"aten.{name}"
    for name in (
        "_log_softmax", "_softmax", "addmm", "baddbmm", "bmm", "mm",
    )
}  # fmt: skip
"""Operators whose kernel writes into what it is given; others have an `out=` that copies."""


def embedding_backward(
    grad: torch.Tensor,
    ids: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """torch's: zeros, to which the rows of the gradient are added in the order of the ids.

    Args:
        grad: [..., e].
        ids: [...].
        num_weights: rows of the table.
        padding_idx: an id whose rows do not count, or -1.
        scale_grad_by_freq: False.
        out: [num_weights, e].
    """
    if PRESENT.listing:
        return torch.ops.aten.embedding_dense_backward(
            grad, ids, num_weights, padding_idx, scale_grad_by_freq
        )
    rows, ids = grad.reshape(-1, grad.shape[-1]), ids.reshape(-1)
    if padding_idx >= 0:
        counts = ids != padding_idx
        rows, ids = rows[counts], ids[counts]
    return out.zero_().index_add_(0, ids, rows)


def _into(operator: Any) -> tuple[Any, str] | None:
    """What to call with memory, and the name of that argument; None where torch has no such call."""
    func = operator.call.func
    if operator.name == "aten.embedding_dense_backward":
        # index_add_ rounds sums of narrower rows otherwise.
        added_alike = operator.inputs[0].spec.dtype in (torch.float32, torch.float64)
        scaled = operator.arguments["scale_grad_by_freq"]
        return (embedding_backward, "out") if added_alike and not scaled else None
    out = out_of(func) if operator.name in INTO else None
    return None if out is None else (out, schema_of(out).outs[0])


class IntoKept:
    """A program that writes its result into a block where it is written into a plan's source."""

    def __init__(
        self, program: Any, calls: list[tuple[int, Local]], into: tuple[Any, str], pool: Pool
    ) -> None:
        self.program = program
        self.calls = calls
        self.func, self.name = into
        self.pool = pool

    def run(self, inputs: Any) -> Any:
        """As it was."""
        return self.program.run(inputs)

    def write(self, source: Any, node: int, inputs: list[Any]) -> list[list[str]]:
        """Write a call for each distinct shard, with a block for its result."""
        operator = self.program.operator
        specs = [None if x is None else x.spec for x in operator.inputs]
        spec = operator.outputs[0].spec
        names: dict[int, str] = {}
        for i, (position, local) in enumerate(self.calls):
            names[position] = f"v{node}_0_{i}"
            stride = local_stride(spec, local.coord)
            assert stride is not None
            take = source.constant(self.pool.taker(spec.local_shape(local.coord), stride, spec.dtype))
            given = [*[part[position] for part in inputs], f"{take}()"]
            kwargs = {**local.kwargs, self.name: Slot(len(inputs), spec)}
            function = self.func
            if isinstance(function, torch._ops.OpOverload):
                function = function_of(function, local.args, kwargs, [*specs, spec])
            text = arguments_text(local.args, kwargs, given.__getitem__, source.constant)
            source.line(f"{names[position]} = {source.constant(function)}({text})", node)
        return [[names[position] for position in self.program.owner]]


def _large(draft: Draft, node: int) -> tuple[list[tuple[int, Local]], tuple[Any, str]] | None:
    """The calls with a large result, and what to call in their place; None where they are left alone."""
    recipe, spec = draft.recipes[node], fresh_result(draft, node)
    if spec is None or recipe.outputs[0].target is not None or not hasattr(recipe.program, "torch_calls"):
        return None
    calls = local_calls(recipe)
    if calls is None:
        return None
    parts = [(spec.layout.local_numel(local.coord), local_stride(spec, local.coord)) for _, local in calls]
    if any(numel * spec.itemsize < MIN_BYTES or stride is None for numel, stride in parts):
        return None
    into = _into(draft.operator(node))
    return None if into is None else (calls, into)


def _keep(draft: Draft, node: int, found: tuple[list[tuple[int, Local]], tuple[Any, str]]) -> str:
    recipe = copy(draft.recipes[node])
    assert draft.facts.pool is not None
    recipe.program = IntoKept(recipe.program, *found, draft.facts.pool)
    draft.recipes[node] = recipe
    return f"its result is written into kept memory, {recipe.outputs[0].spec.nbytes:,} bytes not asked for"


_has_pool: Callable[[Draft], bool] = lambda draft: draft.facts.pool is not None  # noqa: E731

KEPT = Pass("kept", "write large results of replays into kept memory", (Row(_large, _keep),), when=_has_pool)
