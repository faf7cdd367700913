"""What a region costs unfused and fused, in whole nanoseconds.

    unfused   sum over the calls of a + max(bytes / rate, arithmetic)
    fused     a' + max(border bytes / rate, sum of the arithmetic)
    blocked   k (a + a') + the product's arithmetic + what is fused, its result read at the caches' rate
              + k times the bytes that each block reads anew

`rate` is that of the caches or of memory, by the memory that the call touches. A result that is written over
an operand is no memory of its own, but it is read and written all the same. The steps between pass through
registers in a fused loop, in the time of their arithmetic; rho, on-chip over off-chip bandwidth, says how
much dearer they are as calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtorch.inductor.cut import Cut
from dtorch.plan.fuse.rates import Rates
from dtorch.spec import Spec

FAULTED_BYTES = 2**25
"""From here on the C library takes memory from the operating system anew, whatever was freed before."""

LEAST_SHARE = 8
"""A region must save one part in so many of its unfused price, or it is not worth compiling."""

REFUSED = f"saves less than one part in {LEAST_SHARE}; "
"""How the reason of a region begins that does not."""


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
    tensors = [spec for spec in (*inputs, *outputs) if spec is not None]
    border = sum(spec.layout.local_numel(coord) * spec.itemsize for spec in tensors)
    arithmetic = 0
    for operator in operators:
        own = rates.element_ps.get(operator.name, rates.step_ps)
        arithmetic += _elements(operator, coord) * rates.compiled_ps.get(operator.name, own) // 1000
    return _region_call_ns(inputs, outputs, rates) + max(rates.moved_ns(border), arithmetic)


def _region_call_ns(inputs: Sequence[Spec | None], outputs: Sequence[Spec], rates: Rates) -> int:
    """What calling a region costs beside its bytes."""
    numbers = sum(spec is None for spec in inputs)
    tensors = len(inputs) + len(outputs) - numbers
    return rates.region_ns + rates.input_ns * tensors + rates.number_ns * (numbers > 0)


def product_ns(product: Any, kept: bool, coord: tuple[int, ...], rates: Rates) -> int:
    """A product by itself.

    Args:
        product: the operator.
        kept: whether its result goes into memory that was touched before.
        coord: of the device.
        rates: of the machine.
    """
    spec = product.outputs[0].spec
    result = spec.layout.local_numel(coord) * spec.itemsize
    fresh = 0 if kept or result < FAULTED_BYTES else result * 1000 // rates.fresh
    moved = rates.moved_ns(product.local_price(coord).traffic_bytes or 0)
    return rates.call_ns + max(moved, _work_ns(product, coord, rates)) + fresh


def blocked_ns(
    product: Any,
    behind: Sequence[Any],
    inputs: Sequence[Spec | None],
    outputs: Sequence[Spec],
    cut: Cut,
    coord: tuple[int, ...],
    rates: Rates,
) -> int:
    """A product and the calls behind it, block by block: what it gives is in the caches when they read it.

    Args:
        product: the operator.
        behind: the calls.
        inputs: what the calls read beside the product's result.
        outputs: what leaves.
        cut: of the device.
        coord: of the device.
        rates: of the machine.
    """
    count, spec = len(cut.starts), product.outputs[0].spec
    nbytes = spec.layout.local_numel(coord) * spec.itemsize
    chip = 1000 * (product.local_price(coord).traffic_bytes or 0) // rates.chip
    again = _read_whole(product, cut, coord) * 2 * (count - 1)  # each block packs it for itself
    calls = (count - 1) * (rates.call_ns + _region_call_ns([*inputs, spec], outputs, rates)) + rates.call_ns
    rest = fused_ns(behind, inputs, outputs, coord, rates) + rates.input_ns + nbytes * 1000 // rates.chip
    twice = (max(chip, _work_ns(product, coord, rates)) + rest) * (count * cut.size) // cut.extent
    return calls + twice + again * 1000 // rates.chip


def _work_ns(product: Any, coord: tuple[int, ...], rates: Rates) -> int:
    """A product's arithmetic; of float64, twice that of float32."""
    flops = product.local_price(coord).flops or 0
    return int(flops * product.outputs[0].spec.itemsize * 250 // rates.flops)


def _read_whole(product: Any, cut: Cut, coord: tuple[int, ...]) -> int:
    """Bytes of a product's operands that each block reads."""
    specs = [x.spec for x in product.inputs]
    whole = [s for s, i in zip(specs, cut.first, strict=True) if s is not None and cut.inputs[i] < 0]
    return sum(spec.layout.local_numel(coord) * spec.itemsize for spec in whole)


def pays(unfused: int, fused: int) -> bool:
    """Whether the saving is worth it."""
    return (unfused - fused) * LEAST_SHARE >= unfused
