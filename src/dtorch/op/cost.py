"""The price of one operator.

Two channels, and usually one is set: floating-point operations where arithmetic bounds the operator, bytes
moved through memory where that does, both for a mixed one. Beside them stands what a roofline and a plan also
need: the bytes really touched, and the bytes received from other devices.

    OperatorCost.compute(2 * m * k * n)               OperatorCost[flops=...]
    OperatorCost.from_operands([x, w], [y])           OperatorCost[bandwidthBytes=...]
    OperatorCost()                                    OperatorCost[none]: free by nature
    OperatorCost.unknown()                            OperatorCost[unknown]: not free, nobody knows

Costs add up, so the price of a graph is `sum(costs, OperatorCost())`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from dtorch.errors import OperatorError

_CHANNELS = ("flops", "bandwidth_bytes", "traffic_bytes")
_SUMS = ("sent_bytes", "sent_bytes_max", "recomputed_flops")


class HasBytes(Protocol):
    """What a price reads of an operand: its whole size in bytes, all dims, all devices together once."""

    @property
    def nbytes(self) -> int:
        """Number of elements times bytes per element."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """What an operator costs, as a value; made by the functions below, or `OperatorCost()` for nothing.

    Args:
        flops: floating-point operations, a multiply-add is 2; None where arithmetic does not bound it.
        bandwidth_bytes: bytes of the operands; None where memory does not bound it.
        traffic_bytes: bytes really touched (a view: 0, a lookup: the rows read); None where not stated yet.
        sent_bytes: bytes received from other devices, summed over the devices.
        sent_bytes_max: the same for the device that receives most. In a sum it is the sum of these, which no
            device exceeds.
        known: False where the price, or part of it, could not be worked out.
        recomputed_flops: FLOPs spent again on what the forward had computed, beside `flops`.

    Raises:
        OperatorError: a number that is negative or no int, or `sent_bytes_max` above `sent_bytes`.
    """

    flops: int | None = None
    bandwidth_bytes: int | None = None
    traffic_bytes: int | None = 0
    sent_bytes: int = 0
    sent_bytes_max: int = 0
    known: bool = True
    recomputed_flops: int = 0

    def __post_init__(self) -> None:
        for name in (*_CHANNELS, *_SUMS):
            value = getattr(self, name)
            if value is None and name in _CHANNELS:
                continue
            if type(value) is not int or value < 0:
                raise OperatorError(f"OperatorCost: {name} must be an int of at least 0, got {value!r}")
        if self.sent_bytes_max > self.sent_bytes:
            raise OperatorError(
                f"OperatorCost: one device receives {self.sent_bytes_max} bytes (sent_bytes_max) "
                f"and all together {self.sent_bytes} (sent_bytes)"
            )

    @classmethod
    def compute(cls, flops: int, *, traffic_bytes: int | None = None) -> OperatorCost:
        """The cost of an operator bound by arithmetic; its traffic stays open unless given."""
        return cls(flops=flops, traffic_bytes=traffic_bytes)

    @classmethod
    def memory(cls, bandwidth_bytes: int, *, traffic_bytes: int | None = None) -> OperatorCost:
        """The cost of an operator bound by memory; its traffic is `bandwidth_bytes` unless given."""
        traffic = bandwidth_bytes if traffic_bytes is None else traffic_bytes
        return cls(bandwidth_bytes=bandwidth_bytes, traffic_bytes=traffic)

    @classmethod
    def compute_and_memory(
        cls, flops: int, bandwidth_bytes: int, *, traffic_bytes: int | None = None
    ) -> OperatorCost:
        """The cost of a mixed operator, both channels; its traffic is `bandwidth_bytes` unless given."""
        traffic = bandwidth_bytes if traffic_bytes is None else traffic_bytes
        return cls(flops=flops, bandwidth_bytes=bandwidth_bytes, traffic_bytes=traffic)

    @classmethod
    def from_operands(
        cls,
        inputs: Iterable[HasBytes | None],
        outputs: Iterable[HasBytes | None],
        *,
        traffic_bytes: int | None = None,
    ) -> OperatorCost:
        """Bytes of all inputs and outputs; None, an absent optional operand such as a bias, counts 0."""
        operands = (*inputs, *outputs)
        total = sum(operand.nbytes for operand in operands if operand is not None)
        return cls.memory(total, traffic_bytes=traffic_bytes)

    @classmethod
    def unknown(cls, *, traffic_bytes: int | None = None) -> OperatorCost:
        """The cost of an operator whose FLOPs nobody can tell; unlike `OperatorCost()` it is not free."""
        return cls(traffic_bytes=traffic_bytes, known=False)

    def is_compute_bound(self) -> bool:
        """Whether FLOPs are stated; a mixed cost is bound by both."""
        return self.flops is not None

    def is_memory_bound(self) -> bool:
        """Whether bandwidth bytes are stated; a mixed cost is bound by both."""
        return self.bandwidth_bytes is not None

    def has_cost(self) -> bool:
        """Whether either channel is stated."""
        return self.is_compute_bound() or self.is_memory_bound()

    @property
    def state(self) -> str:
        """known, unknown, or free: nothing is computed, touched or sent, such as for a view."""
        if not self.known:
            return "unknown"
        return "known" if self.flops or self.traffic_bytes != 0 or self.sent_bytes else "free"

    def __add__(self, other: OperatorCost) -> OperatorCost:
        """Both together. An absent channel adds nothing; traffic that one side leaves open is open."""
        if not isinstance(other, OperatorCost):
            return NotImplemented
        open_traffic = self.traffic_bytes is None or other.traffic_bytes is None
        return OperatorCost(
            flops=_add(self.flops, other.flops),
            bandwidth_bytes=_add(self.bandwidth_bytes, other.bandwidth_bytes),
            traffic_bytes=None if open_traffic else _add(self.traffic_bytes, other.traffic_bytes),
            sent_bytes=self.sent_bytes + other.sent_bytes,
            sent_bytes_max=self.sent_bytes_max + other.sent_bytes_max,
            known=self.known and other.known,
            recomputed_flops=self.recomputed_flops + other.recomputed_flops,
        )

    def __str__(self) -> str:
        parts = []
        if self.flops is not None:
            parts.append(f"flops={self.flops}")
        if self.bandwidth_bytes is not None:
            parts.append(f"bandwidthBytes={self.bandwidth_bytes}")
        if not self.known:
            parts.append("unknown")
        return f"OperatorCost[{', '.join(parts) or 'none'}]"


def _add(a: int | None, b: int | None) -> int | None:
    return a if b is None else b if a is None else a + b
