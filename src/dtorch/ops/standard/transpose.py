"""transpose and t: two dims change places.

Shapes      x [... a ... b ...] -> y [... b ... a ...]; t: of a matrix, a vector stays
FLOPs       none, traffic none
Placements  as permute (`permute.py`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dtorch.ops.standard.permute import Permute


class Transpose(Permute):
    """transpose(dim0, dim1), t()."""

    torch_ops: ClassVar[Sequence[str]] = ("aten.t", "aten.transpose.int")
    kinds: ClassVar[Mapping[str, str]] = {"aten.t": "Transpose"}

    def order(self) -> list[int]:
        """The input dim that each output dim is."""
        ndim = len(self.shapes[0] or ())
        order = list(range(ndim))
        if self.name == "aten.t":
            return order[::-1]
        if ndim:
            a, b = self.arguments["dim0"] % ndim, self.arguments["dim1"] % ndim
            order[a], order[b] = order[b], order[a]
        return order
