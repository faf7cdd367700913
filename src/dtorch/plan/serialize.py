"""Plans to files and back: what a sequence computes, without values, so that another process can run it.

The file holds the sequence, not source: the reader writes the source anew. Reading runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from dtorch.errors import SerializationError
from dtorch.op import document, records
from dtorch.op.serialize import Reader, Writer, check_body
from dtorch.plan.codegen import Plan, compiled
from dtorch.plan.passes import state
from dtorch.plan.passes.listed import Rewritten
from dtorch.plan.structure import Selection, Structure
from dtorch.spec import Spec


class LoadedPlan:
    """A plan from a file.

    Attributes:
        outside: specs of the operands that a run is given, None for a number.
        plan: the generated plan.
    """

    def __init__(self, outside: Sequence[Spec | None], plan: Plan) -> None:
        self.outside = outside
        self.plan = plan

    def run(self, parts: Sequence[Any]) -> list[list[Any]]:
        """The parts of the results, for the parts of each outside operand (`Everywhere` for a number)."""
        return self.plan.function(list(parts))


def to_document(structure: Structure, selection: Selection) -> records.Document:
    """A file of what is to run of a sequence; in a file operand -1 is the first from outside."""
    writer = Writer()
    numbers = {number: -1 - i for i, number in enumerate(selection.bound)}
    made = [number for node in selection.nodes for number in structure.outputs[node]]
    numbers |= {number: i for i, number in enumerate(made)}
    nodes = [
        records.PlanNode(
            writer.operator(structure.recipes[node].operator),
            [numbers[number] for number in structure.inputs[node]],
            [numbers[number] for number in structure.outputs[node]],
            list(structure.recipes[node].kept),
        )
        for node in selection.nodes
    ]
    outside = [writer.maybe(structure.spec(number)) for number in selection.bound]
    return writer.document(records.PlanBody(nodes, outside, [numbers[n] for n in selection.wanted]))


def from_document(file: records.Document, prepare: Callable[..., Any]) -> LoadedPlan:
    """The plan of a file.

    Args:
        file: what was read.
        prepare: makes an operator runnable, as a runner does.

    Raises:
        SerializationError: the file is of something else, contradicts itself, or names what is not here.
    """
    with document.reading():
        check_body(file, records.PlanBody)
        body, reader = file.body, Reader(file)
        assert isinstance(body, records.PlanBody)
        outside = [reader.maybe(spec) for spec in body.outside]
        _check(body, reader)
        operators = [reader.operators[node.operator] for node in body.nodes]
        recipes = [
            SimpleNamespace(program=prepare(operator, operator.layouts), kept=node.kept, outputs=None)
            for operator, node in zip(operators, body.nodes, strict=True)
        ]
        first = sum(len(node.outputs) for node in body.nodes)
        inputs = [tuple([n if n >= 0 else first - 1 - n for n in node.inputs]) for node in body.nodes]
        structure = Structure(recipes, inputs, [tuple(node.outputs) for node in body.nodes], outside)
        bound = tuple(range(first, first + len(outside)))
        selection = Selection(tuple(range(len(recipes))), tuple(body.results), bound)
        as_saved = Rewritten(structure, selection)
        return LoadedPlan(outside, compiled(as_saved, (structure, selection), state.present().exact))


def _check(body: records.PlanBody, reader: Reader) -> None:
    """Whether each operand is there before it is read, as often as operators have inputs."""
    known = set(range(-len(body.outside), 0))
    made = [number for node in body.nodes for number in node.outputs]
    if made != list(range(len(made))):
        raise SerializationError("the outputs of the plan's nodes are not numbered in order")
    for i, node in enumerate(body.nodes):
        operator = reader.operators[node.operator]
        if not known.issuperset(node.inputs) or len(node.inputs) != len(operator.inputs):
            raise SerializationError(f"node {i} of the plan reads operands that nothing makes")
        if len(node.kept) != len(node.outputs) or any(j >= len(operator.outputs) for j in node.kept):
            raise SerializationError(f"node {i} of the plan keeps outputs that it does not have")
        known.update(node.outputs)
    if not known.issuperset(body.results):
        raise SerializationError("the plan gives operands that nothing makes")
