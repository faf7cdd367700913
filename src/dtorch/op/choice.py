"""Which conversions make an operator's inputs legal, at the least price.

Matching is per mesh axis, size conditions are on whole layouts. An axis whose roles already fit a row is left
alone. Any other axis chooses among the rows whose cut dims some input already holds, the rows whose pending
inputs are pending already, and Replicate; it moves to dims that no input holds only where every dim it cuts
must be whole. A pending input of an operator with several inputs is priced, kept against reduced; ties reduce
now.

Price, in this order: bytes sent now plus the reduction that pending outputs will owe; pending kept; the
largest local size; the order of rows. It is the best for this operator, not for the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from typing import NamedTuple

from dtorch.layout import Layout
from dtorch.layout.factors import factors_axes
from dtorch.op.signature import PlacementSignature, Role, Row

MAX_COMBINATIONS = 256
"""Combinations of rows and cuts that are priced for one operator; 3 axes with 6 candidates each make 216."""


class Choice(NamedTuple):
    """Legal layouts for every input (None where absent) and the layouts of the outputs they give."""

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]
    price: int = 0


Cost = Callable[[int, Layout], int]
"""Bytes to bring input i to a layout."""


def choose(
    signature: PlacementSignature,
    layouts: Sequence[Layout | None],
    output_shapes: Sequence[tuple[int, ...]],
    cost: Cost,
    owed: Callable[[int, Layout], int],
    pinned: frozenset[int] = frozenset(),
) -> Choice | None:
    """The cheapest legal layouts.

    Args:
        signature: the operator's rows.
        layouts: layout of each input, None where absent.
        output_shapes: global shape of each output.
        cost: bytes to bring an input to a layout.
        owed: bytes to reduce output i, given its layout, to whole sums.
        pinned: inputs that must keep their layout (the operator writes them).

    Returns:
        None where a pinned input fits no row.
    """
    mesh_shape = next(lay.mesh_shape for lay in layouts if lay is not None)
    axes = [axis for axis, n in enumerate(mesh_shape) if n > 1]
    candidates = [_candidates(signature, layouts, axis, pinned) for axis in axes]
    if not all(candidates):
        return None
    best: tuple | None = None
    order = 0
    for rows in islice(product(*candidates), MAX_COMBINATIONS):
        for realized in _realize(
            signature, layouts, dict(zip(axes, rows, strict=True)), output_shapes, pinned
        ):
            rank = (*_rank(realized, layouts, cost, owed), order)
            order += 1
            if best is None or rank < best[0]:
                best = (rank, realized)
    return None if best is None else best[1]._replace(price=best[0][0])


def _rank(
    choice: Choice, layouts: Sequence[Layout | None], cost: Cost, owed: Callable
) -> tuple[int, int, int]:
    sent = sum(
        cost(i, target)
        for i, (have, target) in enumerate(zip(layouts, choice.inputs, strict=True))
        if target is not None and target is not have
    )
    due = sum(owed(i, layout) for i, layout in enumerate(choice.outputs) if layout.partial)
    kept = sum(len(target.partial) for target in choice.inputs if target is not None)
    peak = sum(
        target.local_numel((0,) * len(target.mesh_shape)) for target in choice.inputs if target is not None
    )
    return sent + due, kept, peak


def _candidates(
    signature: PlacementSignature, layouts: Sequence[Layout | None], axis: int, pinned: frozenset[int]
) -> list[Row]:
    roles = tuple(None if lay is None else lay.role(axis) for lay in layouts)
    several = sum(role is not None for role in roles) > 1
    exact = signature.find(roles)
    if exact is not None and not (several and "P" in roles):
        return [exact]
    rows = [row for row in signature.rows if all(row.inputs[i] == roles[i] for i in pinned)]
    found = [row for row in rows if _fits(row, roles)]
    holds = any(isinstance(role, int) for role in roles)
    if holds and not any(_cuts(row, roles) for row in signature.rows):
        found += [row for row in rows if row not in found and any(isinstance(r, int) for r in row.inputs)]
    if exact is not None and exact not in found and all(exact.inputs[i] == roles[i] for i in pinned):
        found.append(exact)
    return found


def _fits(row: Row, roles: tuple[Role, ...]) -> bool:
    wanted = [(want, have) for want, have in zip(row.inputs, roles, strict=True) if have is not None]
    if all(want == "R" for want, _ in wanted):
        return True
    if any(isinstance(want, int) for want, _ in wanted):
        return _cuts(row, roles)
    return any(want == have == "P" for want, have in wanted)


def _cuts(row: Row, roles: tuple[Role, ...]) -> bool:
    return any(isinstance(want, int) and want == have for want, have in zip(row.inputs, roles, strict=True))


def _realize(
    signature: PlacementSignature,
    layouts: Sequence[Layout | None],
    rows: dict[int, Row],
    output_shapes: Sequence[tuple[int, ...]],
    pinned: frozenset[int],
) -> Iterator[Choice]:
    """All layouts that have the rows' roles: one for each way a group of dims may be cut."""
    axes_of: dict[int, list[int]] = {}
    for axis, row in rows.items():
        nodes = {signature.groups["in", i, r] for i, r in enumerate(row.inputs) if isinstance(r, int)}
        nodes |= {signature.groups["out", i, r] for i, r in enumerate(row.outputs) if isinstance(r, int)}
        for group in nodes:
            axes_of.setdefault(group, []).append(axis)
    groups = sorted(axes_of)
    ways = [_cuts_of(signature, layouts, output_shapes, group, axes_of[group], pinned) for group in groups]
    for factors in product(*ways):
        cut = dict(zip(groups, factors, strict=True))
        inputs = tuple(
            None if lay is None else _layout(signature, rows, cut, "in", i, lay.shape, lay.mesh_shape)
            for i, lay in enumerate(layouts)
        )
        if any(inputs[i] is not layouts[i] for i in pinned):
            continue
        mesh_shape = next(lay.mesh_shape for lay in layouts if lay is not None)
        yield Choice(
            inputs,
            tuple(
                _layout(signature, rows, cut, "out", i, tuple(shape), mesh_shape)
                for i, shape in enumerate(output_shapes)
            ),
        )


def _cuts_of(
    signature: PlacementSignature,
    layouts: Sequence[Layout | None],
    output_shapes: Sequence[tuple[int, ...]],
    group: int,
    axes: list[int],
    pinned: frozenset[int],
) -> list[tuple]:
    """Ways to cut a group of dims by exactly `axes`: as a member is cut already, nearest first, or afresh."""
    ways: dict[tuple, tuple[int, int]] = {}
    size = -1
    mesh_shape: tuple[int, ...] = ()
    for (side, i, dim), number in signature.groups.items():
        layout = layouts[i] if side == "in" and number == group else None
        if layout is None:
            continue
        size, mesh_shape = layout.shape[dim], layout.mesh_shape
        held = layout.axes_of(dim)
        if not held:
            continue
        missing = [axis for axis in axes if axis not in held]
        alone = _also_cut(Layout.of(mesh_shape, (layout.dims[dim],)).drop(set(held) - set(axes)), missing)
        if alone is None:
            continue
        distance = len(missing) + len(set(held) - set(axes))
        key = (-1 if i in pinned else distance, -layout.local_numel((0,) * len(mesh_shape)))
        ways[alone.dims[0]] = min(key, ways.get(alone.dims[0], key))
    if not ways:
        if size < 0:
            return []
        return [Layout.of(mesh_shape, (((size, tuple(axes)),),)).dims[0]]
    return sorted(ways, key=ways.__getitem__)


def _also_cut(alone: Layout, axes: Sequence[int]) -> Layout | None:
    """A layout of one dim with more axes that cut it, innermost; None where no factors say that."""
    cut: Layout | None = alone
    for axis in axes:
        cut = None if cut is None else cut.add_shard(axis, 0)
    return cut


def _layout(
    signature: PlacementSignature,
    rows: dict[int, Row],
    cut: dict[int, tuple],
    side: str,
    i: int,
    shape: tuple[int, ...],
    mesh_shape: tuple[int, ...],
) -> Layout:
    dims = [((size, ()),) for size in shape]
    partial = []
    for axis, row in rows.items():
        role = (row.inputs if side == "in" else row.outputs)[i]
        if role == "P":
            partial.append(axis)
        elif isinstance(role, int):
            factors = cut[signature.groups[side, i, role]]
            scaled = (side, i, role) in signature.scaled
            dims[role] = ((shape[role], factors_axes(factors)),) if scaled else factors
    return Layout.of(mesh_shape, tuple(dims), tuple(partial))


def scattered(layout: Layout, source: Layout | None) -> Layout | None:
    """Where a pending gradient goes whose operand was cut on the pending axes: to the operand's cut.

    Args:
        layout: of the gradient.
        source: of the operand it is the gradient of, as the caller had it.

    Returns:
        None where no pending axis cut the operand.
    """
    if source is None or source.shape != layout.shape:
        return None
    target = layout
    for axis in layout.partial:
        role = source.role(axis)
        if isinstance(role, int):
            target = target.drop([axis]).add_shard(axis, role) or target
    return None if target is layout else target
