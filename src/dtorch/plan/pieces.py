"""Cutting a sequence that was never met where calls that some plan knows border on calls that none knows.

A program whose sizes grow makes calls that come once and never again. Were they run together with the calls
around them, whole stretches would be new each time; cut apart, the stretches between them keep their plans.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Any, NamedTuple


class Piece(NamedTuple):
    """Nodes that run together, and which of their outputs are wanted."""

    nodes: list[Any]
    wanted: list[list[bool]]


def pieces_of(nodes: list[Any], wanted: list[list[bool]], known: AbstractSet[Any]) -> list[Piece]:
    """The pieces, in program order; what a later piece reads is wanted of an earlier one.

    Args:
        nodes: the sequence.
        wanted: for each node, which of its outputs are.
        known: recipes that are part of plans.
    """
    groups = [list(group) for _, group in groupby(range(len(nodes)), lambda i: nodes[i][0] in known)]
    read_later: set[int] = set()
    found = []
    for group in reversed(groups):
        flags = [
            [flag or id(output) in read_later for flag, output in zip(wanted[i], nodes[i][2], strict=True)]
            for i in group
        ]
        found.append(Piece([nodes[i] for i in group], flags))
        for i in group:
            read_later.update(map(id, nodes[i][1]))
    return found[::-1]
