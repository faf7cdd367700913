"""Random programs come to the same bits with all passes, with each one alone, and with none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import dtorch
from dtorch.plan import codegen
from dtorch.plan.passes.listed import PASSES
from tests.plan.test_differential import same
from tests.programs import Program
from tests.support import cases

STEPS = 24
NAMES = [one.name for one in PASSES]
CHOICES = {
    "all": {},
    "none": dict.fromkeys(NAMES, False),
    **{name: {other: other == name for other in NAMES} for name in NAMES},
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("seed", range(cases(6)))
def test_programs_keep_every_bit(choice: str, seed: int) -> None:
    for number in range(seed * 3, seed * 3 + 3):
        expected = Program(number, eager=True).run(STEPS)
        with dtorch.passes(**CHOICES[choice]):
            for _ in range(2):  # interpreted, then by a plan
                program = Program(number, eager=False)
                same(program.run(STEPS), expected, program)


def test_the_programs_give_the_passes_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Counter[str] = Counter()

    def rewritten(*given: object) -> Any:
        made = codegen_rewritten(*given)
        found.update(change.by for change in made.changes)
        return made

    codegen_rewritten = codegen.rewritten
    monkeypatch.setattr(codegen, "rewritten", rewritten)
    for seed in range(20):
        for _ in range(2):
            Program(seed, eager=False).run(STEPS)
    assert all(found[name] >= 2 for name in ("equal", "redistributes", "reuse")), found
