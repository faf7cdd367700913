"""Order along one dim: sort, topk, kthvalue, median, mode, searchsorted, bucketize.

    y = x in order along d, with the places it came from; or the k-th of these
    i = first place in s that is not before v

Shapes      x [... d ...] -> y as x; topk: k instead of d; kthvalue, median, mode: without d, or 1 (keepdim);
            s [... d], v [... m] -> i [... m], or s [d], v [...] -> i [...]
FLOPs       bound by memory
Placements  on one mesh axis, e every dim but d

    x       y               s       v       i
    R       R               R       R       R
    S(e)    S(e)            R       S(m)    S(m)
    S(d)    R       topk    S(b)    S(b)    S(b)    b a leading dim of both
                            S(d)    R       P       i counts what is before v; not with sorter=

Where d is cut, topk finds the k of every device and the k of these; all others need d whole.
Price       topk: an all-gather of the k values and places of every device that cuts d
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch

from dtorch.op.dims import UNCUT, Names, Rule
from dtorch.op.group import Group
from dtorch.op.operator import Dims, Operator
from dtorch.ops.standard.batched import Batched
from dtorch.ops.standard.statistics import Statistics, dim_names, global_positions


class Sort(Batched):
    """Along one dim, which is whole."""

    torch_ops = ("aten.sort", "aten.kthvalue", "aten.median.dim", "aten.nanmedian.dim", "aten.mode")

    def rule(self) -> Rule:
        """Every other dim may be cut."""
        shape = self.shapes[0] or ()
        names = dim_names(len(shape))
        dim = self.arguments["dim"] % max(len(shape), 1)
        kept = self.name == "aten.sort" or bool(self.arguments.get("keepdim"))
        output = names if kept else (*names[:dim], *names[dim + 1 :])
        return Rule((names,), (output,) * 2, whole=frozenset(names[dim : dim + 1]))


class TopK(Statistics):
    """The k largest or smallest along one dim, and their places."""

    type = "Sort"
    torch_ops = ("aten.topk",)

    @property
    def dim(self) -> int:
        """The dim that is ordered."""
        return self.arguments["dim"] % max(len(self.shapes[0] or ()), 1)

    def rule(self) -> Rule:
        """Every dim may be cut; of the ordered one k are left, on every device."""
        names = dim_names(len(self.shapes[0] or ()))
        output = tuple(UNCUT if d == self.dim else name for d, name in enumerate(names))
        return Rule((names,), (output,) * 2, stats=frozenset(names[self.dim : self.dim + 1]))

    def statistics(self) -> Iterable[tuple[Names, int]]:
        """Joined, not reduced; see `statistics_bytes`."""
        return ()

    def statistics_bytes(self) -> int:
        """k values and places of every device, or all that it has."""
        layout, k = self.layouts[0], self.arguments["k"]
        axes = self.statistics_axes()
        if layout is None or not axes:
            return 0
        ring = [c for c in self.mesh.coords if all(x == 0 for a, x in enumerate(c) if a not in axes)]
        count = sum(min(k, layout.local_shape(coord)[self.dim]) for coord in ring)
        return self.gathered_bytes(self.dim, count, self.dtype.itemsize + 8)

    def combine(
        self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group, axes: tuple[int, ...]
    ) -> None:
        """The k of each device, then the k of these."""
        k, dim, largest = self.arguments["k"], self.dim, self.arguments["largest"]
        layout = self.layouts[0]
        assert layout is not None
        values, places = [], []
        for mine, coord in zip(inputs, group.coords, strict=True):
            top = torch.topk(mine[0], min(k, mine[0].shape[dim]), dim, largest)
            values.append(top.values)
            places.append(global_positions(layout, dim, coord, mine[0].device)[top.indices])
        values, places = group.all_gather(values, axes, dim), group.all_gather(places, axes, dim)
        for out, value, place in zip(outputs, values, places, strict=True):
            top = torch.topk(value, k, dim, largest)
            out[:] = [top.values, place.gather(dim, top.indices)]


class SearchSorted(Operator):
    """Places in a sorted sequence."""

    type = "Sort"
    rules: ClassVar[Mapping[str, Dims]] = {
        "aten.bucketize": Dims("self[...], boundaries[d] -> i[...]"),
    }
    torch_ops = ("aten.searchsorted.Tensor",)

    def rule(self) -> Rule | None:
        """A sequence for each row of values, or one for all."""
        if self.name == "aten.bucketize":
            return super().rule()
        slots = self.slot("sorted_sequence"), self.slot("self")
        sequence, values = (self.shapes[slot] for slot in slots)  # type: ignore[index]
        names = dim_names(len(values or ()))
        own = ("d",) if len(sequence or ()) == 1 else (*names[:-1], "d")
        inputs: list[Names | None] = [None] * len(self.inputs)
        for name, dims in (("sorted_sequence", own), ("self", names), ("sorter", own)):
            if (slot := self.slot(name)) is not None:
                inputs[slot] = dims
        return Rule(
            tuple(inputs), (names,), whole=frozenset({"d"} if self.slot("sorter") is not None else ())
        )
