"""A table of rules as a dims line, where the notation can say it."""

from __future__ import annotations

from typing import Any

from dtorch.errors import DtorchError
from dtorch.op.dims import Dims, concretize
from dtorch.op.param import Slot, TorchCall
from dtorch.op.schema import schema_of
from dtorch.op.signature import PlacementSignature, Row
from dtorch.testing.calls import Call

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def argument_names(call: Call) -> list[str]:
    """The names of the arguments that hold the inputs, numbered in lists."""
    param = call.param
    if not isinstance(param, TorchCall):
        return [f"x{i}" for i in range(len(call.inputs))]
    names = [""] * len(call.inputs)
    for name, value in schema_of(param.func).bind(param.args, param.kwargs).items():
        if isinstance(value, Slot):
            names[value.index] = name
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                if isinstance(item, Slot):
                    names[item.index] = f"{name}{i}"
    return names


def dims_of(call: Call, signature: PlacementSignature) -> Dims | None:
    """The dims line that stands for exactly these rows on this call; None where there is none.

    Args:
        call: the call, for the numbers of dims and the names of its tensors.
        signature: its rows.
    """
    shapes = [None if x is None else tuple(x.shape) for x in call.inputs]
    outputs = [tuple(y.shape) if hasattr(y, "shape") else () for y in call.run()]
    inside: list[Any] = [None if s is None else [""] * len(s) for s in shapes]
    outside = [[""] * len(s) for s in outputs]
    letters = iter(LETTERS)
    linear = []
    for row in sorted(signature.rows, key=_first_use):
        cuts = [(inside[i], r) for i, r in enumerate(row.inputs) if isinstance(r, int)]
        if not cuts:
            group = " ".join(argument_names(call)[i] for i, r in enumerate(row.inputs) if r == "P")
            linear += [group] if group else []
            continue
        cuts += [(outside[i], r) for i, r in enumerate(row.outputs) if isinstance(r, int)]
        if any(names[dim] for names, dim in cuts):
            return None  # one dim in two rows is more than a line says
        letter = next(letters, "")
        for names, dim in cuts:
            names[dim] = letter
    return _checked(call, signature, inside, outside, tuple(linear), letters)


def _first_use(row: Row) -> list[tuple[int, int]]:
    """Rows in the order in which a reader of the line meets what they cut or hold pending."""
    return [
        (i, r if isinstance(r, int) else len(LETTERS))
        for i, r in enumerate(row.inputs)
        if r not in ("R", None)
    ]


def _checked(
    call: Call,
    signature: PlacementSignature,
    inside: list[Any],
    outside: list[list[str]],
    linear: tuple[str, ...],
    letters: Any,
) -> Dims | None:
    """The line, if the rows that it means are these and no others."""
    shapes = [None if x is None else tuple(x.shape) for x in call.inputs]
    by_size: dict[int, str] = {}
    for names, shape in zip(inside, shapes, strict=True):
        for dim, name in enumerate(names or ()):
            if not name:
                names[dim] = by_size.setdefault(shape[dim], f"{next(letters, 'z')}!")  # type: ignore[index]
    for names, y in zip(outside, call.run(), strict=True):
        for dim, name in enumerate(names):
            if not name:
                names[dim] = by_size.setdefault(y.shape[dim], f"{next(letters, 'z')}!")
    given = argument_names(call)
    left = ", ".join(
        f"{name}[{' '.join(names)}]" for name, names in zip(given, inside, strict=True) if names is not None
    )
    kinds = ["y"] if len(outside) == 1 else [f"y{i}" for i in range(len(outside))]
    right = ", ".join(f"{name}[{' '.join(names)}]" for name, names in zip(kinds, outside, strict=True))
    line = f"{left} -> {right}"
    try:
        meant = concretize(line, [s for s in shapes if s is not None], linear).signature()
    except DtorchError:
        return None
    return Dims(line, linear) if set(meant.rows) == {_present(row) for row in signature.rows} else None


def _present(row: Row) -> Row:
    return Row(tuple(r for r in row.inputs if r is not None), row.outputs)
