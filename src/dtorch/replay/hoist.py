"""Views that a replay need not make.

A view of a parameter shares the parameter's memory, and writes into the parameter are seen through it. So as
long as the parameter keeps its local tensors, its views are what they were: they are made once, when a call
is captured.

`detach` tells autograd something, and a replay has no autograd: what is read of its result is read of what it
was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dtorch.op.operand import Parts
from dtorch.plan.structure import Selection, Structure

_ALIASES = ("aten.detach", "aten.alias")


def drop_detached(
    structure: Structure, selection: Selection, given: set[int]
) -> tuple[Selection, dict[int, int]]:
    """Take out calls of `detach` on what the sequence makes; the structure then reads what they were given.

    Args:
        structure: of the sequence, changed.
        selection: what of it is to run.
        given: outputs that become tensors of the program; two of them never become one.

    Returns:
        The selection without them, and the output that stands for each one's.
    """
    stands: dict[int, int] = {}
    left = []
    inputs = structure.inputs = list(structure.inputs)
    for node in selection.nodes:
        inputs[node] = read = tuple([stands.get(number, number) for number in inputs[node]])
        operator, outputs = structure.recipes[node].operator, structure.outputs[node]
        alias = operator.name in _ALIASES and read[0] < structure.num_made
        if (
            alias
            and not given.issuperset((read[0], outputs[0]))
            and structure.spec(read[0]) is structure.spec(outputs[0])
        ):
            given = given | {read[0]} if outputs[0] in given else given
            stands[outputs[0]] = read[0]
            continue
        left.append(node)
    wanted = tuple(dict.fromkeys([stands.get(number, number) for number in selection.wanted]))
    return Selection(tuple(left), wanted, selection.bound), stands


def hoist(structure: Structure, selection: Selection, stays: set[int]) -> tuple[Selection, tuple[int, ...]]:
    """Take nodes out of a selection that only view what stays.

    Args:
        structure: of the sequence.
        selection: what of it is to run.
        stays: numbers of the operands from outside whose local tensors, or values, stay the same.

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
