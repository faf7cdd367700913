"""Random programs come to the same bits where every region that is found runs as one call.

The calls of a region are made as they are, in its place and on its inputs, numbers as tensors: what is tested
is which calls are taken together, and when they run.
"""

from __future__ import annotations

from typing import Any

import pytest

import dtorch
from dtorch.plan import cache
from dtorch.plan.fuse import price
from dtorch.plan.fuse.region import Waiting
from tests.plan.test_differential import same
from tests.programs import Program
from tests.support import cases

STEPS = 24


def _at_once(waiting: Waiting) -> bool:
    waiting.start()
    return True


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("seed", range(cases(8)))
def test_programs_keep_every_bit(
    seed: int, mode: str, ended: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(price, "pays", lambda unfused, fused: True)
    monkeypatch.setattr(Waiting, "tick", _at_once)
    with dtorch.optimize(mode), dtorch.passes(add_first=False):
        for number in range(seed * 5, seed * 5 + 5):
            expected = Program(number, eager=True).run(STEPS)
            for _ in range(4):  # interpreted, by a plan, written anew
                program = Program(number, eager=False)
                same(program.run(STEPS), expected, program)
    assert ended["calls"]
    assert cache.stats().hits
