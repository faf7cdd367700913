"""Every torch operator without a rule of its own: inputs whole, run once, outputs as they come.

Shapes      those of the real run, so that data-dependent operators (nonzero, unique, item) work too
FLOPs       unknown
Placements  on one mesh axis

    inputs  outputs
    R       R
"""

from __future__ import annotations

from dtorch.op.cost import OperatorCost
from dtorch.op.operator import Operator


class General(Operator):
    """The general path; the conversions it asks for are visible nodes."""

    def get_operator_cost(self) -> OperatorCost:
        """Nobody has said what the operator costs."""
        return OperatorCost.unknown(traffic_bytes=self.traffic_bytes())
