"""Dropout: elements set to 0 with chance p, the others scaled, and its gradient.

    y = (x mask) s        dx = dy mask s        s = 1 / (1 - p), 0 where p is 1

Shapes      x [...] -> y [...], mask [...] of bools
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       y       mask            dy      mask    dx
    R       R       R               R       R       R
    S(d)    S(d)    S(d)            S(d)    S(d)    S(d)
                                    P       R       P

The mask is one draw for the whole tensor (`random.py`), each device taking its part; on cpu it may be drawn
when the call is made, before x is known (`graph/drawing.py`). A pending sum comes first: the mask of one
device is not that of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dtorch.layout import Layout
from dtorch.op.call import OutputMeta
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

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """As torch's meta kernel says, but on cpu the mask of nothing has x's dtype."""
        found = super().infer_output_meta_info()
        x = self.inputs[0]
        if x is None or x.spec.numel or self.mesh.device_type != "cpu":
            return found
        return [found[0], found[1] and found[1]._replace(dtype=x.spec.dtype)]

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
        """Draw for ones; each device masks and scales its own values, in torch's order."""
        x = self.inputs[0]
        assert x is not None
        if x.layout.is_replicate:
            outputs[0][:] = self._call(inputs[0][0])
            for out in outputs[1:]:
                out[:] = outputs[0]
            return
        spec = x.spec
        ones = torch.empty_strided(
            spec.shape, spec.stride, dtype=spec.dtype, device=inputs[0][0].device
        ).fill_(1)
        masks = dealt(self._call(ones)[1], x.layout, self.mesh)
        for local, out, coord in zip(inputs, outputs, group.coords, strict=True):
            out[:] = [local[0].mul(masks[coord]).mul_(self.scale), masks[coord]]

    @property
    def scale(self) -> float:
        """What kept values are multiplied by: 1 outside of training; on cpu torch rounds it to x's dtype."""
        x, kept = self.inputs[0], 1.0 - self.arguments["p"]
        assert x is not None
        if not self.draws():
            return 1.0
        scale = 0.0 if kept == 0 else 1.0 / kept
        return torch.tensor(scale, dtype=x.spec.dtype).item() if self.mesh.device_type == "cpu" else scale

    def draws(self) -> bool:
        """In training, if there is something to draw for."""
        x = self.inputs[0]
        return self.arguments["train"] is not False and x is not None and x.spec.numel > 0

    def draws_alone(self) -> bool:
        """The mask on cpu, which torch draws by itself."""
        return self.draws() and self.mesh.device_type == "cpu"

    def draw(self, others: Sequence[Any]) -> torch.Tensor:
        """The mask of the whole tensor, as torch's kernel draws it on cpu."""
        mask = self.outputs[1]
        assert mask is not None
        whole = torch.empty_strided(mask.spec.shape, mask.spec.stride, dtype=torch.bool)
        return whole.bernoulli_(1.0 - self.arguments["p"])

    def _call(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.call.func(x, self.arguments["p"], self.arguments["train"])


class DropoutBackward(Pointwise):
    """native_dropout_backward(grad_output, mask, scale), linear in the gradient."""

    torch_ops = ("aten.native_dropout_backward",)
    kinds = "DropoutBackward"
