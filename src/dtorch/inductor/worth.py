"""When compiling is worth the seconds of another core: a rule for each place, by what is counted there."""

from __future__ import annotations

SAVED_NS = 50_000_000
"""Regions of a plan have a price: they are compiled once its runs would have saved this much by it."""

SPENT_SECONDS = 5.0
"""A captured plan as a whole has none: it is compiled once about as much as it takes went into replays."""

CALLS = 1000
BYTES = 1 << 28
"""A kind of call of a fused operator: from so many calls on, or once its inputs came to so many bytes."""
