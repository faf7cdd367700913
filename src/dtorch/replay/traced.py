"""Numbers that remember how they were made, so that a replay can make them again.

Inside a captured call the floats that change from call to call are of this kind: a float argument, a learning
rate, what `.item()` gives. Arithmetic on them gives more of them. What torch is handed is their value; what
the replay computes is their `how`:

    step.item()                 ("item", number of the tensor on the tape)
    1 - beta ** step            ("sub", 1, ("pow", beta, ("item", 3)))

A comparison decides what the program does next, so its outcome is noted: a replay holds only while all
outcomes are the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

How = tuple[Any, ...]

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
}
_UNARY: dict[str, Callable[[Any], Any]] = {"neg": operator.neg, "pos": operator.pos, "abs": abs}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


class Traced(float):
    """A float, how it was made, and where the outcomes of comparisons are noted."""

    __slots__ = ("decisions", "how")

    how: How
    decisions: dict[How, bool]

    def __new__(cls, value: float, how: How, decisions: dict[How, bool]) -> Traced:
        made = super().__new__(cls, value)
        made.how = how
        made.decisions = decisions
        return made

    __hash__ = float.__hash__

    def __bool__(self) -> bool:
        return _decided("ne", self, 0.0, self)


def _how(value: Any) -> Any:
    return value.how if type(value) is Traced else value


def _made(name: str, compute: Callable[..., Any], owner: Traced, *operands: Any) -> Any:
    """The result of plain arithmetic, remembering it; whatever is no float comes out as it is."""
    plain = [float(value) if type(value) is Traced else value for value in operands]
    if not all(type(value) in (int, float, bool) for value in plain):
        return NotImplemented
    result = compute(*plain)
    if type(result) is not float:
        return result
    return Traced(result, (name, *map(_how, operands)), owner.decisions)


def _decided(name: str, left: Any, right: Any, owner: Traced) -> bool:
    plain = [float(value) if type(value) is Traced else value for value in (left, right)]
    if not all(type(value) in (int, float, bool) for value in plain):
        return NotImplemented
    outcome = _COMPARE[name](*plain)
    owner.decisions[(name, _how(left), _how(right))] = outcome
    return outcome


def _install() -> None:
    for name, compute in _BINARY.items():
        setattr(Traced, f"__{name}__", lambda a, b, n=name, f=compute: _made(n, f, a, a, b))
        setattr(Traced, f"__r{name}__", lambda a, b, n=name, f=compute: _made(n, f, a, b, a))
    for name, single in _UNARY.items():
        setattr(Traced, f"__{name}__", lambda a, n=name, f=single: _made(n, f, a, a))
    for name in _COMPARE:
        setattr(Traced, f"__{name}__", lambda a, b, n=name: _decided(n, a, b, a))


_install()


SYMBOLS = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "truediv": "{} / {}",
    "floordiv": "{} // {}",
    "mod": "{} % {}",
    "pow": "{} ** {}",
    "neg": "-{}",
    "pos": "+{}",
    "abs": "abs({})",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
}
"""How Python writes what a `how` names."""
