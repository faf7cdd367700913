"""How a tensor is spread over a mesh.

`layout.py` has the `Layout`; `factors.py` the exact form of one dim, `placements.py` how placements say it,
`views.py` what views of torch do to it.
"""

from dtorch.layout.factors import (
    Factor,
    Factors,
    chunk_range,
    coordinates,
    factor_range,
    representative_positions,
)
from dtorch.layout.layout import Layout
from dtorch.layout.placements import FactorShard

__all__ = [
    "Factor",
    "FactorShard",
    "Factors",
    "Layout",
    "chunk_range",
    "coordinates",
    "factor_range",
    "representative_positions",
]
