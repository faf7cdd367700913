"""The pass that fuses: regions by price, run as one call each from when they are compiled."""

from __future__ import annotations

from dataclasses import dataclass

from dtorch.plan.fuse.planner import candidates
from dtorch.plan.fuse.region import FusedCall
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.table import Pass


@dataclass(frozen=True)
class Fusion(Pass):
    """No table of single calls: regions grow over many."""

    def run(self, draft: Draft) -> None:
        """Find the regions; put those that are compiled in the place of their calls."""
        draft.candidates = candidates(draft)
        for candidate in draft.candidates:
            if candidate.nodes in draft.ready:
                draft.fuse(draft.ready[candidate.nodes])
            elif candidate.fused:
                draft.waiting.append(FusedCall(draft, candidate))


FUSION = Fusion("fusion", "run element-wise calls as one, compiled", (), modes=("exact", "fast"))
