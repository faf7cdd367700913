"""What a replayed plan reads, as one flat list of local tensors and numbers.

State, views of it and tensors that stay the same come first and are put together once; they are looked at
again where an operand has other parts. What each call brings anew stands behind them. Numbers that stay are
constants of the plan's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dtorch.graph.graph import Graph
from dtorch.op.operand import Everywhere, Operand, Parts
from dtorch.plan.codegen import PlanText
from dtorch.plan.structure import Selection, Structure
from dtorch.replay.hoist import make
from dtorch.replay.places import same
from dtorch.replay.sources import Source
from dtorch.replay.traced import How

_PARTS: Any = Operand.parts


class Inputs:
    """Finds the inputs of one plan.

    Attributes:
        apart: numbers of state that shares memory with no other state, when it was last looked at.

    Args:
        graph: of the tensors.
        sources: of the operands from outside, by number.
        hoisted: nodes that only view what stays.
        steady: plain tensors by number on the tape that no replay changes.
        numbers: the traced numbers that the plan takes.
    """

    def __init__(
        self,
        graph: Graph,
        sources: Mapping[int, Source],
        hoisted: tuple[int, ...],
        steady: Mapping[int, torch.Tensor],
        numbers: Sequence[How],
    ) -> None:
        self.graph = graph
        self.sources = sources
        self.hoisted = hoisted
        self.steady = steady
        self._numbers = {how: f"a_{place}" for place, how in enumerate(numbers)}
        self._stays: list[tuple[int, list[int]]] = []
        self._changes: list[tuple[Source, list[int]]] = []
        self._operands: list[Operand] = []
        self._seen: list[Parts] = []
        self._copies: list[Operand] = []
        self._values: list[Any] = []
        self._ready = False
        self.apart = self._lying_apart()

    def bind(self, text: PlanText, structure: Structure, selection: Selection) -> None:
        """Write how the plan takes its inputs; see `plan/codegen.py`."""
        self.structure = structure
        self._stays, self._changes, self._ready = [], [], False
        first: list[str] = []
        behind: list[str] = []
        for i, number in enumerate(selection.bound):
            spec, source = structure.spec(number), self.sources.get(number)
            if spec is None:
                assert source is not None
                traced = source.kind == "number"
                name = self._numbers[source.which] if traced else text.constant(source.which.value)
                text.names[number] = Everywhere(name)
                continue
            owner = spec.owners
            places = sorted(set(owner))
            stays = source is None or self._is_steady(source)
            letter = "s" if stays else "a"  # what stays is not deleted at its last use
            text.names[number] = [f"{letter}{i}_{position}" for position in owner]
            names = [f"{letter}{i}_{position}" for position in places]
            if stays:
                self._stays.append((number, places))
                first += names
            else:
                assert source is not None
                self._changes.append((source, places))
                behind += names
        names = [*first, *behind, *self._numbers.values()]
        if names:
            text.line(f"{', '.join(names)}, = x", -1)
        text.line("x.clear()", -1)

    @property
    def stays(self) -> int:
        """How many entries of the list stay, once one has been put together."""
        return len(self._values)

    def _is_steady(self, source: Source) -> bool:
        return source.kind == "state" or (source.kind == "plain" and source.which[1] in self.steady)

    def values(
        self,
        arguments: Sequence[Any],
        plain: Sequence[torch.Tensor],
        numbers: Sequence[float],
        made: Sequence[Parts],
    ) -> list[Any]:
        """What the plan takes in a call with these arguments."""
        parts_of = self.graph.constructor.parts
        for copy in self._copies:  # of what may have been written since
            parts_of(copy)
        if not (self._ready and same(_PARTS, self._operands, self._seen)):
            self._look_again()
        found = self._values.copy()
        for source, places in self._changes:
            parts = made[source.which] if source.kind == "made" else self._parts(source, arguments, plain)
            found += [parts[position] for position in places]
        found += numbers
        return found

    def _parts(self, source: Source, arguments: Sequence[Any], plain: Sequence[torch.Tensor]) -> Parts:
        if source.kind == "plain":
            mesh_size, number = source.which
            return [plain[number].detach().clone()] * mesh_size
        operand = source.operand(arguments)
        parts = operand.parts
        if type(parts) is list and (operand.shared is None or operand.shared.upstream is None):
            return parts
        return self.graph.constructor.parts(operand)

    def _lying_apart(self) -> frozenset[int]:
        """Numbers of state that shares memory with no other state."""
        found: dict[int, list[int]] = {}
        for number, source in self.sources.items():
            operand = source.which
            if source.kind == "state" and (operand.shared is None or operand.shared.upstream is None):
                parts = operand.parts if type(operand.parts) is list else []
                for storage in {part.untyped_storage()._cdata for part in parts}:
                    found.setdefault(storage, []).append(number)
        shared = {number for numbers in found.values() if len(numbers) > 1 for number in numbers}
        return frozenset(n for numbers in found.values() for n in numbers if n not in shared)

    @property
    def constants(self) -> dict[int, Any]:
        """Numbers that are the same at each replay, by the number of their operand."""
        return {
            number: source.which.value
            for number, source in self.sources.items()
            if source.kind == "constant" and isinstance(source.which, Everywhere)
        }

    def _look_again(self) -> None:
        """Put together what stays."""
        self.apart = self._lying_apart()
        self._operands, self._seen, self._copies, self._ready = [], [], [], False

        def parts(number: int) -> Parts:
            source = self.sources[number]
            if source.kind == "constant":
                constant: Parts = source.which
                return constant
            if source.kind == "plain":
                return [self.steady[source.which[1]]] * source.which[0]
            operand: Operand = source.which
            found = self.graph.constructor.parts(operand)
            self._operands.append(operand)
            self._seen.append(found)
            if operand.shared is not None and operand.shared.upstream is not None:
                self._copies.append(operand)
            return found

        views = make(self.structure, self.hoisted, parts)
        self._values = []
        for number, places in self._stays:
            found = views[number] if number in views else parts(number)
            self._values += [found[position] for position in places]
        self._ready = True
