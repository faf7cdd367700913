"""The names by which code looks things up: what of its module, and of other modules, a function may read."""

from __future__ import annotations

import dis
import functools
import types
from typing import NamedTuple

BY_NAME = frozenset(("globals", "eval", "exec"))
"""Builtins by which code reaches variables whose names it does not spell."""

_LOOKED_UP = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), 0),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"), 1),
    "IMPORT_NAME": 2,
}
"""Which of `Names` an instruction looks up; an equal name of another kind is another thing."""


class Names(NamedTuple):
    """What code looks up by name, the code within it too.

    Attributes:
        globals: variables of its module.
        attributes: of any object.
        imports: modules that it imports itself.
    """

    globals: tuple[str, ...]
    attributes: tuple[str, ...]
    imports: tuple[str, ...]


@functools.lru_cache(maxsize=2**14)
def names_of(code: types.CodeType) -> Names:
    """The names in code, and in code within it."""
    found: tuple[dict[str, None], ...] = ({}, {}, {})
    for instruction in dis.get_instructions(code):
        kind = _LOOKED_UP.get(instruction.opname)
        if kind is not None:
            found[kind][instruction.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for names, inner in zip(found, names_of(constant), strict=True):
                names.update(dict.fromkeys(inner))
    return Names(*map(tuple, found))
