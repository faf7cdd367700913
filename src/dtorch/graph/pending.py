"""What was recorded and has not run.

A node is (recipe, inputs, outputs, where). Before running, nodes are dropped whose outputs nobody can see any
more and that write nothing; what is left goes to the runner in program order. References tell what is wanted:
an operand that only pending nodes hold is an intermediate.
"""

from __future__ import annotations

from collections import Counter
from sys import getrefcount
from typing import Any

from dtorch.graph.settings import Settings
from dtorch.op.operand import Failed, Operand

MAX_BYTES = 256 * 2**20
"""Bytes of outputs that may be pending: what a program makes and drops between two values it asks for."""
MAX_NODES = 20_000
"""A backstop for programs that make nothing but tiny tensors and never ask for one."""

Node = tuple[Any, list[Operand], tuple[Operand, ...], Any]


def _references_of_a_node() -> int:
    """What `getrefcount` says, in a loop as in `Pending.take`, of an output that nobody else holds."""
    outputs = (object(),)
    for output in outputs:
        count = getrefcount(output)
    return count


_REFERENCES_OF_A_NODE = _references_of_a_node()


class Pending:
    """The recorded nodes of one graph, all recorded under the same settings.

    Attributes:
        nodes: in program order.
        nbytes: of their outputs.
        converted: operands that hold a conversion recorded among the nodes.
        settings: what they were recorded under.
        failure: the first failure that nobody has been told of.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.nbytes = 0
        self.converted: list[Operand] = []
        self.settings: Settings | None = None
        self.failure: BaseException | None = None

    def take(self) -> tuple[list[Node], list[list[bool]]]:
        """The nodes that must run, emptied out of here, and which of their outputs are wanted."""
        self._drop_conversions()
        references: dict[int, int] = {}  # of each operand, from nodes' inputs
        needed: set[int] = set()  # operands that a node which must run reads
        seen: set[int] = set()  # buffers with a member that somebody wants
        kept: list[Node] = []
        wanted: list[list[bool]] = []
        for node in reversed(self.nodes):
            recipe, inputs, outputs, _ = node
            flags, alive = [], bool(recipe.written)
            for output in outputs:
                inside = references.get(id(output), 0)
                flag = getrefcount(output) - _REFERENCES_OF_A_NODE - inside > 0
                if output.shared is not None:
                    # Views share its storages, and may have to change together with them.
                    flag = flag or id(output.shared) in seen
                    if flag:
                        seen.add(id(output.shared))
                flags.append(flag)
                alive = alive or id(output) in needed or flag
            for name in map(id, inputs):  # a loop over the operands would leave a reference to the last one
                references[name] = references.get(name, 0) + 1
            if alive:
                needed.update(map(id, inputs))
                kept.append(node)
                wanted.append(flags)
        kept.reverse()
        wanted.reverse()
        self.nodes, self.nbytes = [], 0
        return kept, wanted

    def put_back(self, nodes: list[Node]) -> None:
        """Return nodes that an interrupt kept from running; they run when a value is next asked for."""
        self.nodes = nodes + self.nodes

    def fail(self, nodes: list[Node], error: BaseException) -> None:
        """Spoil the outputs of nodes that could not be run at all, and what they were to write."""
        for recipe, inputs, outputs, _ in nodes:
            for operand in outputs:
                operand.parts = Failed(error)
            for i in recipe.written:
                for member in inputs[i].buffer.live_members():
                    member.parts = Failed(error)

    def _drop_conversions(self) -> None:
        """Take conversions from operands that only nodes hold, or they would look wanted."""
        held, self.converted = {id(operand): operand for operand in self.converted}, []
        if not held:
            return
        inside: Counter[int] = Counter()
        for _, inputs, outputs, _ in self.nodes:
            inside.update(name for operand in (*inputs, *outputs) if (name := id(operand)) in held)
        while held:
            name, operand = held.popitem()
            # Here the operand has two more references: its variable and getrefcount's argument.
            if getrefcount(operand) - 2 <= inside[name]:
                operand.converted = None
