"""Random programs, recorded, written, read and run again on the same values, give the same, bit for bit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dtorch import LogicalGraph
from tests.programs import Program
from tests.support import cases

STEPS = 20


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of float32 values, every nan alike."""
    return torch.where(x.isnan(), torch.full_like(x, torch.nan), x).contiguous().view(torch.int32)


@pytest.mark.parametrize("seed", range(cases(20)))
def test_a_recorded_program_runs_again(seed: int) -> None:
    program = Program(seed, eager=seed % 2 == 0)
    given: list[Any] = [SimpleNamespace(_operand=t._operand) for t in program.held]  # t.data = ... moves on
    with program.graph.record() as graph:
        program.run(STEPS)
    gradients = [leaf.grad for leaf in program.leaves if leaf.grad is not None]
    made = [t for t in [*program.held, *gradients] if graph.wiring.knows(t._operand)]
    used = [i for i, t in enumerate(given) if graph.wiring.knows(t._operand)]
    data = graph.to_bytes(inputs=[given[i] for i in used], outputs=made)
    loaded = LogicalGraph.from_bytes(data)
    assert str(loaded) == str(graph)

    twin = Program(seed, eager=False)
    inputs: list[Any] = [twin.held[i] for i in used]
    torch.manual_seed(twin.choice.randrange(1000))
    found = loaded.run(*inputs, graph=twin.graph)
    for mine, theirs in zip(found, made, strict=True):
        assert mine.placements == theirs.placements, program.trace
        assert torch.equal(bits(mine.to_torch()), bits(theirs.detach().to_torch())), program.trace
