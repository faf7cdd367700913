"""What was recorded and has not run.

A node is (recipe, inputs, outputs, where). Before running, nodes are dropped whose outputs nobody can see any
more and that write nothing; what is left goes to the runner in program order. References tell what is wanted:
an operand that only pending nodes hold is an intermediate.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from dtorch.op.operand import Operand

MAX_BYTES = 256 * 2**20
"""Bytes of outputs that may be pending: what a program makes and drops between two values it asks for."""
MAX_NODES = 20_000
"""A backstop for programs that make nothing but tiny tensors and never ask for one."""

_REFERENCES_OF_A_NODE = 3
"""To an output that nobody else holds: the node's tuple, the loop's variable, getrefcount's argument."""

Node = tuple[Any, list[Operand], tuple[Operand, ...], Any]


class Pending:
    """The recorded nodes of one graph, all recorded under one default dtype."""

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []
        self.nbytes = 0
        self.default_dtype: Any = None

    def take(self) -> tuple[list[Node], list[list[bool]]]:
        """The nodes that must run, emptied out of here, and which of their outputs are wanted."""
        nodes, self.nodes, self.nbytes = self.nodes, [], 0
        uses: dict[int, int] = {}
        wanted: list[list[bool]] = []
        for i in range(len(nodes) - 1, -1, -1):
            recipe, inputs, outputs, _ = nodes[i]  # type: ignore[misc]
            flags, alive = [], bool(recipe.written)
            for output in outputs:
                inside = uses.get(id(output), 0)
                outside = getrefcount(output) - _REFERENCES_OF_A_NODE - inside
                flags.append(outside > 0 or (output.shared is not None and _seen_by_views(output)))
                alive = alive or inside > 0 or flags[-1]
            if not alive:
                nodes[i] = None
                continue
            for operand in inputs:
                uses[id(operand)] = uses.get(id(operand), 0) + 1
            wanted.append(flags)
        wanted.reverse()
        return [node for node in nodes if node is not None], wanted


def _seen_by_views(operand: Operand) -> bool:
    """Whether living views share the operand's storages, which they may have to change together."""
    buffer = operand.shared
    return (
        buffer is not None
        and buffer.root_parts is None
        and any(member is not operand for member in buffer.live_members())
    )
