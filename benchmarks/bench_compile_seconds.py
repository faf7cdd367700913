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

from benchmarks import bench_models
from benchmarks.bench_chain import STEPS, chain
from benchmarks.bench_llama import _model
from benchmarks.harness import Row, timed
from benchmarks.sides import compiled

SIZE = 1 << 21
Function = Callable[[torch.Tensor], Any]


class Program(NamedTuple):
    """What is compiled.

    Attributes:
        name: in a row.
        mode: of ours.
        make: of a way to compile what may be compiled of it, the function; factories give either side's
            tensors.
        given: what it is given.
        first: what its first call is called in a row.
        whole: whether ours compiles all of it.
        when: in which states of the cache it is measured.
    """

    name: str
    mode: str
    make: Callable[[Callable[..., Any]], Function]
    given: Callable[[], torch.Tensor]
    first: str = "first call"
    whole: bool = True
    when: tuple[str, ...] = ("cold", "warm")


def _token() -> torch.Tensor:
    return torch.zeros(1, 1, dtype=torch.long)


def _forward(compiling: Callable[..., Any]) -> Function:
    model: Any = _model().eval()

    @torch.no_grad()
    def forward(ids: torch.Tensor) -> torch.Tensor:
        return model(ids, use_cache=False).logits

    return compiling(forward)


def _decode(compiling: Callable[..., Any]) -> Function:
    return compiling(bench_models._next_token(_model().eval(), bench_models._cache()))


def _train(compiling: Callable[..., Any]) -> Function:
    """Of the step, torch.compile is given the model, as its users do."""
    model = bench_models._gpt2()
    return bench_models._step(compiling(model), torch.optim.AdamW(model.parameters()))


PROGRAMS = {
    "chain": Program(
        f"{STEPS}-step chain, 2M fp32", "exact", lambda compiling: compiling(chain), lambda: torch.ones(SIZE)
    ),
    "llama": Program("small Llama forward", "fast", _forward, _token),
    "decode": Program("small Llama decoding step, static cache", "fast", _decode, _token),
    "gpt2": Program(
        "GPT-2-small training step, 2 x 32 tokens",
        "fast",
        _train,
        lambda: bench_models.TEXT.clone(),
        "first step",
        whole=False,
        when=("cold",),  # which takes a minute or two on each side
    ),
}
BUDGETS = {
    ("compiled", "cold"): 1.5,
    ("first", "cold"): 0.1,
    ("compiled", "warm"): 1.5,
    ("first", "warm"): 1.0,
}


def rows() -> Iterator[Row]:
    for key, program in PROGRAMS.items():
        texts = {"compiled": "seconds to compile", "first": program.first}
        for what, when in (key for key in BUDGETS if key[1] in program.when):
            yield Row(
                name=f"{program.name}, {texts[what]}, {when}",
                against="torch.compile",
                budget=BUDGETS[what, when],
                ours=lambda key=key, what=what, when=when: _measured(key, "ours")[when][what],
                theirs=lambda key=key, what=what, when=when: _measured(key, "theirs")[when][what],
                repeats=1,
                warmups=0,
            )


@cache
def _measured(program: str, side: str) -> dict[str, dict[str, float]]:
    """Seconds of one side, when cold and when warm."""
    with tempfile.TemporaryDirectory() as folder:
        return {when: _in_a_process(folder, program, side) for when in PROGRAMS[program].when}


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
    function, x = program.make(compiled), program.given()
    seconds = timed(lambda: function(x))()
    return {"compiled": seconds, "first": seconds}


def _ours(program: Program) -> dict[str, float]:
    import dtorch

    with dtorch.device_mesh(dtorch.init_device_mesh("cpu", 1)):
        x: Any = dtorch.Tensor(program.given())
        step = dtorch.capture(program.make(lambda function: function))

    def call() -> None:
        step(x)
        x.graph.sync()

    first = timed(call)()
    step.capture(x)
    call()
    with dtorch.optimize(program.mode):
        seconds = timed(step.instantiate)()
        call()
        if program.whole and not step.why().endswith(f"compiled ({program.mode})"):
            raise RuntimeError(step.why())
    return {"compiled": seconds, "first": first}


if __name__ == "__main__":
    torch.set_num_threads(1)
    which, side = sys.argv[1:]
    print(json.dumps((_ours if side == "ours" else _theirs)(PROGRAMS[which])))
