"""Seconds until compiled code is there, and until there is a first result, beside torch.compile's.

Each side runs in a process of its own with an empty cache on disk ("cold"), and again in a new process that
finds what the first has left ("warm"). Ours gives its first result uncompiled, and compiles while the program
runs; torch.compile compiles in the first call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch

from benchmarks.bench_chain import STEPS, chain
from benchmarks.bench_llama import _model
from benchmarks.harness import Row, timed

SIZE = 1 << 21


class Program(NamedTuple):
    """What is compiled.

    Attributes:
        name: in a row.
        mode: of ours.
        make: of the tensor that it is given, the function.
        given: that tensor.
    """

    name: str
    mode: str
    make: Callable[[], Callable[[torch.Tensor], torch.Tensor]]
    given: Callable[[], torch.Tensor]


def _llama() -> Callable[[torch.Tensor], torch.Tensor]:
    model: Any = _model().eval()

    @torch.no_grad()
    def forward(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, use_cache=False).logits

    return forward


PROGRAMS = {
    "chain": Program(f"{STEPS}-step chain, 2M fp32", "exact", lambda: chain, lambda: torch.ones(SIZE)),
    "llama": Program("small Llama forward", "fast", _llama, lambda: torch.zeros(1, 1, dtype=torch.long)),
}
WHAT = {
    ("compiled", "cold"): ("seconds to compile, cold", 1.5),
    ("first", "cold"): ("first call, cold", 0.1),
    ("compiled", "warm"): ("seconds to compile, warm", 1.5),
    ("first", "warm"): ("first call, warm", 1.0),
}


def rows() -> Iterator[Row]:
    for key, program in PROGRAMS.items():
        for (what, when), (text, budget) in WHAT.items():
            yield Row(
                name=f"{program.name}, {text}",
                against="torch.compile",
                budget=budget,
                ours=lambda key=key, what=what, when=when: _measured(key, "ours")[when][what],
                theirs=lambda key=key, what=what, when=when: _measured(key, "theirs")[when][what],
                repeats=1,
                warmups=0,
            )


@cache
def _measured(program: str, side: str) -> dict[str, dict[str, float]]:
    """Seconds of one side, when cold and when warm."""
    with tempfile.TemporaryDirectory() as folder:
        return {when: _in_a_process(folder, program, side) for when in ("cold", "warm")}


def _in_a_process(folder: str, program: str, side: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_compile_seconds", program, side],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _theirs(program: Program) -> dict[str, float]:
    function = torch.compile(program.make(), dynamic=False)
    x = program.given()
    seconds = timed(lambda: function(x))()
    return {"compiled": seconds, "first": seconds}


def _ours(program: Program) -> dict[str, float]:
    import dtorch

    mesh = dtorch.init_device_mesh("cpu", 1)
    with dtorch.device_mesh(mesh):
        x = dtorch.Tensor(program.given())
        step = dtorch.capture(program.make())
    first = timed(lambda: step(x).to_torch())()
    step.capture(x)
    step(x)
    with dtorch.optimize(program.mode):
        compiled = timed(step.instantiate)()
        step(x)
        if not step.why().endswith(f"compiled ({program.mode})"):
            raise RuntimeError(step.why())
    return {"compiled": compiled, "first": first}


if __name__ == "__main__":
    torch.set_num_threads(1)
    which, side = sys.argv[1:]
    print(json.dumps((_ours if side == "ours" else _theirs)(PROGRAMS[which])))
