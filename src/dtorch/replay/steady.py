"""Calls on plain tensors that give the same at each replay, and so need not be made again.

A model makes positions and masks by `torch.arange(n)` and arithmetic on it. Where nothing that changes goes
in, nobody writes the results, and the function does not return them, they are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from dtorch.graph.drawing import Draw
from dtorch.hidden import writes
from dtorch.op.schema import schema_of
from dtorch.redistribute.local_work import LocalWork
from dtorch.replay.made import Constant
from dtorch.replay.tape import Number, Slot, Tape, TapedCall

_UNWRITTEN = ("empty", "new_empty", "resize")
"""What these make has no value until it is written."""


class Steady:
    """What of a tape stays.

    Attributes:
        tensors: by number, as the tape's; those that stay are tensors of their own.
        numbers: of those.
        calls: what is left to be made at each replay, in order.
    """

    def __init__(self, tape: Tape, given: Iterable[int]) -> None:
        """Make the calls that stay, once.

        Args:
            tape: of the captured call.
            given: numbers of the tensors that the program gets or writes otherwise.
        """
        touched = same_memory(tape.calls, {*given, *_written(tape.calls)})
        self.tensors: list[torch.Tensor] = list(tape.tensors)
        self.numbers: set[int] = set()
        self.calls: list[TapedCall] = []
        with LocalWork():
            for call in tape.calls:
                slots = numbers_of(call.args)
                stays = self.numbers.issuperset(slots) and touched.isdisjoint([*slots, *call.results])
                stays = stays and not any(type(leaf) is Number for leaf in tree_leaves(call.args))
                if stays and call.item < 0 and call.part < 0 and _is_steady(call.function):
                    self._make(call)
                else:
                    self.calls.append(call)

    def _make(self, call: TapedCall) -> None:
        args, kwargs = tree_map(
            lambda leaf: self.tensors[leaf.number] if type(leaf) is Slot else leaf, call.args
        )
        made = call.function(*args, **kwargs)
        for number, fresh, tensor in zip(call.results, call.fresh, tensors_in(made), strict=True):
            if fresh:
                self.tensors[number] = tensor
                self.numbers.add(number)


def tensors_in(result: Any) -> list[torch.Tensor]:
    """The tensors in a result, flat."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def numbers_of(args: Any) -> list[int]:
    """The numbers of the tensors among arguments."""
    return [leaf.number for leaf in tree_leaves(args) if type(leaf) is Slot]


def is_random(function: Any) -> bool:
    """Whether a call of torch draws from a generator."""
    return isinstance(function, Draw) or torch.Tag.nondeterministic_seeded in getattr(function, "tags", ())


def _is_steady(function: Any) -> bool:
    if type(function) is Constant:
        return True
    if is_random(function) or writes(function):
        return False
    return not function._schema.name.split("::")[1].startswith(_UNWRITTEN)


def written_by(call: TapedCall) -> list[int]:
    """Numbers of the tensors that a call writes."""
    if call.part >= 0 or type(call.function) is Constant:
        return []
    given = schema_of(call.function).bind(*call.args)
    return [number for name in writes(call.function) for number in numbers_of(given[name])]


def _written(calls: Sequence[TapedCall]) -> set[int]:
    return {number for call in calls for number in written_by(call)}


def same_memory(calls: Sequence[TapedCall], numbers: set[int]) -> set[int]:
    """These tensors and all that may share memory with one of them, through any number of calls."""
    found, size = set(numbers), -1
    while size != len(found):
        size = len(found)
        for call in calls:
            around = {*numbers_of(call.args), *call.results}
            if not found.isdisjoint(around) and _aliases(call):
                found |= around
    return found


def _aliases(call: TapedCall) -> bool:
    """Whether results may share memory with arguments."""
    if call.part >= 0:
        return False
    if type(call.function) is Constant:
        return bool(numbers_of(call.args))
    schema = schema_of(call.function)
    return schema.view_of is not None or any(schema.returned)
