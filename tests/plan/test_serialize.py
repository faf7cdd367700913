"""Plans into files and back: another process runs the same sequence on parts that it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Graph, SerializationError
from dtorch.op import document
from dtorch.op.operand import copied
from dtorch.plan.codegen import write
from dtorch.plan.running import Running
from dtorch.plan.serialize import from_document, to_document
from dtorch.plan.structure import Numbered, Structure
from dtorch.runtime.runner import LocalRunner

GRID = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
PLACES = (["S0", "R"], ["R", "S1"], ["S0", "S1"])

PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "products": lambda x, w: (x @ w).relu() @ w,
    "statistics": lambda x, w: torch.softmax(x - w.mean(), 1).sum(0),
    "writes": lambda x, w: x.clone().view(2, 3, 6).mul_(2).add_(1),
    "several outputs": lambda x, w: torch.cat([x, *w.chunk(2)]).max(1),
    "numbers": lambda x, w: torch.add(x, w, alpha=3).clamp(-0.5, 0.25) * 1.75,
}


def pending(program: Callable[[Any, Any], Any], places: Any) -> tuple[Running, list[Any]]:
    """What a program records when it is met again, and its results."""
    graph = Graph()
    full = torch.arange(36.0).sin().view(6, 6)
    x, w = (
        dtorch.Tensor(t, device_mesh=GRID, placements=p, graph=graph)
        for t, p in ((full, places), (full.cos(), ["R", "R"]))
    )
    for _ in range(2):
        made = program(x, w)
        if not graph.constructor.pending.nodes:
            graph.sync()
            continue
        numbered = Numbered(graph.constructor.pending.nodes)
        structure = Structure.of(graph.constructor.pending.nodes, numbered)
        flags = structure.wanted(numbered)
        running = Running(structure, structure.select(flags), numbered, flags)
        graph.sync()
    return running, list(made) if isinstance(made, tuple) else [made]


@pytest.mark.skipif(dtorch.GlobalOption.get_eager(), reason="nothing is pending where calls run at once")
@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loaded_plan_runs_as_the_recorded_one(name: str, places: Any) -> None:
    running, made = pending(PROGRAMS[name], places)
    structure, selection = running.structure, running.selection
    file = to_document(structure, selection)
    for read in (
        document.from_bytes(document.to_bytes(file)),
        document.from_json(document.to_json(file)),
    ):
        loaded = from_document(read, LocalRunner().prepare)
        assert write(structure, selection).text.count("\n") == len(loaded.plan.node_of_line)
        assert [*loaded.outside] == [structure.spec(number) for number in selection.bound]
        results = loaded.run([copied(parts) if isinstance(parts, list) else parts for parts in running.parts])
        given = dict(zip(selection.wanted, results, strict=True))
        operands = {id(operand): number for number, operand in running.results.items()}
        for tensor in made:
            number = operands[id(tensor._operand)]
            for mine, theirs in zip(given[number], tensor._operand.parts, strict=True):
                assert torch.equal(mine, theirs)


def test_a_plan_that_contradicts_itself() -> None:
    if dtorch.GlobalOption.get_eager():
        pytest.skip("nothing is pending where calls run at once")
    running, _ = pending(PROGRAMS["products"], PLACES[0])
    text = document.to_json(to_document(running.structure, running.selection))
    prepare = LocalRunner().prepare
    for before, after in (
        ('"inputs": [-1,', '"inputs": [-9,'),
        ('"kept": [0]', '"kept": [3]'),
        ('"outputs": [0]', '"outputs": [9]'),
    ):
        assert before in text
        with pytest.raises(SerializationError, match="of the plan"):
            from_document(document.from_json(text.replace(before, after)), prepare)
    with pytest.raises(SerializationError, match="file of a plan, not of a graph"):
        dtorch.LogicalGraph.from_json(text)
