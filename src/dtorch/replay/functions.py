"""Where a function looks: its closure, and the variables of its module and of others that its code names."""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from typing import Any

from dtorch.replay.names import BY_NAME, names_of
from dtorch.replay.places import Place, absent, some_entries


@functools.cache
def is_library(module: str) -> bool:
    """Whether a module is an installed library's, which is taken to stay."""
    root = module.split(".")[0]
    if root in ("torch", "dtorch") or root in sys.stdlib_module_names - {"__main__"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file.startswith((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))


def of_function(function: types.FunctionType) -> Iterator[Place]:
    """The places of one function."""
    owner = f"{function.__name__}()"
    named = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    cells = {name: cell for name, cell in named if _is_filled(cell)}
    yield Place(_contents, list(cells.values()), f"{owner}'s closure", list(cells))
    space, used = function.__globals__, names_of(function.__code__)
    module = space.get("__name__", "a module")
    by_name = not BY_NAME.isdisjoint(used.globals) and not is_library(module)
    if by_name:  # any of them may be meant, but what Python keeps there itself
        meant = [name for name in space if name in used.globals or not name.startswith("__")]
        yield Place(dict.keys, space, module)
    else:
        meant = [name for name in used.globals if name in space]
        yield from absent(space, used.globals, module)
    yield from some_entries(space, meant, module)
    yield from some_entries(
        sys.modules, [name for name in used.imports if name in sys.modules], "sys.modules"
    )
    waiting = [
        *map(space.get, used.globals),
        *map(sys.modules.get, used.imports),
        *_contents([*cells.values()]),
    ]
    modules: dict[str, types.ModuleType] = {}
    while waiting:
        found = waiting.pop()
        own = isinstance(found, types.ModuleType) and not is_library(found.__name__)
        if own and found.__name__ not in modules:
            modules[found.__name__] = found
            waiting += [vars(found).get(name) for name in used.attributes]
    for name, found in modules.items():
        held = vars(found)
        yield from some_entries(held, [name for name in used.attributes if name in held], name)
        yield from absent(held, used.attributes, name)
    yield Place(_code, function, owner, ["the code"])


def _contents(cells: Sequence[types.CellType]) -> list[Any]:
    return [cell.cell_contents for cell in cells]


def _code(function: types.FunctionType) -> list[Any]:
    """What a function runs, and what it gives arguments that are left out."""
    return [function.__code__, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
