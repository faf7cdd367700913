"""Numbers that remember how they were made, so that a replay can make them again.

Inside a captured call the floats that change from call to call are of this kind: a float argument, a learning
rate, what `.item()` gives. Arithmetic on them gives more of them. What torch is handed is their value; what
the replay computes is their `how`:

    step.item()                 ("item", number of the tensor on the tape)
    1 - beta ** step            ("sub", 1, ("pow", beta, ("item", 3)))

A comparison decides what the program does next, so its outcome is noted: a replay holds only while all
outcomes are the same. So it is for what leaves as a whole number (`int`, `round`, `math.floor`), and for the
value itself where it leaves as a plain float or as a key. What C code reads (`math.sqrt`) and what is printed
leaves unseen.
"""

from __future__ import annotations

import math
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
_WHOLE: dict[str, Callable[[float], int]] = {
    "int": int,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
}
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

    def __bool__(self) -> bool:
        return _decided("ne", self, 0.0, self)

    def __hash__(self) -> int:
        self.pin()
        return float.__hash__(self)

    def __float__(self) -> float:
        self.pin()
        return plain(self)

    def is_integer(self) -> bool:
        """As of a plain float."""
        self.pin()
        return float.is_integer(self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __round__(self, digits: Any = None) -> Any:
        return _whole("round", self) if digits is None else _made("digits", round, self, self, digits)

    def pin(self) -> None:
        """Note that the value itself decides: another one is another course."""
        value = plain(self)
        if value == value:  # no recording is for NaN, which equals nothing
            self.decisions["eq", self.how, value] = True


def plain(value: float) -> float:
    """The same number, of Python's own kind."""
    return float.__float__(value)


def _whole(name: str, value: Traced) -> int:
    """A whole number that is made of a float, which decides what the program does."""
    result: int = _WHOLE[name](plain(value))
    value.decisions["eq", (name, value.how), result] = True
    return result


def _how(value: Any) -> Any:
    return value.how if type(value) is Traced else value


def _made(name: str, compute: Callable[..., Any], owner: Traced, *operands: Any) -> Any:
    """The result of plain arithmetic, remembering it; whatever is no float comes out as it is."""
    given = [plain(value) if type(value) is Traced else value for value in operands]
    if not all(type(value) in (int, float, bool) for value in given):
        return NotImplemented
    result = compute(*given)
    if type(result) is not float:
        return result
    return Traced(result, (name, *map(_how, operands)), owner.decisions)


def _decided(name: str, left: Any, right: Any, owner: Traced) -> bool:
    given = [plain(value) if type(value) is Traced else value for value in (left, right)]
    if not all(type(value) in (int, float, bool) for value in given):
        return NotImplemented
    outcome = _COMPARE[name](*given)
    owner.decisions[(name, _how(left), _how(right))] = outcome
    return outcome


def _install() -> None:
    for name, compute in _BINARY.items():
        setattr(Traced, f"__{name}__", lambda a, b, n=name, f=compute: _made(n, f, a, a, b))
        setattr(Traced, f"__r{name}__", lambda a, b, n=name, f=compute: _made(n, f, a, b, a))
    for name, single in _UNARY.items():
        setattr(Traced, f"__{name}__", lambda a, n=name, f=single: _made(n, f, a, a))
    for name in ("int", "trunc", "floor", "ceil"):
        setattr(Traced, f"__{name}__", lambda a, n=name: _whole(n, a))
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
    "digits": "round({}, {})",
    "round": "round({})",
    "int": "int({})",
    "trunc": "({}).__trunc__()",
    "floor": "({}).__floor__()",
    "ceil": "({}).__ceil__()",
    "eq": "{} == {}",
    "ne": "{} != {}",
    "lt": "{} < {}",
    "le": "{} <= {}",
    "gt": "{} > {}",
    "ge": "{} >= {}",
}
"""How Python writes what a `how` names."""
