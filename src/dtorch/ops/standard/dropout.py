"""Dropout: elements set to 0 with chance p, the others scaled, and its gradient.

    y = x mask / (1 - p)        dx = dy mask / (1 - p)

Shapes      x [...] -> y [...], mask [...] of bools
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       y       mask            dy      mask    dx
    R       R       R               R       R       R
    S(d)    S(d)    S(d)            S(d)    S(d)    S(d)
                                    P       R       P

The mask is one draw for the whole tensor (`random.py`), each device taking its part. A pending sum comes
first: the mask of one device is not that of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dtorch.layout import Layout
from dtorch.op.choice import Choice
from dtorch.op.group import Group
from dtorch.op.operator import Operator
from dtorch.ops.standard.pointwise import Pointwise
from dtorch.ops.standard.random import dealt


class Dropout(Operator):
    """native_dropout(input, p, train)."""

    torch_ops = ("aten.native_dropout",)
    kinds = "Dropout"
    needs_siblings = True

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """Any cut stays; sums come first, since the mask of one device is not that of another."""
        if not self.output_metas:
            self.output_metas = tuple(self.infer_output_meta_info())
        layout = self.layouts[0]
        assert layout is not None
        layout = layout.without_partial()
        return Choice((layout,), (layout, layout))

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """Draw with ones; each device scales its own values by its part."""
        x = self.inputs[0]
        assert x is not None
        if x.layout.is_replicate:
            outputs[0][:] = self._draw(inputs[0][0])
            for out in outputs[1:]:
                out[:] = outputs[0]
            return
        spec = x.spec
        ones = torch.empty_strided(
            spec.shape, spec.stride, dtype=spec.dtype, device=inputs[0][0].device
        ).fill_(1)
        scale, mask = self._draw(ones)
        scales, masks = dealt(scale, x.layout, self.mesh), dealt(mask, x.layout, self.mesh)
        for local, out, coord in zip(inputs, outputs, group.coords, strict=True):
            out[:] = [local[0] * scales[coord], masks[coord]]

    def _draw(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.call.func(x, self.arguments["p"], self.arguments["train"])


class DropoutBackward(Pointwise):
    """native_dropout_backward(grad_output, mask, scale), linear in the gradient."""

    torch_ops = ("aten.native_dropout_backward",)
    kinds = "DropoutBackward"
