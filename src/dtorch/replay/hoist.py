"""Views of what stays: made once, when a call is captured, not at each replay.

A view of a parameter shares the parameter's memory, and writes into the parameter are seen through it. So as
long as the parameter keeps its local tensors, its views are what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtorch.op.operand import Parts
from dtorch.plan.structure import Selection, Structure


def hoist(structure: Structure, selection: Selection, stays: set[int]) -> tuple[Selection, tuple[int, ...]]:
    """Take nodes out of a selection that only view what stays.

    Args:
        structure: of the sequence.
        selection: what of it is to run.
        stays: numbers of the operands from outside whose local tensors stay the same.

    Returns:
        The selection without them, their outputs bound instead; and the nodes, in program order.
    """
    known, nodes = set(stays), []
    for node in selection.nodes:
        recipe, outputs = structure.recipes[node], structure.outputs[node]
        views = recipe.views and all(structure.roots.get(number, number) != number for number in outputs)
        if views and not recipe.written and known.issuperset(structure.inputs[node]):
            nodes.append(node)
            known.update(outputs)
    left = tuple([node for node in selection.nodes if node not in set(nodes)])
    needed = {number for node in left for number in structure.inputs[node]} | set(selection.wanted)
    made = {number for node in left for number in structure.outputs[node]}
    return Selection(left, selection.wanted, tuple(sorted(needed - made))), tuple(nodes)


def make(structure: Structure, nodes: tuple[int, ...], parts: Callable[[int], Parts]) -> dict[int, Any]:
    """The local tensors of hoisted views, by number.

    Args:
        structure: of the sequence.
        nodes: from `hoist`.
        parts: of an operand from outside.
    """
    made: dict[int, Any] = {}
    for node in nodes:
        recipe = structure.recipes[node]
        inputs = [made[number] if number in made else parts(number) for number in structure.inputs[node]]
        results = recipe.program.run(inputs)
        for number, j in zip(structure.outputs[node], recipe.kept, strict=True):
            made[number] = results[j]
    return made
