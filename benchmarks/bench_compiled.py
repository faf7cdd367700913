"""Captured functions, compiled, against torch eager, torch.compile and one copy.

Both sides are made at their first measure, so that naming the rows compiles nothing. Code that Inductor has
on disk is used; the rows with "cold" run in a process of their own with an empty cache.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from benchmarks.bench_llama import _model
from benchmarks.harness import Measure, Row, timed

STEPS = 8
SIZES = {
    "512": 512,
    "4k": 1 << 12,
    "64k": 1 << 16,
    "1M": 1 << 20,
    "4M": 4_000_000,
    "16M": 1 << 24,
    "64M": 1 << 26,
}


def rows() -> Iterator[Row]:
    yield from _chains()
    yield from _llama()
    yield from _cold()


def lazily(make: Callable[[], Callable[[], object]], calls: int = 1) -> Measure:
    """As `timed`, of a function that is made when it is first measured."""
    made: list[Measure] = []

    def measure() -> float:
        if not made:
            made.append(timed(make(), calls))
        return made[0]()

    return measure


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(STEPS):
        x = x * 1.01 + 0.01
    return x


def captured(function: Callable[..., Any], mode: str, *args: Any) -> Callable[[], object]:
    """A replay of a function under a mode, compiled if that admits it."""
    import dtorch

    step = dtorch.capture(function)
    step.capture(*args)
    step(*args)
    with dtorch.optimize(mode):
        step.instantiate()

    def run() -> object:
        with dtorch.optimize(mode):
            return step(*args)

    return run


def _chains() -> Iterator[Row]:
    """The chain on one device, compiled under "exact"."""
    for name, n in SIZES.items():
        calls = max(1, 20_000 // n)

        def ours(n: int = n) -> Callable[[], object]:
            import dtorch

            return captured(chain, "exact", dtorch.ones(n, device_mesh=dtorch.init_device_mesh("cpu", 1)))

        def eager(n: int = n) -> Callable[[], object]:
            x = torch.ones(n)
            return lambda: chain(x)

        def compiled(n: int = n) -> Callable[[], object]:
            x, function = torch.ones(n), torch.compile(chain, dynamic=False)
            return lambda: function(x)

        def one_copy(n: int = n) -> Callable[[], object]:
            x = torch.ones(n)
            return x.clone

        sides = (("torch eager", 1.0, eager), ("torch.compile", 1.15, compiled), ("one copy", 1.15, one_copy))
        for against, budget, theirs in sides:
            if against == "one copy" and n < 1 << 20:
                continue  # a call costs more than the copy
            yield Row(
                name=f"{STEPS}-step chain, {name} fp32, compiled",
                against=against,
                budget=budget,
                ours=lazily(ours, calls),
                theirs=lazily(theirs, calls),
                repeats=9 if n >= 1 << 24 else 15,
            )


def _llama_sides(size: int) -> dict[str, Callable[[], Callable[[], object]]]:
    import dtorch

    def ours(mode: str) -> Callable[[], object]:
        mesh = dtorch.init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
        model = dtorch.parallelize(_model().eval(), mesh, "auto" if size > 1 else {})
        x = dtorch.Tensor(torch.zeros(1, 1, dtype=torch.long), device_mesh=mesh)

        def forward(ids: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return model(ids, use_cache=False).logits

        return captured(forward, mode, x)

    def theirs(compiling: bool) -> Callable[[], object]:
        plain = _model().eval()
        model = torch.compile(plain, dynamic=False) if compiling else plain
        ids = torch.zeros(1, 1, dtype=torch.long)

        def forward() -> object:
            with torch.no_grad():
                return model(ids, use_cache=False).logits

        return forward

    return {
        "fast": lambda: ours("fast"),
        "torch eager": lambda: theirs(False),
        "torch.compile(model)": lambda: theirs(True),
    }


def _llama() -> Iterator[Row]:
    """One token: a forward, as in decoding without a cache."""
    for size in (1, 2):
        sides = _llama_sides(size)
        devices = f"{size} device{'s' * (size > 1)}"
        for against, budget in (("torch.compile(model)", 0.65), ("torch eager", 0.35)):
            yield Row(
                name=f"small Llama forward, {devices}, compiled and replayed",
                against=against,
                budget=budget * size,
                ours=lazily(sides["fast"], 5),
                theirs=lazily(sides[against], 5),
            )


def _cold() -> Iterator[Row]:
    """Seconds until compiled code is there, and until there is a first result, with nothing on disk."""
    for what, text, budget in (("compiled", "seconds to compile", 1.5), ("first", "first call", 0.1)):
        yield Row(
            name=f"{STEPS}-step chain, 1M fp32, {text}, cold",
            against="torch.compile",
            budget=budget,
            ours=lambda what=what: _measured("ours")[what],
            theirs=lambda what=what: _measured("theirs")[what],
            repeats=1,
            warmups=0,
        )


@cache
def _measured(side: str) -> dict[str, float]:
    """Seconds of one side, in a process of its own with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_compiled", side],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure_cold(side: str) -> dict[str, float]:
    torch.set_num_threads(1)
    n = SIZES["1M"]
    if side == "theirs":
        function = torch.compile(chain, dynamic=False)
        seconds = timed(lambda: function(torch.ones(n)))()
        return {"compiled": seconds, "first": seconds}
    import dtorch

    x = dtorch.ones(n, device_mesh=dtorch.init_device_mesh("cpu", 1))
    step = dtorch.capture(chain)
    first = timed(lambda: step(x).to_torch())()
    step.capture(x)
    step(x)
    with dtorch.optimize("fast"):
        return {"compiled": timed(step.instantiate)(), "first": first}


if __name__ == "__main__":
    print(json.dumps(_measure_cold(sys.argv[1])))
