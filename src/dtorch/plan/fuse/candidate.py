"""A region that might be fused, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass

from dtorch.op import document
from dtorch.plan.fuse.operator import Fuse, FuseParam
from dtorch.plan.structure import Selection, Structure


@dataclass(frozen=True)
class Candidate:
    """Calls that might become one.

    Attributes:
        kind: "chain", "broadcast", "norm", "softmax", "epilogue", "update" where a call writes, or "siblings"
            where they are several regions beside each other.
        nodes: the calls, in order.
        at: the one of them in whose place it runs; the last, but for siblings.
        inputs: numbers of the operands that it reads from outside, as first read.
        outputs: numbers of those that somebody else reads.
        unfused_ns, fused_ns: the price either way, of the device with most to do.
        fused: whether it is to be.
        reason: why, or why not.
        by_blocks: whether the first of the calls is a product, made block by block with those behind it.
    """

    kind: str
    nodes: tuple[int, ...]
    at: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    unfused_ns: int
    fused_ns: int
    fused: bool
    reason: str
    by_blocks: bool

    @property
    def saving_ns(self) -> int:
        """What fusing saves, by the price."""
        return self.unfused_ns - self.fused_ns

    @property
    def best_ns(self) -> int:
        """The price of the calls as they would be made, fused or not."""
        return self.fused_ns if self.fused else self.unfused_ns


def fuse_of(structure: Structure, candidate: Candidate) -> Fuse:
    """The calls of a candidate as one operator.

    Args:
        structure: of the sequence as it runs, the candidate's calls in it.
        candidate: which calls.
    """
    from dtorch.op.operand import prototype
    from dtorch.plan.serialize import to_document

    file = to_document(structure, Selection(candidate.nodes, candidate.outputs, candidate.inputs))
    fuse = Fuse(FuseParam(document.to_json(file)), [prototype(structure.spec(n)) for n in candidate.inputs])
    fuse.infer()
    return fuse
