"""Elements moved, dropped or repeated by position: triu, tril, flip, roll, repeat, constant_pad_nd.

Shapes      triu, tril, flip, roll: as x; repeat: n_d times dim d, new dims in front; pad: d + before + after
FLOPs       bound by memory
Placements  on one mesh axis, d a dim that moves (flipped, rolled, padded), e any other

    x       y
    R       R
    S(e)    S(e)    triu, tril: every dim is such; repeat: every dim is, each repetition cut as x was
    P       P       pad: only with 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.layout import Layout
from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Local, Operator
from dtorch.ops.standard.view import LayoutOperator


class Rearrange(Operator, abstract=True):
    """Base: dims that move are uncut, others stay; linear."""

    def moving(self) -> set[int]:
        """Dims of x whose elements change places."""
        raise NotImplementedError

    def rule(self) -> Rule:
        """Names of the dims that stay."""
        moving = self.moving()
        names = tuple(UNCUT if d in moving else f"d{d}" for d in range(len(self.shapes[0] or ())))
        return Rule((names,), (names,), (frozenset((0,)),))


class Flip(Rearrange):
    """flip(dims), roll(shifts, dims)."""

    torch_ops = ("aten.flip", "aten.roll")

    def moving(self) -> set[int]:
        """Those given; roll without dims rolls the flat tensor."""
        ndim = len(self.shapes[0] or ())
        dims = self.arguments.get("dims") or ([] if self.name == "aten.flip" else range(ndim))
        dims = [dims] if isinstance(dims, int) else dims
        return {d % max(ndim, 1) for d in dims}


class Pad(Rearrange):
    """constant_pad_nd(pad, value): pad counts from the last dim."""

    torch_ops = ("aten.constant_pad_nd",)
    kinds = "Pad"

    def moving(self) -> set[int]:
        """Padded (or, with negative numbers, cropped) dims."""
        ndim, pad = len(self.shapes[0] or ()), self.arguments["pad"]
        return {ndim - 1 - i // 2 for i, n in enumerate(pad) if n}

    def rule(self) -> Rule:
        """Linear with 0."""
        found = super().rule()
        return found if self.arguments["value"] == 0 else Rule(found.inputs, found.outputs)


class Triangle(Rearrange):
    """triu(diagonal), tril(diagonal): rows and columns are compared by their global numbers."""

    torch_ops = ("aten.triu", "aten.tril")

    def moving(self) -> set[int]:
        """None."""
        return set()

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
        rows, columns = (_numbers(runs, x.device) for runs in local.args)
        over = columns - rows[:, None] - self.arguments["diagonal"]
        gone = over < 0 if self.name == "aten.triu" else over > 0
        outputs[:] = [x.masked_fill_(gone, 0) if self.schema.written else x.masked_fill(gone, 0)]


def _numbers(runs: Sequence[tuple[int, int]], device: torch.device) -> torch.Tensor:
    return torch.tensor([i for run in runs for i in range(*run)], dtype=torch.int64, device=device)


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
