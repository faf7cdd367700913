"""Running a sequence node by node: the first time it is met, and to the end after something failed.

A failure spoils the node's outputs, what it may have half written, and everything that depends on either;
whatever else was recorded runs, and writes made before stand. An interrupt spoils what it may have left half
written, and hands back the nodes that have not run.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dtorch.errors import OperatorError
from dtorch.graph.confirm import explain, line_of
from dtorch.graph.held import memory_note
from dtorch.op.operand import Failed, Operand
from dtorch.plan.rest import rest
from dtorch.plan.structure import Structure


def give(operand: Operand, parts: Any) -> None:
    """Set the parts of an operand that has run."""
    operand.give(parts)


def interpret(
    structure: Structure,
    values: dict[int, Any],
    left: list[Any],
    start: int = 0,
    error: BaseException | None = None,
) -> None:
    """Run the nodes from `start` on.

    Args:
        structure: the sequence.
        values: parts by operand number, of everything made before `start`.
        left: where an interrupt leaves the nodes that have not run.
        start: the first node to run, or the one that failed.
        error: what node `start` failed with, if it did.

    Raises:
        Exception: the first failure, after all the rest has run.
        KeyboardInterrupt: as it came.
    """
    remaining = Counter(number for inputs in structure.inputs[start:] for number in inputs)
    wanted = dict(structure.results)
    first: BaseException | None = None
    node = start
    try:
        while node < len(structure.recipes):
            inputs, outputs = structure.inputs[node], structure.outputs[node]
            results = _run_node(structure, node, values, error if node == start else None)
            if type(results) is Failed:
                first = first or results.error
                _spoil(structure, node, values, results, wanted)
            else:
                for j, number in zip(structure.recipes[node].kept, outputs, strict=True):
                    values[number] = results[j]
                    if number in wanted:
                        give(wanted[number], results[j])
            node += 1
            remaining.subtract(inputs)
            for number in (*inputs, *outputs):
                if remaining[number] <= 0:
                    values.pop(number, None)
    except BaseException:
        node += _spoil_half_written(structure, node, values, wanted)
        left[:] = rest(structure, node, values)
        raise
    if first is not None:
        raise first


def _run_node(structure: Structure, node: int, values: dict[int, Any], error: BaseException | None) -> Any:
    """The parts of each output, or Failed."""
    inputs = [values.get(number) for number in structure.inputs[node]]
    bad = next((parts for parts in inputs if type(parts) is Failed), None)
    if bad is not None:
        return bad
    recipe = structure.recipes[node]
    try:
        if error is not None:
            raise error
        return recipe.program.run(inputs)
    except Exception as found:
        note = memory_note(found, values.values())
        return Failed(explain(found, recipe.operator, recipe.operator.inputs, structure.places[node], note))


def _spoil(
    structure: Structure, node: int, values: dict[int, Any], failed: Failed, wanted: dict[int, Operand]
) -> None:
    """Spoil what a node makes, and all that shares storage with what some devices may have written."""
    for number in structure.outputs[node]:
        values[number] = failed
        if number in wanted:
            give(wanted[number], failed)
    for i in structure.recipes[node].written:
        written = structure.inputs[node][i]
        for number in structure.aliases(written):
            if number in values or number == written:
                values[number] = failed
        reference = structure.buffers.get(written)
        buffer = None if reference is None else reference()
        if buffer is not None:
            buffer.spoil(failed)


def _spoil_half_written(
    structure: Structure, node: int, values: dict[int, Any], wanted: dict[int, Operand]
) -> bool:
    """Spoil what an interrupted node writes, if it does; one that only makes new values can run again."""
    if node >= len(structure.recipes) or not structure.recipes[node].written:
        return False
    text = f"interrupted while {structure.recipes[node].operator.describe()} wrote it"
    error = OperatorError(f"{text}\n  called from {line_of(structure.places[node])}")
    _spoil(structure, node, values, Failed(error), wanted)
    return True
