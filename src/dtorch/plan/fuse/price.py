"""What a region costs unfused and fused, in whole nanoseconds.

    unfused   sum over the calls of a + max(bytes / rate, arithmetic)
    fused     a' + max(border bytes / rate, sum of the arithmetic)

`rate` is that of the caches or of memory, by the memory that the call touches. A result that is written over
an operand is no memory of its own, but it is read and written all the same. The steps between pass through
registers in a fused loop, in the time of their arithmetic; rho, on-chip over off-chip bandwidth, says how
much dearer they are as calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtorch.plan.fuse.rates import Rates
from dtorch.spec import Spec

LEAST_SHARE = 8
"""A region must save one part in so many of its unfused price, or it is not worth compiling."""


def _elements(operator: Any, coord: tuple[int, ...]) -> int:
    """Elements of the largest operand on the device at a coordinate."""
    specs = [x.spec for x in (*operator.inputs, *operator.outputs) if x is not None]
    return max((spec.layout.local_numel(coord) for spec in specs), default=0)


def unfused_ns(operators: Sequence[Any], over: Sequence[bool], coord: tuple[int, ...], rates: Rates) -> int:
    """All calls one after the other.

    Args:
        operators: the calls.
        over: for each of them, whether its result is written over an operand.
        coord: of the device.
        rates: of the machine.
    """
    total = 0
    for operator, in_place in zip(operators, over, strict=True):
        nbytes = held = operator.local_price(coord).traffic_bytes or 0
        if in_place:
            held -= sum(y.layout.local_numel(coord) * y.spec.itemsize for y in operator.outputs if y)
        arithmetic = _elements(operator, coord) * rates.element_ps.get(operator.name, 0) // 1000
        total += rates.call_ns + max(rates.moved_ns(nbytes, held), arithmetic)
    return total


def fused_ns(
    operators: Sequence[Any],
    inputs: Sequence[Spec | None],
    outputs: Sequence[Spec],
    coord: tuple[int, ...],
    rates: Rates,
) -> int:
    """The same as one loop."""
    tensors = [spec for spec in inputs if spec is not None]
    border = sum(spec.layout.local_numel(coord) * spec.itemsize for spec in (*tensors, *outputs))
    arithmetic = 0
    for operator in operators:
        own = rates.element_ps.get(operator.name, rates.step_ps)
        arithmetic += _elements(operator, coord) * rates.compiled_ps.get(operator.name, own) // 1000
    fixed = rates.region_ns + rates.input_ns * (len(tensors) + len(outputs))
    if len(inputs) > len(tensors):
        fixed += rates.number_ns
    return fixed + max(rates.moved_ns(border), arithmetic)


def pays(unfused: int, fused: int) -> bool:
    """Whether the saving is worth it."""
    return (unfused - fused) * LEAST_SHARE >= unfused
