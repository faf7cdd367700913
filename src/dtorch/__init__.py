"""dtorch: write single-device PyTorch in one process, see the price of every operator, run it on a mesh."""

from __future__ import annotations

from dtorch import ops as _ops
from dtorch.errors import (
    DeviceError,
    DtorchError,
    MeshMismatchError,
    OperatorError,
    PlacementError,
    ShapeError,
    UnsupportedError,
)
from dtorch.graph.graph import Graph
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh, init_device_mesh
from dtorch.placement import Partial, Placement, Replicate, Shard
from dtorch.runtime.runner import LocalRunner

Graph.runner_factory = LocalRunner

from dtorch.nn.parallelize import distribute_module, parallelize  # noqa: E402
from dtorch.tensor import Tensor  # noqa: E402  (graphs are handed their runner first)

__all__ = [
    "DeviceError",
    "DeviceMesh",
    "DtorchError",
    "Graph",
    "Layout",
    "MeshMismatchError",
    "OperatorError",
    "Partial",
    "Placement",
    "PlacementError",
    "Replicate",
    "Shard",
    "ShapeError",
    "Tensor",
    "UnsupportedError",
    "distribute_module",
    "init_device_mesh",
    "parallelize",
]


def record():  # type: ignore[no-untyped-def]
    """Collect the operators that run inside, on this thread's default graph."""
    return Graph.default_graph().record()
