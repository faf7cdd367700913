"""What reductions share whose results are combined between the devices that cut a reduced dim.

A reduction goes over the dims that `dim` names, all of them where it names none; they are gone from the
output, or stay with size 1 (keepdim).
"""

from __future__ import annotations

from collections.abc import Sequence

from dtorch.op.dims import Rule
from dtorch.ops.standard.statistics import Statistics, dim_names, kept_names, named_dims, reduced_shape


class Reduction(Statistics, abstract=True):
    """Base of reductions over the dims that the argument `dim` names."""

    @property
    def reduced(self) -> tuple[int, ...]:
        """The dims that are reduced."""
        return named_dims(self, len(self.shapes[0] or ()))

    @property
    def keepdim(self) -> bool:
        """Whether these dims stay, with size 1."""
        return bool(self.arguments.get("keepdim"))

    def reduction_rule(self, num_outputs: int = 1) -> Rule:
        """All dims may be cut; over the reduced ones statistics are combined."""
        names = dim_names(len(self.shapes[0] or ()))
        kept = kept_names(names, self.reduced, self.keepdim)
        return Rule((names,), (kept,) * num_outputs, stats=frozenset(names[d] for d in self.reduced))

    def output_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the result for an input of this shape, a shard's for instance."""
        return reduced_shape(shape, self.reduced, self.keepdim)
