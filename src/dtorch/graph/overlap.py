"""Operands of one call that partly share memory with what it writes: refused, as torch refuses them.

torch asks where the memory of plain tensors lies. Here a view may be a copy, or be converted for the call, so
the question is asked of the memory that the global tensors would have.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtorch.op.operand import Buffer, Operand

TEXT = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
    "memory location. Please clone() the tensor before performing the operation."
)


def refuse_overlap(written: Sequence[int], operands: Sequence[Operand | None]) -> None:
    """Refuse operands of which one is written and another is a part of it that is neither all nor nothing.

    Raises:
        RuntimeError: in torch's words.
    """
    for i in written:
        target = operands[i]
        for operand in operands:
            if target is not None and operand is not None and overlaps(target, operand):
                raise RuntimeError(TEXT)


def overlaps(a: Operand, b: Operand) -> bool:
    """Whether two operands partly share memory, by torch's rule: tensors with gaps are let pass."""
    if a is b or a.shared is None or b.shared is None or _root(a.shared) is not _root(b.shared):
        return False
    one, other = a.spec, b.spec
    if not (one.is_dense and other.is_dense):
        return False
    if a.offset == b.offset and one.numel == other.numel:
        return one.stride != other.stride
    return a.offset < b.offset + other.numel and b.offset < a.offset + one.numel


def _root(buffer: Buffer) -> Buffer:
    """What a copied view, or a copy of that, is a view of."""
    while buffer.upstream is not None and buffer.upstream.base.shared is not None:
        buffer = buffer.upstream.base.shared
    return buffer
