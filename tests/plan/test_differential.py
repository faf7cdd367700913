"""Recorded programs give, bit for bit, what the same programs give when each call runs at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.programs import Program
from tests.support import cases

STEPS = 24


def same(found: list[Any], expected: list[Any], program: Program) -> None:
    """Bit for bit, nan included, on every device."""
    assert len(found) == len(expected)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        if isinstance(a, float):
            assert a == b or (a != a and b != b), (i, program.trace)
            continue
        assert a[2:] == b[2:], (i, program.trace)
        for x, y in zip([a[0], *a[1]], [b[0], *b[1]], strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape), (i, program.trace)
            assert torch.equal(_bits(x), _bits(y)), (i, program.trace)


def _bits(x: torch.Tensor) -> torch.Tensor:
    x = torch.where(x.isnan(), torch.full_like(x, torch.nan), x)
    return x.contiguous().view(torch.int32)


@pytest.mark.parametrize("seed", range(cases(40)))
def test_random_programs(seed: int) -> None:
    expected = Program(seed, eager=True).run(STEPS)
    for _ in range(3):  # interpreted; the same again makes a plan; then by it
        program = Program(seed, eager=False)
        same(program.run(STEPS), expected, program)


@pytest.mark.parametrize("seed", range(cases(40)))
def test_random_programs_run_at_random_points(seed: int) -> None:
    expected = Program(seed, eager=True).run(STEPS)
    for flushes in range(2):
        program = Program(seed, eager=False, flushes=flushes)
        same(program.run(STEPS), expected, program)
