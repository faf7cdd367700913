"""The record of a priced program: one frozen entry per node, with its price and where it comes from.

Prices are asked of the operators themselves, once for each operator however many nodes use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dtorch.graph.logical_graph import Communication, Node, communication_of
from dtorch.op.operand import Operand
from dtorch.op.operator import Operator
from dtorch.op.param import TorchCall
from dtorch.ops.standard.convert import Convert
from dtorch.ops.standard.create import MadeParam
from dtorch.perf.recording import Recording, line
from dtorch.spec import Spec


class TensorFacts(NamedTuple):
    """Global shape, dtype ("float32") and placements ("Shard(0)") of an input or output."""

    shape: tuple[int, ...]
    dtype: str
    placements: tuple[str, ...]


class OperatorFacts(NamedTuple):
    """What all uses of one operator have in common.

    Attributes:
        kind, torch_op, describe: its name in tables, torch's overload ("" for dtorch's own), its one line.
        inputs, outputs: its tensors, as the kernels see them.
        flops, flops_max_device: of the whole, and of the device that does most; None where memory bounds it.
        bandwidth_bytes: bytes of the operands, None where arithmetic bounds it.
        traffic_bytes, traffic_bytes_max_device: bytes really touched.
        sent_bytes, sent_bytes_max_device: bytes received from other devices.
        known: whether the price is.
        kernels: how many kernels each device launches; 0 for views and what is local.
        dtype: of the arithmetic.
        recomputed_flops: FLOPs spent again on what the forward had computed, beside `flops`.
    """

    kind: str
    torch_op: str
    describe: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    flops: int | None
    flops_max_device: int | None
    bandwidth_bytes: int | None
    traffic_bytes: int
    traffic_bytes_max_device: int
    sent_bytes: int
    sent_bytes_max_device: int
    known: bool
    kernels: int
    dtype: torch.dtype
    recomputed_flops: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of a priced program.

    Attributes:
        index: its number, in program order.
        facts: of its operator.
        module: path of the module that issued it; for a backward operator, of the module of its forward.
        phase: forward, backward, optimizer or other.
        source: the user's file and line.
        communication: what it makes devices send, None where it is nothing.
        comm_axes: the mesh axes over which it sends.
        imprecise: whether float32 products may be made with tf32.
        reads, writes: numbers of the storages it touches.
    """

    index: int
    facts: OperatorFacts
    module: str
    phase: str
    source: str
    communication: Communication | None
    comm_axes: tuple[int, ...]
    imprecise: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def entries(recording: Recording) -> list[Entry]:
    """The entries of a recording."""
    known: dict[int, OperatorFacts] = {}
    sources: dict[object, str] = {}
    found = []
    for index, (node, made) in enumerate(zip(recording.nodes, recording.made, strict=True)):
        facts = known.get(id(node.operator))
        if facts is None:
            facts = known[id(node.operator)] = facts_of(node.operator)
        source = sources.get(made.place)
        if source is None:
            source = sources[made.place] = line(made.place)
        sent = communication_of(node) if facts.sent_bytes else None
        axes = _axes(node) if sent is not None else ()
        found.append(
            Entry(
                index,
                facts,
                made.module,
                made.phase,
                source,
                sent,
                axes,
                made.imprecise,
                made.reads,
                made.writes,
            )
        )
    return found


def facts_of(operator: Operator) -> OperatorFacts:
    """Price and description of an operator."""
    price, largest = operator.price(), operator.price_max()
    inputs = [x.spec for x in operator.inputs if isinstance(x, Operand)]
    outputs = [y.spec for y in operator.outputs if y is not None]
    return OperatorFacts(
        kind=operator.kind_name(),
        torch_op=operator.param.op if isinstance(operator.param, (TorchCall, MadeParam)) else "",
        describe=operator.describe(),
        inputs=_tensors(inputs),
        outputs=_tensors(outputs),
        flops=price.flops,
        flops_max_device=largest.flops,
        bandwidth_bytes=price.bandwidth_bytes,
        traffic_bytes=price.traffic_bytes or 0,
        traffic_bytes_max_device=largest.traffic_bytes or 0,
        sent_bytes=price.sent_bytes,
        sent_bytes_max_device=price.sent_bytes_max,
        known=price.known,
        kernels=0 if price.state == "free" else 1,
        dtype=_arithmetic(inputs or outputs),
        recomputed_flops=price.recomputed_flops,
    )


def _tensors(specs: Sequence[Spec]) -> tuple[TensorFacts, ...]:
    return tuple(
        TensorFacts(spec.shape, str(spec.dtype).removeprefix("torch."), tuple(map(str, spec.placements)))
        for spec in specs
    )


def _arithmetic(specs: Sequence[Spec]) -> torch.dtype:
    """The dtype of the largest floating-point tensor, in which the arithmetic is done."""
    floats = [spec for spec in specs if spec.dtype.is_floating_point or spec.dtype.is_complex]
    return max(floats or specs, key=lambda spec: spec.nbytes).dtype if specs else torch.float32


def _axes(node: Node) -> tuple[int, ...]:
    """Mesh axes over which a node sends; none for another mesh, or the host."""
    operator = node.operator
    return operator.axes if isinstance(operator, Convert) else operator.sending_axes()
