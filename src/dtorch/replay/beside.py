"""The tape as generated source: what plain tensors and numbers do beside a plan, in straight lines.

    def beside(t, a, d):
        n0 = float(c0)
        if (n0 > 0) is not True: return None
        c1(t[3], 1)
        i0 = c2(t[3])
        n1 = 0.9 ** i0
        n2 = 1 - n1
        d[0] = c3()
        return n2,

`t` are the plain tensors by number, `a` the arguments, `d` the parts of operands that are made here. `i` is
what `.item()` gives, `n` arithmetic on it; equal arithmetic is done once. What steers the program is looked
at as soon as it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch

from dtorch.op.binding import function_of
from dtorch.op.param import Slot as Input
from dtorch.replay.steady import is_random, numbers_of, same_memory, tensors_in, written_by
from dtorch.replay.tape import Number, Slot, Tape, TapedCall
from dtorch.replay.traced import SYMBOLS, How

Beside = Callable[[list[torch.Tensor], Sequence[Any], list[Any]], tuple[float, ...] | None]


class TapeText:
    """The text of a tape while it is written.

    Attributes:
        spoiled: numbers of the plain tensors from outside that are written before the last look at what
            steers the program: where that is another, they have to be put back.
        draws_early: whether random numbers are drawn before that look.

    Args:
        tape: of the captured call.
        calls: of the tape, those that a replay makes.
        tied: numbers that have to be what they were.
        sound: numbers that meet parts of pending sums, which may not be 0, infinite or NaN.
    """

    def __init__(
        self, tape: Tape, calls: Sequence[TapedCall], tied: Mapping[How, float], sound: Sequence[How] = ()
    ) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"flatten": tensors_in}
        self.names: dict[How, str] = {}
        self.spoiled: set[int] = set()
        self.draws_early = False
        self._tape = tape
        self._tied = tied
        self._written: set[int] = set()
        self._drawn = False
        self._waiting = dict(tape.decisions)
        self._items: set[int] = set()
        self._sound = dict.fromkeys(sound)
        self._decide()
        for call in calls:
            self._write(call)
            self._decide()
        self.spoiled = same_memory(calls, self.spoiled).intersection(tape.outside)

    def function(self, numbers: Sequence[How]) -> Beside:
        """The function that makes the calls and gives these numbers; None where it is steered elsewhere."""
        names = [self.value(how) for how in numbers]
        lines = [*self.lines, f"return ({''.join(f'{name}, ' for name in names)})"]
        space = dict(self.constants)
        text = "def beside(t, a, d):\n" + "".join(f"    {line}\n" for line in lines)
        exec(compile(text, "<dtorch beside>", "exec"), space)  # of names and numbers that this module wrote
        found: Beside = space["beside"]
        return found

    def constant(self, value: Any) -> str:
        """A name for a value that the text needs."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def value(self, how: Any) -> str:
        """A name for, or the text of, a number that is made by `how`."""
        if type(how) is not tuple:
            return repr(how) if type(how) in (int, bool) else self.constant(how)
        if how in self.names:
            return self.names[how]
        kind, *operands = how
        if kind == "item":
            return f"i{operands[0]}"
        if kind == "argument":
            text = f"a[{operands[0]}]"
        elif kind == "setting":
            text = f"float({self.constant(operands[0])})"
        else:
            parts = [self.value(operand) for operand in operands]
            text = SYMBOLS[kind].format(*parts)
        name = self.names[how] = f"n{len(self.names)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _write(self, call: TapedCall) -> None:
        text = self._call(call)
        if call.part >= 0:
            self.lines.append(f"d[{call.part}] = {text}")
        elif call.item >= 0:
            self._items.add(call.item)
            self.lines.append(f"i{call.item} = {text}")
            value = self._tied.get(("item", call.item))
            if value is not None:
                self._steer(f"i{call.item}.hex() != {value.hex()!r}")
        elif call.value is not None:
            self._steer(f"{text} != {self.constant(call.value)}")
        elif call.fresh == (True,):
            self.lines.append(f"t[{call.results[0]}] = {text}")
        elif any(call.fresh):
            self.lines.append(f"o = flatten({text})")
            made = [place for place, fresh in enumerate(call.fresh) if fresh]
            self.lines.append("; ".join(f"t[{call.results[place]}] = o[{place}]" for place in made))
        else:
            self.lines.append(text)
        self._written.update(written_by(call))
        self._drawn = self._drawn or is_random(call.function)

    def _steer(self, condition: str) -> None:
        """Write a look at what steers the program."""
        self.lines.append(f"if {condition}: return None")
        self.spoiled |= self._written
        self.draws_early = self.draws_early or self._drawn

    def _decide(self) -> None:
        """Write the comparisons of which all is known by now."""
        for decision, outcome in list(self._waiting.items()):
            if _items_of(decision) <= self._items:
                del self._waiting[decision]
                self._steer(f"({self.value(decision)}) is not {outcome}")
        for how in [how for how in self._sound if _items_of(how) <= self._items]:
            del self._sound[how]
            self._steer(f"not 0.0 < abs({self.value(how)}) < {self.constant(inf)}")

    def _call(self, call: TapedCall) -> str:
        if call.item >= 0:
            return f"{self.constant(torch._C.TensorBase.item)}({self._argument(call.args[0][0])})"
        args, kwargs = call.args
        named = [f"{key}={self._argument(value)}" for key, value in kwargs.items()]
        function = self.constant(self._bound(call))
        return f"{function}({', '.join([*map(self._argument, args), *named])})"

    def _bound(self, call: TapedCall) -> Any:
        """What to call: see `op/binding.py`, to which a tensor is the input of its place."""
        if not isinstance(call.function, torch._ops.OpOverload):
            return call.function
        numbers = list(dict.fromkeys(numbers_of(call.args)))
        inputs = {number: Input(place) for place, number in enumerate(numbers)}
        args, kwargs = _with_inputs(call.args, inputs)
        like: list[Any] = [
            self._tape.tensors[number] for number in numbers
        ]  # as specs, they tell shape and dtype
        return function_of(call.function, args, kwargs, like)

    def _argument(self, value: Any) -> str:
        """The text of an argument of a call on plain tensors."""
        if type(value) is Slot:
            return f"t[{value.number}]"
        if type(value) is Number:
            return self.value(value.how)
        if type(value) in (list, tuple):
            return "[" + ", ".join(map(self._argument, value)) + "]"
        return self.constant(value)


def _with_inputs(value: Any, inputs: Mapping[int, Input]) -> Any:
    if type(value) is Slot:
        return inputs[value.number]
    if type(value) is Number:
        return 1.0  # any: a function is chosen by types
    if type(value) in (list, tuple):
        return type(value)([_with_inputs(item, inputs) for item in value])
    if type(value) is dict:
        return {name: _with_inputs(item, inputs) for name, item in value.items()}
    return value


def _items_of(how: Any) -> set[int]:
    """Which items a number is made of."""
    if type(how) is not tuple:
        return set()
    if how[0] == "item":
        return {how[1]}
    return set().union(*map(_items_of, how[1:])) if how[0] not in ("argument", "setting") else set()
