"""Embedding: rows of a table by id, and the table's gradient.

    y[b, e] = w[id[b], e]              dw[v, e] = sum over b with id[b] = v of dy[b, e]

Shapes      w [v e], ids [b] (any rank) -> y [b e];  dy [b e], ids [b] -> dw [v e]
FLOPs       bound by memory; touched are ids, the rows read, and what is written
Placements  on one mesh axis, b any dim of the ids

    w       ids     y               dy      ids     dw
    R       R       R               R       R       R
    R       S(b)    S(b)            S(b)    S(b)    P     not with scale_grad_by_freq
    S(e)    R       S(e)            S(e)    R       S(e)
    S(v)    R       P               P       R       P
    P       R       P

In row S(v) each device looks up the ids it holds, and gives zeros for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from dtorch.op.dims import Rule
from dtorch.op.operator import Dims, Local, Operator
from dtorch.op.priced import touched
from dtorch.ops.standard.gather import masked_rows


class Embedding(Operator):
    """embedding(weight, indices, padding_idx): padding concerns the gradient only."""

    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.embedding": Dims("weight[v e], indices[...] -> y[... e]", ("weight",)),
    }

    def is_torch_call(self, local: Local) -> bool:
        """Where the table is not cut into rows."""
        layout = self.layouts[0]
        assert layout is not None
        return not layout.axes_of(0)

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """By torch where the table is not cut into rows."""
        if self.is_torch_call(local):
            super().compute(inputs, outputs, local)
            return
        weight, ids = inputs
        layout = self.layouts[0]
        assert layout is not None
        rows = masked_rows(weight, ids.reshape(-1), layout, 0, local.coord)
        outputs[:] = [rows.view(*ids.shape, weight.shape[1])]

    def traffic_bytes(self) -> int:
        """Ids, and the rows read and written."""
        return sum(map(touched, self.inputs[1:])) + 2 * sum(map(touched, self.outputs))


class EmbeddingBackward(Operator):
    """embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)."""

    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.embedding_dense_backward": Dims(
            "grad_output[... e], indices[...] -> dw[v e]", ("grad_output",)
        ),
    }
    kinds = "EmbeddingBackward"

    def rule(self) -> Rule | None:
        """Frequencies are those of the whole batch."""
        found = super().rule()
        if found is None or not self.arguments["scale_grad_by_freq"]:
            return found
        return replace(found, whole=found.whole | {name for name in found.sizes if name.startswith(".")})
