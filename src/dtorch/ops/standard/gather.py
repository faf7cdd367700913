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

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch

from dtorch.inductor.listing import PRESENT
from dtorch.layout import Layout
from dtorch.op.dims import UNCUT, Rule, broadcast_names
from dtorch.op.operator import Local, Operator
from dtorch.op.priced import touched
from dtorch.op.signature import PlacementSignature, Row

_BOOLEAN = (torch.bool, torch.uint8)


class Indexing(Operator, abstract=True):
    """Base: reads at integer places."""

    def looked_up(self) -> str:
        """Name of the dim that is looked up: it may be cut, except where values cannot be summed."""
        return UNCUT if self.inputs[0] is None or self.inputs[0].spec.dtype is torch.bool else "v"

    def traffic_bytes(self) -> int:
        """Index tensors read, selected elements read and written."""
        index = sum(map(touched, self.inputs[1:]))
        return index + 2 * sum(y.nbytes for y in self.outputs if y is not None)


class Index(Indexing):
    """index.Tensor; boolean masks go the general way, their result's size depends on values."""

    left_out = tuple(
        ("aten.index", f"S({d}), S(0) -> S({d})", "indices that happen to lie on their own device")
        for d in (1, 2)
    )

    type = "GetItem"
    torch_ops = ("aten.index.Tensor", "aten._unsafe_index.Tensor")
    kinds = "Index"

    def rule(self) -> Rule | None:
        """See the module's table."""
        names = index_names(self.arguments["indices"], self.shapes, self.dtypes(), 0)
        if names is None:
            return None
        held, indices, output = names
        inputs: list[Any] = [None] * len(self.inputs)
        dim = self.only()
        inputs[0] = held if dim is None else (*held[:dim], self.looked_up(), *held[dim + 1 :])
        for slot, dims in indices.items():
            inputs[slot] = dims
        return Rule(tuple(inputs), (output,), (frozenset((0,)),))

    def only(self) -> int | None:
        """The dim that is indexed, if there is only one."""
        dims = [d for d, slot in enumerate(self.arguments["indices"]) if slot is not None]
        return dims[0] if len(dims) == 1 else None

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """By torch where what is indexed is whole."""
        layout, dim = self.layouts[0], self.only()
        if layout is None or dim is None or not layout.axes_of(dim):
            super().compute(inputs, outputs, local)
            return
        x, index = inputs
        place = torch.where(index < 0, index + layout.shape[dim], index).to(torch.int64)
        rows = masked_rows(x, place.reshape(-1), layout, dim, local.coord)
        outputs[:] = [rows.unflatten(dim, index.shape) if index.ndim else rows.squeeze(dim)]

    def get_placement_signature(self) -> PlacementSignature:
        """Where a mask decides the size of the result, torch cannot infer it: whole inputs only."""
        if self.cached_rule is not None:
            return self.cached_rule.signature()
        whole = Row(tuple(None if x is None else "R" for x in self.inputs), ("R",))
        return PlacementSignature(len(self.inputs), 1, [whole])

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

    type = "GetItem"
    torch_ops = ("aten.gather",)

    def rule(self) -> Rule:
        """Other dims may be cut where index and x are equally long."""
        x, i = self.shapes[0] or (), self.shapes[1] or ()
        if len(x) != len(i) or not x:
            return Rule(((UNCUT,) * len(x), (UNCUT,) * len(i)), ((UNCUT,) * len(i),), (frozenset((0,)),))
        dim = self.arguments["dim"] % len(x)
        held = [f"d{d}" if x[d] == i[d] else UNCUT for d in range(len(x))]
        read = (*held[:dim], "i", *held[dim + 1 :])
        held[dim] = self.looked_up()
        return Rule((tuple(held), read), (read,), (frozenset((0,)),))

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """By torch where dim is whole."""
        layout, (x, index) = self.layouts[0], inputs
        assert layout is not None
        dim = self.arguments["dim"] % max(layout.ndim, 1)
        if not layout.ndim or not layout.axes_of(dim):
            super().compute(inputs, outputs, local)
            return
        zeros = x.new_zeros(index.shape)
        found = masked_lookup(
            lambda i: x.gather(dim, i), index, zeros, layout, dim, local.coord, RuntimeError
        )
        outputs[:] = [found]


class IndexSelect(Indexing):
    """index_select(dim, index); where dim is cut, each device looks up what it holds."""

    type = "GetItem"
    torch_ops = ("aten.index_select",)

    def rule(self) -> Rule:
        """dim -> index."""
        x, i = self.shapes[0] or (), self.shapes[1] or ()
        if not x or not i:
            whole = (UNCUT,) * len(x)
            return Rule((whole, (UNCUT,) * len(i)), (whole,), (frozenset((0,)),))
        dim = self.arguments["dim"] % len(x)
        held = tuple(f"d{d}" if d != dim else self.looked_up() for d in range(len(x)))
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
        outputs[:] = [masked_rows(inputs[0], inputs[1], layout, dim, local.coord)]


def masked_lookup(
    pick: Callable[[torch.Tensor], torch.Tensor],
    index: torch.Tensor,
    result: torch.Tensor,
    layout: Layout,
    dim: int,
    coord: Sequence[int],
    refusal: type[Exception] = IndexError,
) -> torch.Tensor:
    """What is at global places of a dim that is cut: what this device holds, zeros for the others.

    Args:
        pick: what the local part has at local places.
        index: global places.
        result: zeros of the shape that `pick` gives.
        layout: of the whole tensor.
        dim: its dim that is looked up.
        coord: the device.
        refusal: what torch's operator raises for a place beyond the global size.

    Raises:
        refusal: such a place; on cpu only, a GPU would have to wait for the answer.
    """
    if PRESENT.listing:  # which asks for no value; what then fails is run once more, uncompiled
        torch._assert_async(((index >= 0) & (index < layout.shape[dim])).all(), "index out of bounds")
    elif index.device.type == "cpu" and index.numel():
        low, high = (int(v) for v in index.aminmax())
        if low < 0 or high >= layout.shape[dim]:
            wrong = low if low < 0 else high
            raise refusal(f"index {wrong} is out of bounds for dimension {dim} with size {layout.shape[dim]}")
    before = 0
    for start, stop in layout.local_indices(dim, coord):
        mine = (index >= start) & (index < stop)
        PRESENT.in_range = True
        try:
            found = pick(torch.where(mine, index - start + before, before))
        finally:
            PRESENT.in_range = False
        if index.ndim == 1:
            mine = mine.view(-1, *(1,) * (result.ndim - 1 - dim))
        # What is not asked for may hold nan: choose, do not multiply.
        result = torch.where(mine, found, result)
        before += stop - start
    return result


def masked_rows(
    x: torch.Tensor, index: torch.Tensor, layout: Layout, dim: int, coord: Sequence[int]
) -> torch.Tensor:
    """`masked_lookup` of index_select: x the local part, index 1-D."""
    zeros = x.new_zeros((*x.shape[:dim], index.numel(), *x.shape[dim + 1 :]))
    return masked_lookup(lambda place: x.index_select(dim, place), index, zeros, layout, dim, coord)


class Take(Indexing):
    """take(index): x is flat, and needed whole."""

    type = "GetItem"
    torch_ops = ("aten.take",)

    def rule(self) -> Rule:
        """Every dim of the index may be cut."""
        names = tuple(f"b{d}" for d in range(len(self.shapes[1] or ())))
        return Rule(((UNCUT,) * len(self.shapes[0] or ()), names), (names,), (frozenset((0,)),))
