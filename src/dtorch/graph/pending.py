"""What was recorded and has not run.

A node is (recipe, inputs, outputs, where). All nodes go to the runner in program order, which leaves out
those whose outputs nobody can see any more (`plan/structure.py`).
"""

from __future__ import annotations

from typing import Any

from dtorch.graph.settings import Settings
from dtorch.op.operand import Failed, Operand

Node = tuple[Any, list[Any], tuple[Operand, ...], Any]


class Pending:
    """The recorded nodes of one graph, all recorded under the same settings.

    Attributes:
        nodes: in program order.
        nbytes: of what they make and of what was put, copied or drawn meanwhile, counted since what they hold
            was last looked at.
        converted: operands that hold a conversion recorded among the nodes.
        settings: what they were recorded under.
        failure: the first failure that nobody has been told of.
        max_bytes: that nodes alone may hold, what the program has dropped, beyond what the largest call needs
            (`plan/excess.py`). Looked at when `nbytes` comes to it.
        max_nodes: a backstop for programs that make nothing but tiny tensors and never ask for one.
    """

    __slots__ = ("converted", "failure", "nbytes", "nodes", "settings")

    max_bytes = 256 * 2**20
    max_nodes = 20_000

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.nbytes = 0
        self.converted: list[Operand] = []
        self.settings: Settings | None = None
        self.failure: BaseException | None = None

    def is_too_much(self, runner: Any) -> bool:
        """Whether it must run, where a count is above its limit. If not, bytes are counted anew."""
        if len(self.nodes) <= self.max_nodes:
            excess = runner.excess_bytes(self.nodes, self.converted)
            if excess <= self.max_bytes:
                self.nbytes = min(excess, self.max_bytes // 2)  # not to look again at each call
                return False
        return True

    def take(self) -> tuple[list[Node], list[Operand]]:
        """The nodes, emptied out of here, and the operands that hold a conversion recorded among them."""
        taken = self.nodes, self.converted
        self.nodes, self.converted, self.nbytes = [], [], 0
        return taken

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
