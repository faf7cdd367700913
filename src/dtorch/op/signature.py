"""Placement signatures: which input placements an operator accepts on one mesh axis, and what comes out.

A signature is a list of rows. A row gives one role to each input and output: an int (that tensor dim is cut),
"R" (whole on every device), "P" (pending sum), or None (the optional input is absent). Rows come from an
operator's dims line (`dims.py`) or from the explicit builder:

    signature = (
        PlacementSignature.builder(2, 1)
        .add_input("S0").add_input("R").add_output("S0").build()
        .add_input("S1").add_input("S0").add_output("P").build()
        .finish()
    )
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from dtorch.errors import PlacementError
from dtorch.placement import Partial, Placement, Replicate, Shard, as_placement

Role = int | str | None


class Row(NamedTuple):
    """One rule on one mesh axis."""

    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...]


def role_of(placement: Placement | str) -> Role:
    """Shard(d) -> d, Replicate -> "R", Partial -> "P"."""
    placement = as_placement(placement)
    if placement.is_shard():
        return placement.get_shard_index()
    return "P" if placement.is_partial() else "R"


def placement_of(role: Role) -> Placement:
    """The inverse of `role_of`."""
    if isinstance(role, int):
        return Shard(role)
    return Partial() if role == "P" else Replicate()


def role_text(role: Role) -> str:
    """How a role is written in tables: S(0), R, P, or - for an absent input."""
    if role is None:
        return "-"
    return f"S({role})" if isinstance(role, int) else role


Place = tuple[str, int, int]
"""A dim of an operand: ("in" or "out", number of the operand, dim)."""


class PlacementSignature:
    """The table of legal rows of one operator; all-Replicate is always among them.

    Attributes:
        n_inputs, n_outputs: numbers of operands.
        rows: the rules.
        scaled: dims that are cut together though their sizes differ, each in chunks of its own size.
    """

    __slots__ = ("__dict__", "n_inputs", "n_outputs", "rows", "scaled")

    def __init__(
        self, n_inputs: int, n_outputs: int, rows: Iterable[Row], scaled: frozenset[Place] = frozenset()
    ) -> None:
        self.n_inputs = n_inputs
        self.n_outputs = n_outputs
        self.rows = tuple(dict.fromkeys(rows))
        self.scaled = scaled

    def with_rows(self, rows: Iterable[Row]) -> PlacementSignature:
        """Other rows of the same operands."""
        return PlacementSignature(self.n_inputs, self.n_outputs, rows, self.scaled)

    @staticmethod
    def builder(n_inputs: int, n_outputs: int) -> SignatureBuilder:
        """Start an explicit signature of `n_inputs` inputs and `n_outputs` outputs."""
        return SignatureBuilder(n_inputs, n_outputs)

    def match(
        self, input_placement_seqs: Sequence[Sequence | None]
    ) -> tuple[tuple[Placement, ...], ...] | None:
        """Output placements for given input placements, mesh axis by mesh axis; None where a row is missing.

        Args:
            input_placement_seqs: for each input its placements, one per mesh axis; None for an absent input.
        """
        n_axes = next(len(seq) for seq in input_placement_seqs if seq is not None)
        columns: list[list[Placement]] = [[] for _ in range(self.n_outputs)]
        for axis in range(n_axes):
            roles = tuple(None if seq is None else role_of(seq[axis]) for seq in input_placement_seqs)
            row = self.find(roles)
            if row is None:
                return None
            for column, role in zip(columns, row.outputs, strict=True):
                column.append(placement_of(role))
        return tuple(tuple(column) for column in columns)

    def find(self, roles: tuple[Role, ...]) -> Row | None:
        """The first row whose inputs are exactly `roles`; an absent input (None) fits any row."""
        if None not in roles:
            return self._by_inputs.get(roles)
        for row in self.rows:
            if all(have is None or have == want for have, want in zip(roles, row.inputs, strict=True)):
                return row
        return None

    @cached_property
    def _by_inputs(self) -> dict[tuple[Role, ...], Row]:
        found: dict[tuple[Role, ...], Row] = {}
        for row in self.rows:
            found.setdefault(row.inputs, row)
        return found

    @cached_property
    def groups(self) -> dict[Place, int]:
        """Which tensor dims are cut together, by group number.

        Dims that one row cuts at once are the same dim of the mathematics, so they must be cut alike.
        """
        parent: dict[Place, Place] = {}

        def root(node: Place) -> Place:
            while parent.setdefault(node, node) != node:
                node = parent[node]
            return node

        for row in self.rows:
            nodes = [("in", i, r) for i, r in enumerate(row.inputs) if isinstance(r, int)]
            nodes += [("out", i, r) for i, r in enumerate(row.outputs) if isinstance(r, int)]
            for node in nodes:
                parent[root(node)] = root(nodes[0])
        numbers: dict[Place, int] = {}
        return {node: numbers.setdefault(root(node), len(numbers)) for node in parent}

    def __str__(self) -> str:
        lines = []
        for row in self.rows:
            left = ", ".join(role_text(r) for r in row.inputs)
            lines.append(f"{left} -> {', '.join(role_text(r) for r in row.outputs)}")
        return "\n".join(lines)


class SignatureBuilder:
    """Collects rows; see `PlacementSignature`."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        self._n_inputs = n_inputs
        self._n_outputs = n_outputs
        self._rows: list[Row] = []
        self._inputs: list[tuple[Role, bool]] = []
        self._outputs: list[Role] = []

    def add_input(self, placement: Placement | str) -> SignatureBuilder:
        """The next input's placement in the rule being written."""
        self._inputs.append((role_of(placement), False))
        return self

    def add_optional_input(self, placement: Placement | str) -> SignatureBuilder:
        """As `add_input`; the rule also holds without that input."""
        self._inputs.append((role_of(placement), True))
        return self

    def add_output(self, placement: Placement | str) -> SignatureBuilder:
        """The next output's placement in the rule being written."""
        self._outputs.append(role_of(placement))
        return self

    def build(self) -> SignatureBuilder:
        """End the rule.

        Raises:
            PlacementError: the rule has too few or too many inputs or outputs.
        """
        if len(self._inputs) != self._n_inputs or len(self._outputs) != self._n_outputs:
            raise PlacementError(
                f"a rule of this signature has {self._n_inputs} inputs and {self._n_outputs} outputs, "
                f"got {len(self._inputs)} and {len(self._outputs)}"
            )
        variants: list[tuple[Role, ...]] = [()]
        for role, optional in self._inputs:
            variants = [v + (r,) for v in variants for r in ((role, None) if optional else (role,))]
        self._rows += [Row(v, tuple(self._outputs)) for v in variants]
        self._inputs, self._outputs = [], []
        return self

    def finish(self) -> PlacementSignature:
        """Add the all-Replicate row and return the signature."""
        whole = Row(("R",) * self._n_inputs, ("R",) * self._n_outputs)
        return PlacementSignature(self._n_inputs, self._n_outputs, [whole, *self._rows])
