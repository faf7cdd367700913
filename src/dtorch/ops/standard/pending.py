"""What operators share that let pending sums through in ways that a dims line cannot say."""

from __future__ import annotations

from collections.abc import Sequence

from dtorch.op.call import OutputMeta
from dtorch.op.operator import Operator
from dtorch.op.signature import PlacementSignature, Row


class PendingRows(Operator, abstract=True):
    """Base of operators of which some outputs are linear in an input, others are without it."""

    def pending_rows(self) -> Sequence[Row]:
        """Rows that a dims line cannot say."""
        return ()

    def get_placement_signature(self) -> PlacementSignature:
        """The rows of `rule()`, and `pending_rows()`."""
        found = super().get_placement_signature()
        return found.with_rows([*found.rows, *self.pending_rows()])

    def pending(self, *names: str, outputs: str) -> Row:
        """The row where these arguments, if present, and the outputs marked P are pending, the rest whole."""
        slots = {self.slot(name) for name in names}
        inputs = tuple(None if x is None else "P" if i in slots else "R" for i, x in enumerate(self.inputs))
        return Row(inputs, tuple(outputs))

    @property
    def metas(self) -> tuple[OutputMeta | None, ...]:
        """Metadata of the outputs, inferred when first asked for."""
        if not self.output_metas:
            self.output_metas = tuple(self.infer_output_meta_info())
        return self.output_metas
