"""What many test files need: how many cases to try, and which."""

import os
import random
import shutil
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

# A factor on every sample size: 1 is what `make test` runs, DTORCH_CASES=10 tries ten times as many.
_SCALE = float(os.environ.get("DTORCH_CASES", "1"))


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which Inductor needs."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def cases(default: int) -> int:
    """How many cases to try where `make test` tries `default`; at least one."""
    return max(1, round(default * _SCALE))


def sample(population: Iterable[T], default: int, seed: int = 0) -> list[T]:
    """A fixed random choice of `cases(default)` members, in their own order; all, where there are fewer.

    The same seed chooses the same members, so every xdist worker collects the same tests.
    """
    members = list(population)
    count = min(cases(default), len(members))
    chosen = random.Random(seed).sample(range(len(members)), count)
    return [members[index] for index in sorted(chosen)]
