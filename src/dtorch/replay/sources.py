"""Where a replay finds what its plan reads, and where what the function returns comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dtorch.op.operand import Everywhere, Operand, Scalar
from dtorch.replay.tape import Tape


@dataclass(frozen=True, slots=True)
class Source:
    """Where a replay finds one input of the plan.

    Attributes:
        kind: "argument", "state", "gradient", "plain", "made" (beside the graph), "number" (traced), or
            "constant".
        which: the argument's place, the operand, the leaf, the tensor's number on the tape, the number of
            what is made, how the number is made, or the parts themselves.
    """

    kind: str
    which: Any

    def same(self, other: Source) -> bool:
        """Whether another capture of the same function finds this input alike."""
        if self.kind != other.kind:
            return False
        if self.kind in ("state", "gradient"):
            return self.which is other.which
        if self.kind == "constant" and isinstance(self.which, Everywhere):
            a, b = self.which.value, other.which.value
            return a is b or (type(a) is type(b) and (a == b or a != a))
        return bool(self.which == other.which)

    def operand(self, arguments: Sequence[Any]) -> Operand:
        """The operand of an argument, of state or of a gradient, now."""
        if self.kind == "argument":
            found: Operand = arguments[self.which]._operand
            return found
        return self.which.grad._operand if self.kind == "gradient" else self.which


@dataclass(frozen=True, slots=True)
class Result:
    """A leaf of what the function returns.

    Attributes:
        kind: "tensor", "argument", "plain", "made", "number" (traced) or "value".
        which: an operand's number, the argument's place, a number on the tape, of what is made, how the
            number is made, or the value.
    """

    kind: str
    which: Any


def scalar_source(operand: Scalar, tape: Tape) -> Source:
    """A number is traced, or always the same."""
    how = tape.scalars.get(id(operand))
    return Source("constant", operand.parts) if how is None else Source("number", how)
