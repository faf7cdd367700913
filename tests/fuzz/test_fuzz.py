"""Random programs over meshes of one to three axes, uneven and empty sizes, come to what plain torch does.

20 programs; DTORCH_CASES=2000 runs 2,000. A failure prints the program, shrunk.
"""

from __future__ import annotations

import pytest
import torch

from dtorch import Replicate, Shard
from tests.fuzz.program import Leaf, Program, fault, on_plain, shrunk
from tests.fuzz.steps import Writer
from tests.support import cases

LINES = 25


@pytest.mark.parametrize("seed", range(max(20, cases(1))))
def test_a_program_comes_to_the_same(seed: int) -> None:
    program = Writer(seed).write(LINES)
    why = fault(program)
    if why is not None:
        small = shrunk(program)
        pytest.fail(f"program {seed}: {fault(small)}\n{small}", pytrace=False)


def test_programs_are_repeatable_and_long() -> None:
    first, again = Writer(3).write(LINES), Writer(3).write(LINES)
    assert first == again
    assert on_plain(first)[1] == first.lines
    assert len(first.lines) == LINES


def test_a_failing_program_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong operator is found, and the program that shows it has one line."""
    right = torch.Tensor.tanh

    def tanh(x: torch.Tensor) -> torch.Tensor:
        return right(x) if type(x) is torch.Tensor else right(x) * 1.01

    monkeypatch.setattr(torch.Tensor, "tanh", tanh)
    leaves = tuple(Leaf(f"a{i}", (5, 3), (Shard(0),), True, i) for i in range(2))
    lines = ("t0 = a0 + a1", "t1 = t0.t()", "t2 = a1.tanh()", "t3 = t2 * t0", "t3.sum().backward()")
    small = shrunk(Program((2,), leaves, lines))
    assert small.lines == ("t2 = a1.tanh()",)
    assert small.leaves == (Leaf("a1", (5, 3), (Replicate(),), False, 1),)
    assert "t2" in str(fault(small))
