"""What an operator costs: the whole of it, and what one device does of it.

The price of a device is that of the call which the device makes: the same operator, on operands of the sizes
that it holds. So a formula is written once, over the sizes of the operands, and no family speaks of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Self

from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import OutputMeta
from dtorch.op.called import Called
from dtorch.op.cost import OperatorCost
from dtorch.op.dims import Rule
from dtorch.op.operand import Operand
from dtorch.op.param import OpParam
from dtorch.spec import Spec

Coord = tuple[int, ...]

_NOWHERE = DeviceMesh("cpu")

STATISTICS, HALO = "statistics", "halo"
WITHIN = frozenset({STATISTICS, HALO})
"""Kinds of communication that are part of an operator, while it computes."""


class Priced(Called):
    """Base of `Operator` with its prices; asked after `infer()`, reads the operands, never infers again."""

    sends: ClassVar[str] = STATISTICS
    """Which of `WITHIN` the kernel makes devices send."""

    outputs: tuple[Operand | None, ...]
    output_metas: tuple[OutputMeta | None, ...]

    @cached_property
    def cached_rule(self) -> Rule | None:
        """What the dims of the tensors mean."""
        raise NotImplementedError

    # -- what families fill in ------------------------------------------------------------------------------

    def get_operator_cost(self) -> OperatorCost:
        """FLOPs or bytes of the operator, by the documents' two channels."""
        flops = self.flops()
        if flops is not None:
            return OperatorCost.compute(flops)
        return OperatorCost.from_operands(self.inputs, self.outputs)

    def flops(self) -> int | None:
        """FLOPs, None where memory bounds the operator; by default the formula of the rule."""
        rule = self.cached_rule
        flops = None if rule is None else rule.evaluate_flops()
        return None if flops is None else self.real_operations() * flops

    def real_operations(self) -> int:
        """What a multiply-add counts over its 2: a complex one is 4 multiplications and 4 additions."""
        return 4 if any(x is not None and x.spec.dtype.is_complex for x in self.inputs) else 1

    def recomputed_flops(self) -> int:
        """FLOPs that a kernel spends again on what the forward had computed; no part of `flops()`."""
        return 0

    def causal_flops(self, block: int = 1) -> int | None:
        """`flops()` less what a causal kernel leaves out: blocks of `block` x `block` above the diagonal."""
        return self.flops()

    def traffic_bytes(self) -> int:
        """Bytes really touched, each once: of every input, and of every output that is no input."""
        return self.operand_bytes()

    def operand_bytes(self) -> int:
        """`touched` of all operands; an output that is an input (in-place) is the same memory."""
        written = self.returned_inputs()
        fresh = [y for number, y in enumerate(self.results) if number not in written]
        return sum(map(touched, (*self.inputs, *fresh)))

    @property
    def results(self) -> tuple[Operand | None, ...]:
        """The outputs as far as they are known."""
        return self.outputs

    def statistics_axes(self) -> tuple[int, ...]:
        """Mesh axes over which the kernel combines statistics: those that cut a `d~` dim of an input."""
        rule = self.cached_rule
        if rule is None or not rule.stats:
            return ()
        found: dict[int, None] = {}
        for x, names in zip(self.inputs, rule.inputs, strict=True):
            for dim, name in enumerate(names or ()):
                if name in rule.stats and x is not None:
                    found.update(dict.fromkeys(x.layout.axes_of(dim)))
        return tuple(sorted(found))

    def sending_axes(self) -> tuple[int, ...]:
        """Mesh axes over which the kernel makes devices send."""
        return self.statistics_axes()

    def statistics_bytes(self) -> int:
        """Bytes received by all devices together for statistics that the kernel combines itself."""
        return 0

    def received_bytes(self) -> tuple[int, ...]:
        """Bytes that each device receives, in mesh order; a ring spreads statistics evenly."""
        sent = self.statistics_bytes()
        if not sent:
            return ()
        share, rest = divmod(sent, self.mesh.size)
        return tuple(share + (position < rest) for position in range(self.mesh.size))

    # -- prices ---------------------------------------------------------------------------------------------

    def price(self) -> OperatorCost:
        """`get_operator_cost()` of the whole operator, with all that stands beside it: see `OperatorCost`."""
        return self._priced(self.received_bytes())

    def _priced(self, received: Sequence[int]) -> OperatorCost:
        return replace(
            self.get_operator_cost(),
            traffic_bytes=self.traffic_bytes(),
            recomputed_flops=self.recomputed_flops(),
            sent_bytes=sum(received),
            sent_bytes_max=max(received, default=0),
        )

    @property
    def priced_mesh(self) -> DeviceMesh:
        """The mesh whose devices have a `local_price`; an operator without operands is priced as a whole."""
        return next((o.spec.mesh for o in (*self.inputs, *self.outputs) if o is not None), _NOWHERE)

    def local_price(self, coord: Coord) -> OperatorCost:
        """The price of what the device at mesh coordinate `coord` does; `sent_bytes` is what it receives."""
        return self._local_prices[self.priced_mesh.coords.index(tuple(coord))]

    def price_max(self) -> OperatorCost:
        """The largest `local_price` of all devices, channel by channel; the slowest sets the pace."""
        found = set(self._local_prices)

        def largest(channel: Callable[[OperatorCost], int | None]) -> Any:
            return max((n for cost in found if (n := channel(cost)) is not None), default=None)

        return OperatorCost(
            flops=largest(lambda cost: cost.flops),
            bandwidth_bytes=largest(lambda cost: cost.bandwidth_bytes),
            traffic_bytes=largest(lambda cost: cost.traffic_bytes),
            recomputed_flops=largest(lambda cost: cost.recomputed_flops),
            sent_bytes=largest(lambda cost: cost.sent_bytes),
            sent_bytes_max=largest(lambda cost: cost.sent_bytes),
            known=all(cost.known for cost in found),
        )

    @cached_property
    def _local_prices(self) -> tuple[OperatorCost, ...]:
        """The price of every device, in mesh order; devices that hold equal sizes are priced once."""
        received = self.received_bytes() or (0,) * self.priced_mesh.size
        seen: dict[Any, OperatorCost] = {}
        prices = []
        for coord, device, count in zip(self.priced_mesh.coords, self.priced_mesh.device_ids, received):
            held = [_place(operand, device) for operand in (*self.inputs, *self.outputs)]
            shapes = [None if o is None or at is None else o.layout.local_shape(at) for o, at in held]
            key = (count, *shapes)
            if key not in seen:
                seen[key] = self.at(coord)._priced((count,))
            prices.append(seen[key])
        return tuple(prices)

    def at(self, coord: Coord) -> Priced:
        """The operator on what the device at `coord` holds, to be priced, not to be run."""
        device = self.priced_mesh.device_ids[self.priced_mesh.coords.index(tuple(coord))]
        found = self.forgetful()
        found.param = self.local_param(coord)
        found.inputs = tuple(_local(x, device) for x in self.inputs)
        found.outputs = tuple(_local(y, device) for y in self.outputs)
        found.output_metas = metas_of(found.outputs)
        return found

    def forgetful(self) -> Self:
        """A copy that has nothing worked out: what it is worked out from may be changed."""
        found = copy(self)
        for name in list(vars(found)):
            if isinstance(getattr(type(self), name, None), cached_property):
                del vars(found)[name]
        return found

    def local_param(self, coord: Coord) -> OpParam:
        """The parameters as the device at `coord` uses them, where a price depends on those."""
        return self.param


def metas_of(operands: Sequence[Operand | None]) -> tuple[OutputMeta | None, ...]:
    """Shapes, strides and dtypes of operands."""
    return tuple(None if y is None else OutputMeta(y.shape, y.spec.stride, y.spec.dtype) for y in operands)


def touched(operand: Operand | None) -> int:
    """Bytes of the memory behind an operand, each once: elements that share a place count as one."""
    if operand is None:
        return 0
    spec = operand.spec
    if 0 in spec.shape:
        return 0
    places = prod(n for n, step in zip(spec.shape, spec.stride, strict=True) if step)
    span = 1 + sum((n - 1) * abs(step) for n, step in zip(spec.shape, spec.stride, strict=True))
    return min(places, span) * spec.itemsize


def _place(operand: Operand | None, device: int) -> tuple[Operand | None, Coord | None]:
    """Where on its own mesh a device holds an operand; None where it is not on that mesh."""
    if operand is None or device not in operand.spec.mesh.device_ids:
        return None, None
    mesh = operand.spec.mesh
    return operand, mesh.coords[mesh.device_ids.index(device)]


def _local(operand: Operand | None, device: int) -> Operand | None:
    """What a device holds of an operand, as an operand of that device alone."""
    operand, coord = _place(operand, device)
    if operand is None or coord is None:
        return None
    spec, shape = operand.spec, operand.layout.local_shape(coord)
    one = DeviceMesh(spec.mesh.device_type)
    return Operand(Spec(shape, spec.stride, spec.dtype, Layout.replicate((), shape), one))
