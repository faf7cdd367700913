"""Running a sequence node by node: the first time it is met, and to the end after something failed.

A failure spoils the node's outputs, what it may have half written, and everything that depends on either;
whatever else was recorded runs, and writes made before stand. An interrupt spoils what it may have left half
written, and hands back the nodes that have not run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dtorch.errors import OperatorError
from dtorch.graph.confirm import failure_at, line_of
from dtorch.graph.held import memory_note
from dtorch.op.operand import Failed, Operand
from dtorch.plan.rest import rest
from dtorch.plan.running import Running


def give(operand: Operand, parts: Any) -> None:
    """Set the parts of an operand that has run."""
    operand.give(parts)


def interpret(
    running: Running,
    nodes: Sequence[int],
    values: dict[int, Any],
    left: list[Any],
    error: BaseException | None = None,
) -> None:
    """Run nodes of a sequence.

    Args:
        running: the run they belong to.
        nodes: those that have not run, in program order.
        values: parts by operand number, of everything made before.
        left: where an interrupt leaves the nodes that have not run.
        error: what the first node failed with, if it did.

    Raises:
        Exception: the first failure, after all the rest has run.
        KeyboardInterrupt: as it came.
    """
    structure, wanted = running.structure, running.results
    remaining = Counter(number for node in nodes for number in structure.inputs[node])
    first: BaseException | None = None
    done = 0
    try:
        while done < len(nodes):
            node = nodes[done]
            results = _run_node(running, node, values, error if done == 0 else None)
            if type(results) is Failed:
                first = first or results.error
                _spoil(running, node, values, results)
            else:
                for j, number in zip(structure.recipes[node].kept, structure.outputs[node], strict=True):
                    values[number] = results[j]
                    if number in wanted:
                        give(wanted[number], results[j])
            done += 1
            remaining.subtract(structure.inputs[node])
            for number in (*structure.inputs[node], *structure.outputs[node]):
                if remaining[number] <= 0:
                    values.pop(number, None)
    except BaseException:
        unfinished = nodes[done:]
        left[:] = rest(running, unfinished[_spoil_half_written(running, unfinished, values) :], values)
        raise
    if first is not None:
        raise first


def _run_node(running: Running, node: int, values: dict[int, Any], error: BaseException | None) -> Any:
    """The parts of each output, or Failed."""
    inputs = [values.get(number) for number in running.structure.inputs[node]]
    bad = next((parts for parts in inputs if type(parts) is Failed), None)
    if bad is not None:
        return bad
    recipe = running.structure.recipes[node]
    try:
        if error is not None:
            raise error
        return recipe.program.run(inputs)
    except Exception as found:
        note = memory_note(found, values.values())
        return Failed(failure_at(found, recipe.operator, recipe.operator.inputs, running.places[node], note))


def _spoil(running: Running, node: int, values: dict[int, Any], failed: Failed) -> None:
    """Spoil what a node makes, and all that shares storage with what some devices may have written."""
    structure = running.structure
    for number in structure.outputs[node]:
        values[number] = failed
        if number in running.results:
            give(running.results[number], failed)
    for i in structure.recipes[node].written:
        written = structure.inputs[node][i]
        for number in running.aliases(written):
            if number in values or number == written:
                values[number] = failed
        buffer = running.buffer(written)
        if buffer is not None:
            buffer.spoil(failed)


def _spoil_half_written(running: Running, nodes: Sequence[int], values: dict[int, Any]) -> bool:
    """Spoil what the first of these nodes writes, if it does; one that makes new values can run again."""
    recipe = running.structure.recipes[nodes[0]] if nodes else None
    if recipe is None or not recipe.written:
        return False
    text = f"interrupted while {recipe.operator.describe()} wrote it"
    error = OperatorError(f"{text}\n  called from {line_of(running.places[nodes[0]])}")
    _spoil(running, nodes[0], values, Failed(error))
    return True
