"""Counting the FLOPs of a function in every way that it can be run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

import dtorch
from dtorch import DeviceMesh, Graph
from dtorch.graph.logical_graph import LogicalGraph

ONE = DeviceMesh("cpu")
Function = Callable[..., Any]

CPU_WAYS = ("grad", "no_grad", "inference")
"""Under autograd torch makes small operators of large ones; below inference_mode the large ones arrive."""

WAYS = (*CPU_WAYS, "meta", "described cuda")


def on_one_device(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [
        dtorch.Tensor(t.detach(), device_mesh=ONE).requires_grad_(t.requires_grad)
        if t.layout is torch.strided
        else t
        for t in tensors
    ]


@contextmanager
def recorded() -> Iterator[LogicalGraph]:
    with Graph.default_graph().record() as graph:
        yield graph


def recorded_in(way: str, fn: Function, tensors: Sequence[torch.Tensor]) -> LogicalGraph:
    """What the function is recorded as on one cpu device."""
    placed = on_one_device(*tensors)
    mode = {"grad": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}[way]
    if way == "grad":
        placed = [t.requires_grad_() if t.is_floating_point() else t for t in placed]
    with mode(), recorded() as graph:
        fn(*placed)
    return graph


def flops(way: str, fn: Function, tensors: Sequence[torch.Tensor]) -> int | None:
    """FLOPs of a function, counted in one of `WAYS`."""
    if way in CPU_WAYS:
        return recorded_in(way, fn, tensors).cost().flops
    moved = [t.to("meta") for t in tensors] if way == "meta" else tensors
    device = None if way == "meta" else "h100-sxm"
    with torch.no_grad():
        return dtorch.price(fn, *moved, device=device).flops


def forward_and_backward(fn: Function, tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
    """FLOPs of the forward, and of the backward that follows."""
    placed = [t.requires_grad_() if t.is_floating_point() else t for t in on_one_device(*tensors)]
    with recorded() as forward:
        y = fn(*placed)
    with recorded() as backward:
        y.sum().backward()
    return forward.cost().flops or 0, backward.cost().flops or 0
