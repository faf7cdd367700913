"""What is known of a sequence beside its structure where it is captured, and runs again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dtorch.plan.pool import Pool


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a captured sequence; of others, nothing.

    Attributes:
        bind: writes how the plan takes its inputs, see `plan/codegen.py`; None for one list of parts.
        pool: memory that is kept from run to run.
        apart: numbers of operands from outside that share memory with no other one of them.
        constants: numbers from outside that are the same in every run, by the number of their operand.
    """

    bind: Callable[..., None] | None = None
    pool: Pool | None = None
    apart: frozenset[int] = frozenset()
    constants: Mapping[int, float] = field(default_factory=dict)


NONE = Facts()
