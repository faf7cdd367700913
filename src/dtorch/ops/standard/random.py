"""Random values: one draw for the whole tensor, each device its part, so that values depend on no layout.

Shapes      as x
FLOPs       none; touched is what is written
Placements  on one mesh axis

    x       normal_, uniform_, bernoulli_, ...    rand_like ...
    R       R                                     R
    S(d)    S(d)                                  S(d)
    P       P: the first device holds the value   R

The draw is made with x's global shape, strides and type, from the generator of the first device, which
therefore advances once, as on one device. x itself is not gathered: its values do not matter, or only where
they are. Operators whose numbers depend on values (multinomial, poisson, normal of tensors) go the general
way, and are drawn once too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import compile_call
from dtorch.op.group import Group
from dtorch.ops.standard.view import LayoutOperator


class Random(LayoutOperator, abstract=True):
    """Base: draws whole, and deals the parts out."""

    needs_siblings = True

    def transform(self, layout: Layout) -> Sequence[Layout | None] | None:
        """As x; a new tensor is never pending."""
        return [layout if self.schema.written else layout.without_partial()]

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """One torch call on a tensor of the global shape and strides."""
        x = self.inputs[0]
        assert x is not None
        mine = inputs[0]
        if x.layout.is_replicate and mine[0].stride() == x.spec.stride:
            drawn = self._call(mine)
            for out in outputs:
                out[:] = [drawn]
            return
        drawn = self.draw(mine[1:])
        target = x.layout if self.schema.written else x.layout.without_partial()
        parts = dealt(drawn, target, self.mesh)
        for local, out, coord in zip(inputs, outputs, group.coords, strict=True):
            out[:] = [local[0].copy_(parts[coord]) if self.schema.written else parts[coord]]

    def draw(self, others: Sequence[Any]) -> torch.Tensor:
        """The whole tensor, for the inputs beside x: a generator, or a tensor of chances."""
        x = self.inputs[0]
        assert x is not None
        spec, device = x.spec, self.mesh.torch_device(0)
        whole = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)
        return self._call([whole, *others])

    def draws_alone(self) -> bool:
        """Unless the chances are a tensor."""
        return sum(x is not None for x in self.inputs) == 1

    @cached_property
    def _call(self) -> Callable[[Sequence[Any]], Any]:
        return compile_call(self.call.func, self.call.args, self.call.kwargs)

    def traffic_bytes(self) -> int:
        """What is written."""
        return 0 if self.inputs[0] is None else self.inputs[0].nbytes


def dealt(full: torch.Tensor, layout: Layout, mesh: DeviceMesh) -> dict[tuple[int, ...], torch.Tensor]:
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
