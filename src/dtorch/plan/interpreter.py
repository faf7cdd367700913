"""Running a sequence node by node: the first time it is met, and to the end after something failed.

A failure spoils the node's outputs, what it may have half written, and everything that depends on either;
whatever else was recorded runs, and writes made before stand.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dtorch.graph.confirm import explain
from dtorch.op.operand import Failed, Operand
from dtorch.plan.structure import Structure


def give(operand: Operand, parts: Any) -> None:
    """Set the parts of an operand that has run."""
    operand.parts = parts
    if operand.shared is not None and operand.shared.root_parts is None:
        operand.shared.root_parts = parts


def interpret(
    structure: Structure, values: dict[int, Any], start: int = 0, error: BaseException | None = None
) -> None:
    """Run the nodes from `start` on.

    Args:
        structure: the sequence.
        values: parts by operand number, of everything made before `start`.
        start: the first node to run, or the one that failed.
        error: what node `start` failed with, if it did.

    Raises:
        Exception: the first failure, after all the rest has run.
    """
    remaining = Counter(number for inputs in structure.inputs[start:] for number in inputs)
    wanted = dict(structure.results)
    first: BaseException | None = None
    for node in range(start, len(structure.recipes)):
        inputs = structure.inputs[node]
        if first is not None and not isinstance(first, Exception):
            results: Any = Failed(first)  # interrupted: nothing that has not run may look whole
        else:
            results = _run_node(
                structure, node, [values.get(i) for i in inputs], error if node == start else None
            )
        if type(results) is Failed:
            first = first or results.error
            _spoil_writes(structure, node, values, results)
        for j, number in zip(structure.recipes[node].kept, structure.outputs[node], strict=True):
            values[number] = results if type(results) is Failed else results[j]
        for number in structure.outputs[node]:
            if number in wanted:
                give(wanted[number], values[number])
        remaining.subtract(inputs)
        for number in (*inputs, *structure.outputs[node]):
            if remaining[number] <= 0:
                values.pop(number, None)
    if first is not None:
        raise first


def _run_node(structure: Structure, node: int, inputs: list[Any], error: BaseException | None) -> Any:
    """The parts of each output, or Failed."""
    bad = next((parts for parts in inputs if type(parts) is Failed), None)
    if bad is not None:
        return bad
    recipe = structure.recipes[node]
    try:
        if error is not None:
            raise error
        return recipe.program.run(inputs)
    except Exception as found:
        return Failed(explain(found, recipe.operator, recipe.operator.inputs, structure.places[node]))
    except BaseException as found:
        return Failed(found)


def _spoil_writes(structure: Structure, node: int, values: dict[int, Any], failed: Failed) -> None:
    """What the node was to write may be written on some devices only."""
    for i in structure.recipes[node].written:
        number = structure.inputs[node][i]
        values[number] = failed
        operand = structure.sources[-1 - number]() if number < 0 else dict(structure.results).get(number)
        if operand is not None:
            for member in operand.buffer.live_members():
                member.parts = failed
