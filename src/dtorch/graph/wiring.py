"""Which node of a recorded graph reads what another one made: what it takes to run the graph again.

Operands are numbered as they are met, and held weakly: recording must not keep values alive. A number stands
for one operand, so a node that writes in place makes the number it reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from dtorch.errors import SerializationError
from dtorch.op.operand import Operand, Scalar
from dtorch.spec import Spec

MAX_CONSTANT_BYTES = 2**20
"""Plain tensors up to this size are kept with the graph; a larger one is an input."""


class Free(NamedTuple):
    """A number among the inputs of a node that is no operand; None for a generator or an absent input."""

    value: Any


class Use(NamedTuple):
    """The operands of one node.

    Attributes:
        reads: numbers of its inputs.
        makes: number of each output, None for plain values.
    """

    reads: tuple[int | Free, ...]
    makes: tuple[int | None, ...]


class Wiring:
    """The operands of a recorded graph.

    Attributes:
        uses: by the number of the node; nodes that only show what their consumer implies have none.
        outside: operands that no node made.
        constants: those of them that are plain tensors of the program.
        implied: nodes of conversions that dtorch chose, which matter only if somebody reads what they make.
        results: specs of the outputs.
        inputs, outputs: operands that a run takes and gives; None until somebody says which.
    """

    def __init__(self) -> None:
        self.uses: dict[int, Use] = {}
        self.outside: dict[int, Spec] = {}
        self.constants: dict[int, torch.Tensor] = {}
        self.implied: list[int] = []
        self.results: dict[int, Spec] = {}
        self.inputs: list[int] | None = None
        self.outputs: list[int] | None = None
        self._numbers: WeakKeyDictionary[Operand, int] = WeakKeyDictionary()
        self._count = 0

    def numbers(self, node: int) -> dict[int, Any]:
        """What a node reads that is no operand, by input."""
        reads = self.uses[node].reads if node in self.uses else ()
        return {i: read.value for i, read in enumerate(reads) if isinstance(read, Free)}

    def knows(self, operand: Operand) -> bool:
        """Whether some node has used the operand."""
        return operand in self._numbers

    def use(
        self,
        node: int,
        operands: Sequence[Any],
        results: Sequence[Any],
        arguments: Mapping[int, int],
        plain: Sequence[int],
    ) -> None:
        """Note what a node reads and makes.

        Args:
            node: its number.
            operands: its inputs, before any conversion.
            results: its outputs.
            arguments: output -> the input that it is.
            plain: inputs that are plain tensors, or another graph's.
        """
        reads = tuple(self._read(operand, i in plain) for i, operand in enumerate(operands))
        makes: list[Any] = []
        for i, result in enumerate(results):
            if i in arguments:
                makes.append(reads[arguments[i]])
            else:
                makes.append(self._number(result) if isinstance(result, Operand) else None)
        self.uses[node] = Use(reads, tuple(makes))

    def _number(self, operand: Operand) -> int:
        if operand not in self._numbers:
            self._numbers[operand] = self._count
            self._count += 1
        return self._numbers[operand]

    def _read(self, operand: Any, plain: bool) -> int | Free:
        if isinstance(operand, Scalar):
            value = operand.parts.value
            return Free(None if isinstance(value, torch.Generator) else value)
        known = operand in self._numbers
        number = self._number(operand)
        if not known:
            self.outside[number] = operand.spec
            # On described devices a plain tensor has no value either.
            if plain and operand.parts and operand.spec.nbytes <= MAX_CONSTANT_BYTES:
                self.constants[number] = operand.parts[0].detach().clone()
        return number

    def interface(self, inputs: Sequence[Any] | None, outputs: Sequence[Any] | None) -> None:
        """Say which operands a run takes and gives.

        Args:
            inputs: distributed tensors; None for all from outside, in the order of their first use.
            outputs: distributed tensors; None for all that were made, no node has read, and somebody holds.

        Raises:
            SerializationError: a tensor that took no part, or one from outside that is not among the inputs.
        """
        if outputs is not None:
            self.outputs = [self._known(tensor) for tensor in outputs]
        elif self.outputs is None:
            self.outputs = self._unread()
        self.results.update({n: o.spec for o, n in self._numbers.items() if n in self.outputs})
        self._drop_implied()
        wanted = {*self._reads(), *self.outputs}
        needed = [n for n in self.outside if n in wanted and n not in self.constants]
        if inputs is not None:
            self.inputs = [self._known(tensor) for tensor in inputs]
        elif self.inputs is None:
            self.inputs = needed
        made = next((number for number in self.inputs if number not in self.outside), None)
        if made is not None:
            raise SerializationError(f"operand {made} is made by the graph, so it is no input")
        missing = next((number for number in needed if number not in self.inputs), None)
        if missing is not None:
            readers = [node for node, use in self.uses.items() if missing in use.reads]
            where = f", in node {min(readers)}" if readers else ""
            raise SerializationError(
                f"the graph also reads operand {missing}, {self.outside[missing]}{where}; "
                "name its tensor among the inputs"
            )

    def _drop_implied(self) -> None:
        """Forget conversions that dtorch chose and that nobody reads."""
        wanted = {*self._reads(), *(self.outputs or ())}
        for node in self.implied:
            if node in self.uses and wanted.isdisjoint(self.uses[node].makes):
                del self.uses[node]

    def _known(self, tensor: Any) -> int:
        operand = getattr(tensor, "_operand", None)
        if operand is None or operand not in self._numbers:
            raise SerializationError(
                "a tensor that took no part in the graph is neither its input nor output"
            )
        return self._numbers[operand]

    def _unread(self) -> list[int]:
        held = set(self._numbers.values())
        return [n for n in self._made() if n in held and n not in self._reads()]

    def _reads(self) -> set[int | Free]:
        return {number for use in self.uses.values() for number in use.reads}

    def _made(self) -> list[int]:
        return list(dict.fromkeys(n for use in self.uses.values() for n in use.makes if n is not None))
