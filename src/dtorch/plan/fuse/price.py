"""What a region costs unfused and fused, in whole nanoseconds.

    unfused   sum over the calls of a + max(bytes / rate, arithmetic)
    fused     a' + max(border bytes / rate, sum of the arithmetic)

`rate` is that of the caches or of memory, by the working set. The steps between pass through the caches in a
fused loop, in time of their arithmetic; so rho, on-chip over off-chip bandwidth, bounds what is saved.
"""

from __future__ import annotations

from typing import Any

from dtorch.plan.fuse.rates import Rates
from dtorch.spec import Spec

LEAST_SHARE = 8
"""A region must save one part in so many of its unfused price, or it is not worth compiling."""


def call_ns(operator: Any, coord: tuple[int, ...], rates: Rates, working_set: int) -> int:
    """One call on the device at a coordinate."""
    nbytes = operator.local_price(coord).traffic_bytes or 0
    return rates.call_ns + max(rates.moved_ns(nbytes, working_set), _arithmetic_ns(operator, coord, rates))


def _arithmetic_ns(operator: Any, coord: tuple[int, ...], rates: Rates) -> int:
    specs = [x.spec for x in (*operator.inputs, *operator.outputs) if x is not None]
    count = max((spec.layout.local_numel(coord) for spec in specs), default=0)
    return count * rates.element_ps.get(operator.name, 0) // 1000


def unfused_ns(operators: list[Any], coord: tuple[int, ...], rates: Rates) -> int:
    """All calls of a region one after the other."""
    working_set = max((op.local_price(coord).traffic_bytes or 0 for op in operators), default=0)
    return sum(call_ns(operator, coord, rates, working_set) for operator in operators)


def fused_ns(
    operators: list[Any],
    inputs: list[Spec | None],
    outputs: list[Spec],
    coord: tuple[int, ...],
    rates: Rates,
) -> int:
    """The same as one loop."""
    tensors = [spec for spec in inputs if spec is not None]
    border = sum(spec.layout.local_numel(coord) * spec.itemsize for spec in (*tensors, *outputs))
    arithmetic = sum(_arithmetic_ns(operator, coord, rates) for operator in operators)
    fixed = rates.region_ns + rates.input_ns * (len(tensors) + len(outputs))
    fixed += rates.number_ns * (len(inputs) - len(tensors))
    return fixed + max(rates.moved_ns(border, border), arithmetic)


def pays(unfused: int, fused: int) -> bool:
    """Whether the saving is worth it."""
    return (unfused - fused) * LEAST_SHARE >= unfused
