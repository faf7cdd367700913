"""Copies: clone, and contiguous, which is one where x is not contiguous already.

    y = x

Shapes      x [...] -> y [...]
FLOPs       none; touched are x read and y written
Placements  as every element-wise operator (`pointwise.py`), and P -> P

Whether a distributed tensor is contiguous, its global strides say, as on one device. Under autograd torch
asks itself, and calls clone; below inference_mode contiguous arrives, and is a node only where it copies.
"""

from __future__ import annotations

import torch

from dtorch.op.operator import Local
from dtorch.op.param import Slot
from dtorch.ops.standard.pointwise import Pointwise


class Clone(Pointwise):
    """clone(memory_format)."""

    torch_ops = ("aten.clone",)

    def linear_inputs(self) -> list[set[int]]:
        """A copy of a part is a part of the copy."""
        return [{0}]


class Contiguous(Clone):
    """contiguous(memory_format), of a tensor that is not."""

    torch_ops = ("aten.contiguous",)

    def localize(self, coord: tuple[int, ...]) -> Local:
        """A copy even where the local part is contiguous: the output must not share its storage."""
        kwargs = {"memory_format": self.arguments["memory_format"]}
        return Local(coord, torch.ops.aten.clone.default, (Slot(0),), kwargs)
