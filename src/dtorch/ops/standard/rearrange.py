"""Elements moved, dropped or repeated by position: triu, tril, flip, roll, repeat, constant_pad_nd.

Shapes      triu, tril, flip, roll: as x; repeat: n_d times dim d, new dims in front; pad: d + before + after
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       y
    R       R
    S(d)    S(d)    repeat: each repetition cut as x was; roll without dims: none
    P       P       pad: only with 0

Where a dim is cut that is flipped, rolled or padded, y has chunks of its own size (`taps.py`).
Price       the elements of x that each device fetches
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch

from dtorch.layout import Layout
from dtorch.op.dims import Rule
from dtorch.op.operator import Dims, Local, Operator
from dtorch.ops.standard.taps import Tapped, Taps, numbers
from dtorch.ops.standard.view import LayoutOperator


class Flip(Tapped):
    """flip(dims), roll(shifts, dims)."""

    torch_ops = ("aten.flip", "aten.roll")

    @cached_property
    def shifts(self) -> dict[int, int]:
        """By how much each dim is rolled in all; of a flat tensor, every dim of more than one, by nothing."""
        ndim = len(self.shapes[0] or ())
        dims, shifts = (_listed(self.arguments.get(name)) for name in ("dims", "shifts"))
        if not dims and ndim == 1:
            dims = [0]
        found = dict.fromkeys([d % max(ndim, 1) for d in dims] if dims else range(ndim), 0)
        for d, shift in zip(dims, shifts):
            found[d % max(ndim, 1)] += shift
        return found

    def moving(self) -> set[int]:
        """Those given; roll without dims rolls the flat tensor."""
        if self.name == "aten.roll":
            return set(self.shifts)
        ndim = len(self.shapes[0] or ())
        return {d % max(ndim, 1) for d in self.arguments["dims"]}

    def may_be_cut(self, dim: int) -> bool:
        """Not where the flat tensor is rolled."""
        flat = self.name == "aten.roll" and not _listed(self.arguments.get("dims"))
        return not flat or len(self.shapes[0] or ()) == 1

    def taps(self, dim: int) -> Taps:
        """Backwards, or from so many before."""
        size = self.elements(dim)
        places = torch.arange(size)
        return Taps.of(size, places.flip(0) if self.name == "aten.flip" else places.roll(self.shifts[dim]))


class Pad(Tapped):
    """constant_pad_nd(pad, value): pad counts from the last dim."""

    torch_ops = ("aten.constant_pad_nd",)
    kinds = "Pad"

    def moving(self) -> set[int]:
        """Padded (or, with negative numbers, cropped) dims."""
        ndim, pad = len(self.shapes[0] or ()), self.arguments["pad"]
        return {ndim - 1 - i // 2 for i, n in enumerate(pad) if n}

    @property
    def fill(self) -> float:
        """As given."""
        return self.arguments["value"]

    def taps(self, dim: int) -> Taps:
        """None beyond the ends."""
        size, at = self.elements(dim), 2 * (len(self.shapes[0] or ()) - 1 - dim)
        before, after = self.arguments["pad"][at : at + 2]
        places = torch.arange(-before, size + after)
        return Taps.of(size, places.where((places >= 0) & (places < size), -1))

    def rule(self) -> Rule:
        """Linear with 0."""
        found = super().rule()
        return found if self.arguments["value"] == 0 else Rule(found.inputs, found.outputs)


class Triangle(Operator):
    """triu(diagonal), tril(diagonal): rows and columns are compared by their global numbers."""

    rules: ClassVar[Mapping[str, Dims]] = {
        name: Dims("self[...] -> y[...]", ("self",)) for name in ("aten.triu", "aten.tril")
    }

    def localize(self, coord: tuple[int, ...]) -> Local:
        """The diagonal as it runs through this device's part; a mask where that is no diagonal."""
        layout = self.layouts[0]
        assert layout is not None
        rows, columns = (layout.local_indices(d, coord) for d in (layout.ndim - 2, layout.ndim - 1))
        if len(rows) > 1 or len(columns) > 1:
            return Local(coord, None, (rows, columns), {})
        start = (columns[0][0] if columns else 0) - (rows[0][0] if rows else 0)
        return self.localized(coord, diagonal=self.arguments["diagonal"] - start)

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """By torch where the part has a diagonal."""
        x = inputs[0]
        if local.call is not None:
            super().compute(inputs, outputs, local)
            return
        rows, columns = (numbers(runs).to(x.device) for runs in local.args)
        over = columns - rows[:, None] - self.arguments["diagonal"]
        gone = over < 0 if self.name == "aten.triu" else over > 0
        outputs[:] = [x.masked_fill_(gone, 0) if self.schema.written else x.masked_fill(gone, 0)]


def _listed(value: Any) -> list[int]:
    """A parameter that may be one number, several, or none."""
    return [value] if isinstance(value, int) else list(value or ())


class Repeat(LayoutOperator):
    """repeat(repeats): local, since repeating a part gives its share of every repetition."""

    torch_ops = ("aten.repeat",)

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """Each repetition cut as x is."""
        repeats = self.arguments["repeats"]
        new = len(repeats) - layout.ndim
        dims: list[tuple] = [((n, ()),) for n in repeats[:new]]
        dims += [((n, ()), *factors) for n, factors in zip(repeats[new:], layout.dims, strict=True)]
        return [Layout.of(layout.mesh_shape, dims, layout.partial)]

    def traffic_bytes(self) -> int:
        """x read, every repetition written."""
        return self.operand_bytes()
