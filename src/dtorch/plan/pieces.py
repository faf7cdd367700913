"""Cutting a sequence that was never met where familiar calls border on others.

A program whose sizes grow makes calls that come once and never again. Were they run together with the calls
around them, whole stretches would be new each time; cut apart, the familiar stretches between them keep their
plans.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from dtorch.graph import rounds
from dtorch.plan.structure import Flags, Selection, Structure

MIN_NODES = 8
"""A piece of fewer calls is interpreted: a plan gains less than looking at what is new beside it takes."""


class Piece(NamedTuple):
    """Nodes that run together, which of their outputs are wanted, and whether the calls are familiar."""

    nodes: list[Any]
    flags: Flags
    familiar: bool

    @property
    def short(self) -> bool:
        """Whether it is not worth a plan."""
        return len(self.nodes) < MIN_NODES


def pieces_of(nodes: list[Any], structure: Structure, selection: Selection) -> list[Piece]:
    """The pieces, in program order; what a later piece reads is wanted of an earlier one.

    Args:
        nodes: the sequence.
        structure: of it.
        selection: what of it is to run.
    """
    now = rounds.present()

    def is_familiar(node: int) -> bool:
        recipe, _, _, place = nodes[node]
        return recipe.meet(place, now)

    groups = [(key, list(group)) for key, group in groupby(selection.nodes, is_familiar)]
    wanted = set(selection.wanted)
    found = []
    for familiar, group in reversed(groups):
        flags = tuple([number in wanted for node in group for number in structure.outputs[node]])
        found.append(Piece([nodes[node] for node in group], flags, familiar))
        for number in [number for node in group for number in structure.inputs[node]]:
            wanted.update((number, structure.roots.get(number, number)))
    return found[::-1]
