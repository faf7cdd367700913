"""Ranges and marks in the timeline of NVIDIA's profilers; without CUDA they do nothing.

With CUDA, what is pending runs first, so that a range holds the work of the calls inside it and no other. A
recorded graph shows each as a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dtorch.graph.graph import Graph
from dtorch.ops.system.nvtx import Nvtx, NvtxParam


def range_push(message: str) -> None:
    """Begin a range; ranges nest."""
    _do(NvtxParam("range_push", message))


def range_pop() -> None:
    """End the range that was begun last."""
    _do(NvtxParam("range_pop"))


def mark(message: str) -> None:
    """Set a mark."""
    _do(NvtxParam("mark", message))


@contextmanager
def range(message: str) -> Iterator[None]:
    """A range around what is inside."""
    range_push(message)
    try:
        yield
    finally:
        range_pop()


def _do(param: NvtxParam) -> None:
    graph = Graph.default_graph()
    graph.control(Nvtx(param, []))
    if torch.cuda.is_available():
        graph.constructor.flush()
        given = (param.message,) if param.action != "range_pop" else ()
        getattr(torch.cuda.nvtx, param.action)(*given)
