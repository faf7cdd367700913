"""Keeping aliases honest: refreshing copied views, carrying writes back, reducing pending sums in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dtorch import redistribute
from dtorch.errors import CaptureError, OperatorError
from dtorch.graph.confirm import users_line
from dtorch.graph.conversion import convert
from dtorch.graph.recipe import Recipe
from dtorch.layout import Layout
from dtorch.op.call import flatten
from dtorch.op.operand import Buffer, Failed, NoValue, Operand, Parts, Scalar
from dtorch.op.operator import Operator
from dtorch.op.param import fill
from dtorch.redistribute.local_work import LocalWork
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.constructor import GraphConstructor
    from dtorch.graph.recipe import Recipe


def viewer(
    operator: Operator, operands: Sequence[Any], index: int, number: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The view that output `number` is of input `index`, as a function of the input's full value."""
    call = operator.call
    args, kwargs = call.args, call.kwargs
    numbers = [operand.parts.value if isinstance(operand, Scalar) else None for operand in operands]

    def view(full: torch.Tensor) -> torch.Tensor:
        values: list[Any] = list(numbers)
        values[index] = full
        return flatten(call.func(*fill(args, values), **fill(kwargs, values)))[number]

    return view


def refresh(constructor: GraphConstructor, operand: Operand) -> None:
    """Bring a copied view up to date with its base.

    Raises:
        CaptureError: in a call that is captured, where nothing may run.
    """
    if constructor.captured:
        raise CaptureError(
            f"capture(): the function uses a view of shape {list(operand.spec.shape)} that had to be copied, "
            "since it cuts a dim that is distributed, and such a copy is brought up to date at each use; "
            "clone() it outside and pass the clone"
        )
    constructor.flush()
    upstream = operand.buffer.upstream
    assert upstream is not None
    base = upstream.base
    if base.shared is not None and base.shared.upstream is not None:
        refresh(constructor, base)
    if base.buffer.version == upstream.seen:
        return
    buffer = operand.buffer
    full = _whole(constructor, base)
    if full is None:
        lose(operand)
        upstream.seen = base.buffer.version
        return
    with LocalWork():
        view = upstream.view(full)
        _copy_into(_stored(buffer), redistribute.split(view, buffer.root_spec.layout, buffer.root_spec.mesh))
    buffer.version += 1
    upstream.seen = base.buffer.version


def touched(constructor: GraphConstructor, operand: Operand) -> None:
    """Note that an operand was written; a copied view is carried back to its base."""
    buffer = operand.buffer
    buffer.version += 1
    upstream = buffer.upstream
    if upstream is None:
        return
    base = upstream.base
    full = _whole(constructor, base)
    value = _whole(constructor, Operand(buffer.root_spec, buffer.root_parts))
    if full is None or value is None:
        lose(base)
    else:
        with LocalWork():
            upstream.view(full).copy_(value)
            _copy_into(constructor.parts(base), redistribute.split(full, base.layout, base.spec.mesh))
    touched(constructor, base)
    upstream.seen = base.buffer.version


def written(
    constructor: GraphConstructor,
    recipe: Recipe,
    given: Sequence[Operand | None],
    legal: Sequence[Operand | None],
) -> None:
    """Carry what an operator has written to where it belongs: from converted copies, and to bases.

    Args:
        constructor: of the graph.
        recipe: what has run.
        given: its inputs as the caller had them.
        legal: the inputs it ran on.
    """
    for i in recipe.written:
        operand, now = given[i], legal[i]
        assert operand is not None
        assert now is not None
        if i in recipe.write_back:
            overwrite(constructor, operand, now)
        else:
            touched(constructor, operand)


def overwrite(constructor: GraphConstructor, operand: Operand, value: Operand) -> None:
    """Write a value, under whatever layout, into an operand and all its aliases."""
    assert operand.parts is not None
    moved = convert(constructor, value, operand.layout, keep=False)
    if isinstance(moved.parts, NoValue):
        lose(operand)
    else:
        _copy_into(operand.parts, constructor.parts(moved))
    touched(constructor, operand)


def lose(operand: Operand) -> None:
    """What was written has no value, on described devices: nor have the operand and its aliases now."""
    buffer = operand.buffer
    if isinstance(buffer.root_parts, NoValue):
        return
    buffer.root_parts = NoValue()
    for member in buffer.live_members():
        member.parts = buffer.root_parts


class WholeOrSpoiled:
    """Inside, operands are written; if the end is not reached, they and the bases they copy are spoiled.

    One device may have written and another not; a copied view may differ from its base.

    Args:
        operator: what writes; None where pending sums are reduced in place.
        operands: what it writes.
    """

    __slots__ = ("_operands", "_operator")

    def __init__(self, operator: Operator | None, operands: Sequence[Operand | None]) -> None:
        self._operator = operator
        self._operands = operands

    def __enter__(self) -> None:
        """Nothing is wrong yet."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        how = f"failed ({type(error).__name__})" if isinstance(error, Exception) else "interrupted"
        operator = self._operator
        what = "its pending sums were reduced" if operator is None else f"{operator.describe()} wrote it"
        failed = Failed(OperatorError(f"{how} while {what}\n  called from {users_line()}"))
        for operand in self._operands:
            buffer = None if operand is None else operand.buffer
            while buffer is not None:
                buffer.spoil(failed)
                buffer = None if buffer.upstream is None else buffer.upstream.base.buffer


def reduce_first(constructor: GraphConstructor, recipe: Recipe, operands: Sequence[Operand]) -> None:
    """Turn pending sums that a call is to write into into whole values; the call is made again then."""
    constructor.flush()
    for i in recipe.reduce_first:
        reduce_in_place(constructor, operands[i])


def reduce_in_place(constructor: GraphConstructor, operand: Operand) -> None:
    """Turn pending sums into whole values where they are stored, for the operand and every alias of it."""
    with WholeOrSpoiled(None, [operand]):
        _reduce_in_place(constructor, operand)


def _reduce_in_place(constructor: GraphConstructor, operand: Operand) -> None:
    buffer = operand.buffer
    root = buffer.root_spec
    whole = root.layout.without_partial()
    parts = _stored(buffer)
    owner = _owners(root, root.layout.partial)
    if isinstance(parts, NoValue):
        convert(constructor, Operand(root, parts), whole, keep=False)
    else:
        moved = redistribute.execute(parts, root.layout, whole, root.mesh, root.mesh)
        for position, part in enumerate(parts):
            if owner[position] == position:
                part.copy_(moved[position])
        buffer.root_parts = [parts[p] for p in owner]
    buffer.root_spec = _reduced(root)
    for member in buffer.live_members():
        assert member.parts is not None
        if not isinstance(member.parts, NoValue):
            member.parts = [member.parts[p] for p in owner]
        member.spec = _reduced(member.spec)
        member.converted = None
    buffer.version += 1


def _stored(buffer: Buffer) -> Parts:
    """The parts that own a buffer's storages, which its root's operator has made."""
    assert buffer.root_parts is not None
    return buffer.root_parts


def _owners(spec: Spec, axes: tuple[int, ...]) -> list[int]:
    """For each device the one whose storage holds its value once `axes` are reduced."""
    mesh = spec.mesh
    if not mesh.shares_storage:
        return list(range(mesh.size))
    first: dict[tuple[int, ...], int] = {}
    found = []
    for position, coord in enumerate(mesh.coords):
        rest = tuple(0 if axis in axes else c for axis, c in enumerate(coord))
        found.append(first.setdefault(rest, position))
    return found


def _reduced(spec: Spec) -> Spec:
    return Spec(spec.shape, spec.stride, spec.dtype, spec.layout.without_partial(), spec.mesh)


def _whole(constructor: GraphConstructor, operand: Operand) -> torch.Tensor | None:
    """The full value, brought together by a visible conversion, with strides on which every view is legal.

    None where there is no value, on described devices.
    """
    spec = operand.spec
    whole = Layout.replicate(spec.mesh.shape, spec.shape)
    converted = convert(constructor, operand, whole, keep=False)
    if isinstance(converted.parts, NoValue):
        return None
    value = constructor.parts(converted)[0]
    if value.stride() == spec.stride:
        return value
    with LocalWork():
        full = torch.empty_strided(spec.shape, spec.stride, dtype=value.dtype, device=value.device)
        return full.copy_(value)


def _copy_into(parts: Parts, values: Parts) -> None:
    done: set[int] = set()
    for part, value in zip(parts, values, strict=True):
        if id(part) not in done:
            done.add(id(part))
            for dim, (size, stride) in enumerate(zip(part.shape, part.stride(), strict=True)):
                if stride == 0 and size > 1:  # expanded: memory holds it once
                    part, value = part.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
            part.copy_(value)


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two local tensors live in one storage."""
    return (
        a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.untyped_storage().nbytes() > 0
    )
