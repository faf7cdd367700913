"""Random programs come to the same bits with all passes, with each one alone, and with none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Partial, Replicate, Shard
from dtorch.plan import cache, codegen
from dtorch.plan.facts import Facts
from dtorch.plan.passes.listed import PASSES
from dtorch.plan.pool import Pool
from dtorch.plan.structure import Selection, Structure
from tests.plan.test_differential import same
from tests.programs import Program, binary, moved, pointwise, reduction, scaled, views
from tests.support import cases

STEPS = 24
NAMES = [one.name for one in PASSES]
CHOICES = {
    "all": {},
    "none": dict.fromkeys(NAMES, False),
    **{name: {other: other == name for other in NAMES} for name in NAMES},
}


def pending(p: Program) -> dtorch.Tensor:
    """A pending sum that nobody holds."""
    return (p.pick().detach() * p.number()).redistribute(placements=[Partial()] * p.mesh.ndim)


def whole(p: Program, x: dtorch.Tensor) -> dtorch.Tensor:
    return x.redistribute(placements=[Replicate()] * p.mesh.ndim)


def sum_of_sums(p: Program) -> None:
    p.keep(p.choice.choice([torch.add, torch.sub])(whole(p, pending(p)), whole(p, pending(p))))


def view_of_a_sum(p: Program) -> None:
    view = whole(p, pending(p)).t().redistribute(placements=[Shard(0)] * p.mesh.ndim)
    p.keep(view.t())


def unseen(p: Program) -> None:
    (p.pick() * p.number()).tanh()


class Sums(Program):
    """Pending sums, and calls whose results nobody sees; rounding otherwise changes the results little."""

    kinds = (
        (3, binary), (3, scaled), (3, pointwise), (3, reduction), (3, views), (3, moved),
        (6, sum_of_sums), (6, view_of_a_sum), (4, unseen),
    )  # fmt: skip


KINDS = [Program, Sums]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("seed", range(cases(6)))
def test_programs_keep_every_bit(choice: str, seed: int, kind: type[Program]) -> None:
    for number in range(seed * 3, seed * 3 + 3):
        expected = kind(number, eager=True).run(STEPS)
        with dtorch.passes(**CHOICES[choice]):
            for _ in range(2):  # interpreted, then by a plan
                program = kind(number, eager=False)
                same(program.run(STEPS), expected, program)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(cases(6)))
def test_results_in_kept_memory_keep_every_bit(
    seed: int, kind: type[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a captured call, with one pool for all plans."""
    pool, changes = Pool(), []

    def generate(structure: Structure, selection: Selection, under: Any) -> Any:
        plan = codegen.generate(structure, selection, under, Facts(pool=pool))
        changes.extend(change for change in plan.rewritten.changes if change.by == "kept")
        return plan

    monkeypatch.setattr(cache, "generate", generate)
    for number in range(seed * 3, seed * 3 + 3):
        expected = kind(number, eager=True).run(STEPS)
        for _ in range(3):
            program = kind(number, eager=False)
            same(program.run(STEPS), expected, program)
            pool.settle()
    assert changes


@pytest.mark.parametrize("choice", ["all", "add_first"])
@pytest.mark.parametrize("seed", range(cases(10)))
def test_sums_in_another_order_are_close(choice: str, seed: int) -> None:
    expected = Sums(seed, eager=True).run(STEPS)
    with dtorch.optimize("fast"), dtorch.passes(**CHOICES[choice]):
        for _ in range(2):
            found = Sums(seed, eager=False).run(STEPS)
            for mine, theirs in zip(found, expected, strict=True):
                assert mine[2:] == theirs[2:]
                largest = float(theirs[0].abs().max())
                torch.testing.assert_close(mine[0], theirs[0], rtol=0, atol=1e-5 * largest, equal_nan=True)


def test_the_programs_give_the_passes_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but `overlap`, which needs devices with streams, and `kept`, which needs a capture."""
    found: Counter[str] = Counter()

    def rewritten(structure: Structure, selection: Selection, *given: Any) -> Any:
        made = codegen_rewritten(structure, selection, *given)
        found.update(change.by for change in made.changes)
        found["fusion"] += len(made.candidates)
        found["dead"] += len(structure.recipes) - len(selection.nodes)
        return made

    codegen_rewritten = codegen.rewritten
    monkeypatch.setattr(codegen, "rewritten", rewritten)
    with dtorch.optimize("fast"):
        for kind in KINDS:
            for seed in range(10):
                for _ in range(2):
                    kind(seed, eager=False).run(STEPS)
    assert all(found[name] >= 2 for name in NAMES if name not in ("overlap", "kept")), found
