"""Indexing with integer tensors: index (x[i, :, j]), index_select, gather, take.

    index          y[b, e] = x[i[b], e]          gather        y[b] = x[b with b_dim = i[b]]
    index_select   y[.., b, ..] = x[.., i[b], ..]    take      y[b] = x.flatten()[i[b]]

Shapes      index: index tensors broadcast to b, which stands where the indexed dims stood, or in front if
            these are apart; gather: as the index; index_select: dim -> len(i); take: as the index
FLOPs       bound by memory; touched are the index and the selected elements, read and written
Placements  on one mesh axis, e a dim of x that is not indexed, d one that is, b a dim of the index

    x       i       y
    R       R       R
    S(e)    R       S(e)    gather: i is S(e) too, where it is as long as x there
    R       S(b)    S(b)
    P       R       P
    S(d)    R       P       one index: each device looks up what it holds, and zeros
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from dtorch.layout import Layout
from dtorch.op.dims import UNCUT, Rule, broadcast_names
from dtorch.op.operator import Local, Operator

_BOOLEAN = (torch.bool, torch.uint8)


class Indexing(Operator):
    """Base: reads at integer places."""

    type = "GetItem"

    def traffic_bytes(self) -> int:
        """Index tensors read, selected elements read and written."""
        index = sum(x.nbytes for x in self.inputs[1:] if x is not None)
        return index + 2 * sum(y.nbytes for y in self.outputs if y is not None)


class Index(Indexing):
    """index.Tensor; boolean masks go the general way, their result's size depends on values."""

    torch_ops = ("aten.index.Tensor", "aten._unsafe_index.Tensor")

    def rule(self) -> Rule | None:
        """See the module's table."""
        names = index_names(self.arguments["indices"], self.shapes, self.dtypes(), 0)
        if names is None:
            return None
        held, indices, output = names
        inputs: list[Any] = [None] * len(self.inputs)
        inputs[0] = held
        for slot, dims in indices.items():
            inputs[slot] = dims
        return Rule(tuple(inputs), (output,), (frozenset((0,)),))

    def dtypes(self) -> list[Any]:
        """Of the inputs."""
        return [None if x is None else x.spec.dtype for x in self.inputs]


def index_names(
    indices: Sequence[Any], shapes: Sequence[Any], dtypes: Sequence[Any], target: int
) -> tuple[tuple[str, ...], dict[int, tuple[str, ...]], tuple[str, ...]] | None:
    """Names of x's dims, of each index tensor's, and of what x[indices] has; None with boolean masks.

    Args:
        indices: a slot or None for each leading dim of x.
        shapes, dtypes: of the operator's inputs.
        target: the input that is indexed.
    """
    slots = [None if i is None else i.index for i in indices]
    used = [s for s in slots if s is not None]
    if any(dtypes[s] in _BOOLEAN for s in used):
        return None
    broadcast, result = broadcast_names([shapes[s] for s in used])
    ndim = len(shapes[target])
    slots += [None] * (ndim - len(slots))
    held = tuple(f"d{d}" if slots[d] is None else UNCUT for d in range(ndim))
    runs = [key for key, _ in groupby(s is None for s in slots) if not key]
    first = slots.index(used[0]) if len(runs) == 1 else 0
    kept = [name for name in held if name]
    before = sum(s is None for s in slots[:first])
    output = (*kept[:before], *result, *kept[before:])
    return held, dict(zip(used, (b or () for b in broadcast), strict=True)), output


class Gather(Indexing):
    """gather(dim, index): other dims are read side by side with the index."""

    torch_ops = ("aten.gather",)

    def rule(self) -> Rule:
        """Other dims may be cut where index and x are equally long."""
        return side_by_side(self.shapes, 0, 1, self.arguments["dim"])


def side_by_side(shapes: Sequence[Any], target: int, index: int, dim: int) -> Rule:
    """Rule of y[b] = x[b with b_dim = i[b]]."""
    x, i = shapes[target], shapes[index]
    if len(x) != len(i) or not x:
        return Rule(((UNCUT,) * len(x), (UNCUT,) * len(i)), ((UNCUT,) * len(i),), (frozenset((target,)),))
    dim %= len(x)
    held = tuple(f"d{d}" if d != dim and x[d] == i[d] else UNCUT for d in range(len(x)))
    read = tuple("i" if d == dim else held[d] for d in range(len(x)))
    return Rule((held, read), (read,), (frozenset((target,)),))


class IndexSelect(Indexing):
    """index_select(dim, index); where dim is cut, each device looks up what it holds."""

    torch_ops = ("aten.index_select",)

    def rule(self) -> Rule:
        """dim -> index."""
        x, i = self.shapes[0] or (), self.shapes[1] or ()
        if not x or not i:
            whole = (UNCUT,) * len(x)
            return Rule((whole, (UNCUT,) * len(i)), (whole,), (frozenset((0,)),))
        dim = self.arguments["dim"] % len(x)
        held = tuple(f"d{d}" if d != dim else "v" for d in range(len(x)))
        return Rule(
            (held, ("i",)), (tuple("i" if d == dim else n for d, n in enumerate(held)),), (frozenset((0,)),)
        )

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """By torch where dim is whole."""
        layout = self.layouts[0]
        assert layout is not None
        dim = self.arguments["dim"] % max(layout.ndim, 1)
        if not layout.ndim or not layout.axes_of(dim):
            super().compute(inputs, outputs, local)
            return
        outputs[:] = [masked_lookup(inputs[0], inputs[1], layout, dim, local.coord)]


def masked_lookup(
    x: torch.Tensor, index: torch.Tensor, layout: Layout, dim: int, coord: Sequence[int]
) -> torch.Tensor:
    """index_select of the rows that this device holds, zeros for the others.

    Args:
        x: the local part, [... n_local ...] at `dim`.
        index: global ids, 1-D; all within the global size, or an error as torch's.
        layout: of the whole x.
        dim: the dim that is looked up.
        coord: the device.
    """
    if index.device.type == "cpu" and index.numel():
        low, high = (int(v) for v in index.aminmax())
        if low < 0 or high >= layout.shape[dim]:
            raise IndexError("index out of range in self")
    shape = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    result = x.new_zeros(shape)
    start_here = 0
    for start, stop in layout.local_indices(dim, coord):
        length = stop - start
        mine = (index >= start) & (index < stop)
        place = torch.where(mine, index - start + start_here, start_here)
        rows = x.index_select(dim, place)
        mask = mine.view(-1, *(1,) * (x.ndim - 1 - dim))
        # A hole in a row that is not asked for may hold nan: choose, do not multiply.
        result = torch.where(mask, rows, result)
        start_here += length
    return result


class Take(Indexing):
    """take(index): x is flat, and needed whole."""

    torch_ops = ("aten.take",)

    def rule(self) -> Rule:
        """Every dim of the index may be cut."""
        names = tuple(f"b{d}" for d in range(len(self.shapes[1] or ())))
        return Rule(((UNCUT,) * len(self.shapes[0] or ()), names), (names,), (frozenset((0,)),))
