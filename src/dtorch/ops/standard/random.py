"""Random values: one draw for the whole tensor, each device its part, so that values depend on no layout.

Shapes      as x
FLOPs       none; touched is what is written
Placements  on one mesh axis

    x       normal_, uniform_, bernoulli_, ...    rand_like ...    native_dropout x -> y, mask
    R       R                                     R                R -> R, R
    S(d)    S(d)                                  S(d)             S(d) -> S(d), S(d)
    P       P: the first device holds the value   R                no

The draw is made with x's global shape, strides and type, from the generator of the first device, which
therefore advances once, as on one device. x itself is not gathered: its values do not matter, or only where
they are. Operators whose numbers depend on values (multinomial, poisson, normal of tensors) go the general
way, and are drawn once too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import compile_call
from dtorch.op.choice import Choice
from dtorch.op.group import Group
from dtorch.op.operator import Operator
from dtorch.ops.standard.view import LayoutOperator


class Random(LayoutOperator):
    """Base: draws whole, and deals the parts out."""

    needs_siblings = True

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """As x; a new tensor is never pending."""
        return [layout if self.schema.written else layout.without_partial()]

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """One torch call on a tensor of the global shape and strides."""
        call = compile_call(self.call.func, self.call.args, self.call.kwargs)
        x = self.inputs[0]
        assert x is not None
        mine = inputs[0]
        if x.layout.is_replicate and mine[0].stride() == x.spec.stride:
            drawn = call(mine)
            for out in outputs:
                out[:] = [drawn]
            return
        spec = x.spec
        whole = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=mine[0].device)
        drawn = call([whole, *mine[1:]])
        target = x.layout if self.schema.written else x.layout.without_partial()
        parts = _dealt(drawn, target, self.mesh)
        for local, out, coord in zip(inputs, outputs, group.coords, strict=True):
            out[:] = [local[0].copy_(parts[coord]) if self.schema.written else parts[coord]]

    def traffic_bytes(self) -> int:
        """What is written."""
        return 0 if self.inputs[0] is None else self.inputs[0].nbytes


def _dealt(full: torch.Tensor, layout: Layout, mesh: DeviceMesh) -> dict[tuple[int, ...], torch.Tensor]:
    """The parts of a full tensor by coordinate."""
    return dict(zip(mesh.coords, redistribute.split(full, layout, mesh), strict=True))


class RandomFill(Random):
    """Random numbers in place, and the same made functional by torch."""

    type = "Create"
    torch_ops = (
        "aten.normal.default", "aten.normal_functional", "aten.uniform", "aten.random", "aten.exponential",
        "aten.geometric", "aten.cauchy", "aten.log_normal", "aten.bernoulli.float", "aten.bernoulli.p",
        "aten.bernoulli.Tensor",
    )  # fmt: skip


class RandomLike(Random):
    """Random numbers in the likeness of a tensor."""

    type = "Create"
    torch_ops = ("aten.rand_like", "aten.randn_like", "aten.randint_like")


class Dropout(Operator):
    """native_dropout(input, p, train): y = x mask / (1 - p); the mask is one draw."""

    torch_ops = ("aten.native_dropout",)
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
        scales, masks = _dealt(scale, x.layout, self.mesh), _dealt(mask, x.layout, self.mesh)
        for local, out, coord in zip(inputs, outputs, group.coords, strict=True):
            out[:] = [local[0] * scales[coord], masks[coord]]

    def _draw(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.call.func(x, self.arguments["p"], self.arguments["train"])
