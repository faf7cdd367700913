"""Gradients of leaves: brought to the leaf's placements once, before they are accumulated.

Autograd itself is torch's, over symbols; what happens to a gradient here is the identity on its value. What
arrives may be the user's own tensor, or another leaf's too: it is never changed, the leaf gets another one.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import unserializable_hook
from torch.utils.weak import WeakIdKeyDictionary

from dtorch.graph.conversion import convert
from dtorch.op.operand import Operand
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.graph import Graph
    from dtorch.tensor import Tensor

_PLAIN: WeakIdKeyDictionary = WeakIdKeyDictionary()  # plain tensors that have their hook


def watch(leaf: Tensor) -> None:
    """Install the hooks of a leaf that requires grad, once."""
    if leaf._watched or not leaf.requires_grad or not leaf.is_leaf:
        return
    leaf._watched = True
    seen = weakref.ref(leaf)

    @unserializable_hook  # a copy of the leaf is watched anew
    def arriving(grad: torch.Tensor | None) -> torch.Tensor | None:
        owner = seen()
        if owner is None or grad is None:  # torch hands undefined gradients to hooks too
            return None
        if owner.grad is not None and not hasattr(owner.grad, "_operand"):  # the user's, plain
            owner.grad = _at_home(owner.grad, owner)
        if _may_stay(grad, owner):
            return None
        if torch.is_grad_enabled():
            return _Home.apply(grad, owner)
        return _at_home(grad, owner)

    def accumulated(owner: Any) -> None:
        # Micro-batches accumulated inside no_sync() are reduced together with the last one, once.
        grad: Any = owner.grad
        there = owner._operand.spec
        fits = hasattr(grad, "_operand") and grad.shape == owner.shape
        if owner._graph.syncing and fits and grad._operand.layout is not there.layout:
            grad._operand = _converted(grad, there, owner._graph)

    leaf.register_hook(arriving)
    leaf.register_post_accumulate_grad_hook(accumulated)


def watch_plain(tensor: torch.Tensor) -> None:
    """Give plain gradients to a plain tensor that takes part in a distributed computation."""
    if tensor not in _PLAIN:
        _PLAIN[tensor] = True
        tensor.register_hook(_plain)


@unserializable_hook
def _plain(grad: torch.Tensor) -> torch.Tensor | None:
    return grad.to_torch() if hasattr(grad, "_operand") else None  # type: ignore[attr-defined]


def _may_stay(grad: torch.Tensor, owner: Tensor) -> bool:
    """Whether the gradient is fit to be accumulated as it is."""
    operand, there = getattr(grad, "_operand", None), owner._operand
    if grad.shape != owner.shape:
        return True  # unsqueeze_ and its like came between: torch accumulates what it has
    if operand is None or operand.spec.mesh != there.spec.mesh:
        return False
    return operand.layout is there.layout or not owner._graph.syncing or _pending(owner)


def _pending(leaf: Tensor) -> bool:
    """Whether the gradient so far is a pending sum that the new one should join before both are reduced."""
    grad = leaf.grad
    return grad is not None and bool(grad._operand.layout.partial)


class _Home(torch.autograd.Function):
    """`_at_home`, for gradients that are differentiated again."""

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, owner: Tensor) -> torch.Tensor:
        ctx.plain = not hasattr(grad, "_operand")
        return _at_home(grad, owner)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return (grad.to_torch() if ctx.plain else grad), None  # type: ignore[attr-defined]


def _at_home(grad: torch.Tensor, owner: Tensor) -> Tensor:
    """The gradient under the layout of its leaf."""
    from dtorch.tensor import distribute, wrap

    there = owner._operand
    if not hasattr(grad, "_operand"):
        return distribute(grad, there.spec.mesh, there.layout, owner._graph)
    return wrap(_converted(grad, there.spec, owner._graph), owner._graph)


def _converted(grad: Any, like: Spec, graph: Graph) -> Operand:
    operand = grad._operand
    if grad._graph is not graph:
        grad._graph.parts(operand)
    with graph.lock, torch._C.DisableTorchFunction(), torch.no_grad():
        return convert(graph.constructor, operand, like.layout, like.mesh, keep=False)
