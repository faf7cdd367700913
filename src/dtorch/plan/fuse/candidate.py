"""A region that might be fused, and what was decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dtorch.op import document
from dtorch.plan.fuse.operator import Fuse, FuseParam
from dtorch.plan.structure import Selection


@dataclass(frozen=True)
class Candidate:
    """Calls that might become one.

    Attributes:
        kind: "chain", "broadcast", "norm", "softmax" or "epilogue".
        nodes: the calls, in order; it runs in the place of the last.
        inputs: numbers of the operands that it reads from outside, as first read.
        outputs: numbers of those that somebody else reads.
        make: makes `operator`; None where nothing was priced.
        unfused_ns, fused_ns: the price either way, of the device with most to do.
        fused: whether it is to be.
        reason: why, or why not.
    """

    kind: str
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    make: Callable[[], Fuse] | None
    unfused_ns: int
    fused_ns: int
    fused: bool
    reason: str

    @cached_property
    def operator(self) -> Fuse | None:
        """The calls as one operator, made when it is first asked for; None where nothing was priced."""
        return None if self.make is None else self.make()

    @property
    def saving_ns(self) -> int:
        """What fusing saves, by the price."""
        return self.unfused_ns - self.fused_ns


def fuse_of(
    structure: Any, nodes: tuple[int, ...], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Fuse:
    """Calls as one operator.

    Args:
        structure: of the sequence as it stands, or the draft of one.
        nodes, inputs, outputs: as of a candidate.
    """
    from dtorch.op.operand import prototype
    from dtorch.plan.serialize import to_document

    file = to_document(structure, Selection(nodes, outputs, inputs))
    fuse = Fuse(FuseParam(document.to_json(file)), [prototype(structure.spec(n)) for n in inputs])
    fuse.infer()
    return fuse
