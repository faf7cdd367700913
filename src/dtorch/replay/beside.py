"""The tape as generated source: what plain tensors and numbers do beside a plan, in straight lines.

    def beside(t, a):
        ok = True
        c0(t[3], 1)
        i0 = c1(t[3])
        n0 = 0.9 ** i0
        n1 = 1 - n0
        return ok, (n1,)

`t` are the plain tensors by number, `a` the arguments. `i` is what `.item()` gives, `n` arithmetic on it;
equal arithmetic is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dtorch.replay.tape import Slot, Tape
from dtorch.replay.traced import SYMBOLS, How


class _Source:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"flatten": _tensors}
        self.names: dict[How, str] = {}

    def constant(self, value: Any) -> str:
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

    def argument(self, value: Any) -> str:
        """The text of an argument of a call on plain tensors."""
        if type(value) is Slot:
            return f"t[{value.number}]"
        if type(value) in (list, tuple):
            return "[" + ", ".join(map(self.argument, value)) + "]"
        return self.constant(value)


def generate(
    tape: Tape, numbers: Sequence[How], tied: Mapping[How, float]
) -> Callable[[list[torch.Tensor], Sequence[Any]], Any]:
    """The function that makes the tape's calls again.

    Args:
        tape: of a captured call.
        numbers: the traced numbers that the plan takes.
        tied: what must be read again: items, and their values.

    Returns:
        A function of the plain tensors by number, which it fills in, and the arguments. It gives whether
        every value that steers the program is what it was, and the numbers.
    """
    source = _Source()
    for call in tape.calls:
        args, kwargs = call.args
        named = [f"{key}={source.argument(value)}" for key, value in kwargs.items()]
        text = f"{source.constant(call.function)}({', '.join([*map(source.argument, args), *named])})"
        if call.item >= 0:
            text = f"i{call.item} = {text}"
            value = tied.get(("item", call.item))
            if value is not None:
                text += f"; ok = ok and i{call.item}.hex() == {value.hex()!r}"
        elif call.value is not None:
            text = f"ok = ok and {text} == {source.constant(call.value)}"
        elif call.fresh == (True,):
            text = f"t[{call.results[0]}] = {text}"
        elif any(call.fresh):
            source.lines.append(f"o = flatten({text})")
            fresh = [place for place, made in enumerate(call.fresh) if made]
            text = "; ".join(f"t[{call.results[place]}] = o[{place}]" for place in fresh)
        source.lines.append(text)
    for decision, outcome in tape.decisions.items():
        source.lines.append(f"ok = ok and ({source.value(decision)}) == {outcome}")
    names = [source.value(how) for how in numbers]
    lines = ["ok = True", *source.lines, f"return ok, ({''.join(f'{name}, ' for name in names)})"]
    space = dict(source.constants)
    text = "def beside(t, a):\n" + "".join(f"    {line}\n" for line in lines)
    exec(compile(text, "<dtorch beside>", "exec"), space)  # of names and numbers that this module wrote
    return space["beside"]


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
