"""A graph: what belongs together when programs run: its lock, its guards, its recorders, its runner."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dtorch.errors import UnsupportedError
from dtorch.graph.constructor import GraphConstructor
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.mesh import DeviceMesh
from dtorch.op.cost import OperatorCost

_IDS = itertools.count()
_LOCAL = threading.local()
POLICIES = ("auto", "error")


class Graph:
    """Records and runs operators.

    Attributes:
        id: a number, unique in the process.
        constructor: the door through which operators are added.
        policy: "auto" converts inputs where rules ask for it, "error" refuses conversions that send bytes.
        recorders: logical graphs that collect what runs now.
        syncing: whether gradients of leaves are reduced as they arrive.
        lock: held while an operator is added; an operator belongs to the graph of its operands.
    """

    runner_factory: Any = None

    def __init__(self) -> None:
        self.id = next(_IDS)
        self.lock = threading.RLock()
        self.policy = "auto"
        self.recorders: list[LogicalGraph] = []
        self.syncing = True
        self.default_device_mesh: DeviceMesh | None = None
        self.default_dtype: torch.dtype | None = None
        self.constructor = GraphConstructor(self, type(self).runner_factory())

    @staticmethod
    def default_graph() -> Graph:
        """The graph of this thread."""
        found = getattr(_LOCAL, "graph", None)
        if found is None:
            found = _LOCAL.graph = Graph()
        return found

    @contextmanager
    def record(self) -> Iterator[LogicalGraph]:
        """Collect the operators that run inside."""
        recorder = LogicalGraph()
        self.recorders.append(recorder)
        try:
            yield recorder
        finally:
            self.recorders.remove(recorder)

    @contextmanager
    def redistribute_policy(self, policy: str) -> Iterator[None]:
        """Run inside under a policy, "auto" or "error"."""
        before, self.policy = self.policy, check_policy(policy)
        try:
            yield
        finally:
            self.policy = before

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave leaf gradients as pending sums, accumulated locally."""
        before, self.syncing = self.syncing, False
        try:
            yield
        finally:
            self.syncing = before

    def satisfy(self, mesh: DeviceMesh) -> bool:
        """Whether this machine has every device of the mesh."""
        return not mesh.missing_devices()

    def cost(self) -> OperatorCost:
        """Price of what the open recorders have collected."""
        total = OperatorCost()
        for recorder in self.recorders:
            total = total + recorder.cost()
        return total

    def __deepcopy__(self, memo: Any) -> Graph:
        return self

    def __repr__(self) -> str:
        return f"Graph(id={self.id})"


def check_policy(policy: str) -> str:
    """The policy itself, if there is one of that name.

    Raises:
        UnsupportedError: it is neither "auto" nor "error".
    """
    if policy not in POLICIES:
        raise UnsupportedError(f"the redistribute policy is one of {POLICIES}, not {policy!r}")
    return policy
