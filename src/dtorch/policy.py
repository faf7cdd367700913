"""Switches of this thread's default graph: policies, guards and recording."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

import torch

from dtorch.graph.graph import Graph, check_policy
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.mesh import DeviceMesh


class set_redistribute_policy:
    """Choose what happens to inputs that fit no placement rule of their operator; holds from the call on.

    As a context it holds inside only, as `torch.set_grad_enabled` does.

    Args:
        policy: "auto" converts them, visibly; "error" refuses conversions that send bytes.

    Raises:
        UnsupportedError: neither of the two.
    """

    def __init__(self, policy: str) -> None:
        self.graph = Graph.default_graph()
        self.before, self.graph.policy = self.graph.policy, check_policy(policy)

    def __enter__(self) -> None:
        """The policy holds since the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.graph.policy = self.before


def strict() -> AbstractContextManager[None]:
    """Inside, an operator whose inputs would need implicit communication raises a PlacementError."""
    return Graph.default_graph().redistribute_policy("error")


def no_sync() -> AbstractContextManager[None]:
    """Inside, gradients of leaves stay pending sums, added up locally; the next backward outside reduces."""
    return Graph.default_graph().no_sync()


def record() -> AbstractContextManager[LogicalGraph]:
    """Collect the operators that run inside."""
    return Graph.default_graph().record()


def device_mesh(mesh: DeviceMesh | str | torch.device) -> AbstractContextManager[DeviceMesh]:
    """Inside, what is made without saying where lives on the mesh; see `Graph.device_mesh_guard`."""
    return Graph.default_graph().device_mesh_guard(mesh)
