"""Element-wise losses with a reduction: mse, smooth l1, huber, binary cross entropy, soft margin.

    y[...] = loss(x[...], target[...]);  sum: over all elements;  mean: the sum divided by their number

Shapes      x [...], target [...] -> y [...], or [] for mean and sum
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    x       target  y           dy      x       target  dx
    R       R       R           R       R       R       R
    S(d)    S(d)    S(d)|P      S(d)|R  S(d)    S(d)    S(d)        P for mean and sum
                                P       R       R       P
                                R       P       P       P       mse_loss

A P is reduced at once, a node of its own, except inside a backward. A mean divides by the number of elements
of the whole, in the backward too, so shards of unequal size, and empty ones, count as they should.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from dtorch.op.dims import Rule, broadcast_names
from dtorch.op.operator import Local, Operator

NONE, MEAN, SUM = 0, 1, 2

_KINDS = {
    "aten.mse_loss": "MSELoss", "aten.smooth_l1_loss": "SmoothL1Loss", "aten.binary_cross_entropy": "BCELoss",
}  # fmt: skip


class LossBase(Operator, abstract=True):
    """What forward and backward share."""

    @property
    def number(self) -> int:
        """Number of elements that a mean is taken over."""
        return torch.broadcast_shapes(*[s for s in self.shapes if s is not None]).numel()

    def localize(self, coord: tuple[int, ...]) -> Local:
        """A share of a mean is a sum, divided later by the number of all."""
        if self.arguments["reduction"] != MEAN or not any(x is not None and x.cut_axes for x in self.layouts):
            return super().localize(coord)
        return self.localized(coord, reduction=SUM)


class Loss(LossBase):
    """The losses."""

    left_out = (("aten.binary_cross_entropy", "R, R, P -> P", "weights are seldom pending"),)

    reduces = True
    torch_ops = (
        "aten.mse_loss", "aten.smooth_l1_loss", "aten.huber_loss", "aten.binary_cross_entropy",
        "aten.soft_margin_loss",
    )  # fmt: skip
    kinds: ClassVar[Mapping[str, str]] = _KINDS

    def rule(self) -> Rule:
        """Right-aligned names; a reduction sums over all of them."""
        names, output = broadcast_names(self.shapes)
        return Rule(names, (output if self.arguments["reduction"] == NONE else (),))

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """The share of a mean is divided by the number of all."""
        super().compute(inputs, outputs, local)
        if local.args is not self.call.args or local.kwargs is not self.call.kwargs:
            outputs[0] = outputs[0] / self.number


class LossBackward(LossBase):
    """Their gradients."""

    left_out = (("aten.binary_cross_entropy_backward", "R, R, R, P -> P", "weights are seldom pending"),)

    torch_ops = (
        "aten.mse_loss_backward", "aten.smooth_l1_loss_backward", "aten.huber_loss_backward",
        "aten.binary_cross_entropy_backward", "aten.soft_margin_loss_backward",
    )  # fmt: skip
    kinds: ClassVar[Mapping[str, str]] = {
        f"{name}_backward": f"{kind}Backward" for name, kind in _KINDS.items()
    }

    def rule(self) -> Rule:
        """Right-aligned names; linear in the gradient that comes in, squares also in what is compared."""
        names, output = broadcast_names(self.shapes)
        groups = [["grad_output"], ["self", "target"]] if "mse" in self.name else [["grad_output"]]
        slots = [[self.slot(name) for name in group] for group in groups]
        return Rule(names, (output,), tuple(frozenset(i for i in group if i is not None) for group in slots))

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """The gradient of a mean is divided by the number of all."""
        super().compute(inputs, outputs, local)
        if local.args is not self.call.args or local.kwargs is not self.call.kwargs:
            outputs[0] = outputs[0] / self.number
