"""What operators share that do the same for every member of a batch: leading dims `...` may be cut.

A device runs the torch operator on its members; one without members gives nothing, for kernels refuse that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Local
from dtorch.op.signature import PlacementSignature, Row
from dtorch.ops.standard.pending import PendingRows


class Batched(PendingRows, abstract=True):
    """Base of operators that do not mix members of a batch, but for sums."""

    def rule(self) -> Rule | None:
        """As the base; outputs that are not asked for have no dims that could be cut."""
        found = super().rule()
        return None if found is None else self.trimmed(found)

    def trimmed(self, rule: Rule) -> Rule:
        """The rule without the dims of outputs that are None, or that torch leaves empty."""
        outputs = tuple(
            () if m is None else (UNCUT,) if m.shape == (0,) else names
            for m, names in zip(self.metas, rule.outputs, strict=True)
        )
        return replace(rule, outputs=outputs)

    def get_placement_signature(self) -> PlacementSignature:
        """As the base; what torch leaves empty, of shape [0], is no pending sum, whatever the inputs are."""
        found, rule = super().get_placement_signature(), self.cached_rule
        names = [None] * len(self.metas) if rule is None else rule.outputs
        empty = [
            m is not None and m.shape == (0,) and dims in (None, (UNCUT,))
            for m, dims in zip(self.metas, names, strict=True)
        ]
        rows = [
            Row(row.inputs, tuple("R" if e else role for e, role in zip(empty, row.outputs, strict=True)))
            for row in found.rows
        ]
        return found.with_rows(rows)

    def is_torch_call(self, local: Local) -> bool:
        """Unless a shard has no members."""
        return all(x is None or x.layout.local_numel(local.coord) or 0 in x.shape for x in self.inputs)

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, but for a shard without members."""
        if self.is_torch_call(local):
            super().compute(inputs, outputs, local)
            return
        mine = next(x for x in inputs if x is not None)
        outputs[:] = [
            None if y is None else mine.new_zeros(y.layout.local_shape(local.coord), dtype=y.spec.dtype)
            for y in self.outputs
        ]
