"""Gradients of leaves: brought to the leaf's placements once, before they are accumulated.

Autograd itself is torch's, over symbols. Since a conversion leaves the global value as it is, bringing a gradient
to other placements only exchanges the parts behind the symbol: autograd need not know, second-order graphs stay.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from dtorch.op.operand import Operand
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.layout import Layout
    from dtorch.tensor import Tensor


def watch(leaf: Tensor) -> None:
    """Install the hooks of a leaf that requires grad, once."""
    if leaf._watched or not leaf.requires_grad or not leaf.is_leaf:
        return
    leaf._watched = True
    seen = weakref.ref(leaf)

    def arriving(grad: torch.Tensor) -> None:
        owner = seen()
        if owner is not None and owner._graph.syncing and not _pending(owner):
            bring(grad, owner._operand.layout)

    def accumulated(owner: torch.Tensor) -> None:
        # Micro-batches accumulated inside no_sync() are reduced together with the last one, once.
        if owner._graph.syncing and owner.grad is not None:  # type: ignore[attr-defined]
            bring(owner.grad, owner._operand.layout)  # type: ignore[attr-defined]

    leaf.register_hook(arriving)
    leaf.register_post_accumulate_grad_hook(accumulated)


def _pending(leaf: Tensor) -> bool:
    """Whether the gradient so far is a pending sum that the new one should join before both are reduced."""
    grad = leaf.grad
    return grad is not None and bool(grad._operand.layout.partial)  # type: ignore[attr-defined]


def bring(tensor: torch.Tensor, layout: Layout) -> None:
    """Exchange the parts behind a tensor for those of another layout; its value stays."""
    operand = getattr(tensor, "_operand", None)
    if operand is None or operand.layout is layout or operand.shape != layout.shape:
        return
    graph = tensor._graph  # type: ignore[attr-defined]
    with graph.lock, torch._C.DisableTorchFunction(), torch.no_grad():
        parts = graph.constructor.convert(operand, layout, keep=False)
    spec = operand.spec
    tensor._operand = Operand(  # type: ignore[attr-defined]
        Spec(spec.shape, spec.stride, spec.dtype, layout, spec.mesh), parts, None, operand.offset
    )
