"""Dry runs: Llama-3-70B on 8 described devices, a training step of Llama-3-8B on 64, and linear cost.

Each measurement is a process of its own, timed after its imports: building the model, laying it out,
recording and pricing.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness import Row

ROOT = Path(__file__).parent.parent

PROGRAM = """
import json, sys, time
import torch, torch.optim, dtorch, dtorch.report.price
from benchmarks.machine import peak_bytes
from dtorch import Replicate, Shard
from transformers import LlamaConfig, LlamaForCausalLM

hidden, layers, heads, feed, shape, batch, train = json.loads(sys.argv[1])
config = LlamaConfig(
    hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=8,
    intermediate_size=feed, vocab_size=128256, max_position_embeddings=8192,
)
start = time.perf_counter()
mesh = dtorch.described_mesh("h100-sxm", shape, mesh_dim_names=("dp", "tp"))
with dtorch.dry_run(mesh):
    model = dtorch.parallelize(LlamaForCausalLM(config).to(torch.bfloat16), mesh, "auto")
    ids = dtorch.zeros(batch, 4096, dtype=torch.int64, device_mesh=mesh, placements=[Shard(0), Replicate()])
if train:
    report = dtorch.price(model, ids, labels=ids, use_cache=False, optimizer="adamw")
else:
    report = dtorch.price(model, ids, use_cache=False)
seconds = time.perf_counter() - start
print(json.dumps([seconds, peak_bytes()]))
"""

LLAMA_70B = [8192, 80, 64, 28672, [1, 8], 1, False]


def llama_8b(layers: int) -> list[object]:
    """Arguments of the program: a training step on 8 x 8 devices."""
    return [4096, layers, 32, 14336, [8, 8], 16, True]


def run(arguments: list[object], which: int) -> float:
    """Seconds (0) or peak bytes (1) of one dry run."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])[which]


def rows() -> Iterator[Row]:
    for which, unit, budget in ((0, "s", 3.0), (1, "B", 700 * 2**20)):
        yield Row(
            name=f"dry run of Llama-3-70B forward on 8 devices, {'time' if unit == 's' else 'memory'}",
            against="",
            budget=budget,
            ours=partial(run, LLAMA_70B, which),
            theirs=None,
            compare="absolute",
            unit=unit,
            repeats=3,
            warmups=0,
        )
    yield Row(
        name="dry run of a Llama-3-8B training step on 64 devices",
        against="",
        budget=30.0,
        ours=partial(run, llama_8b(32), 0),
        theirs=None,
        compare="absolute",
        repeats=3,
        warmups=0,
    )
    yield Row(
        name="dry run of 32 layers",
        against="of 16, twice that",
        budget=1.1,
        ours=partial(run, llama_8b(32), 0),
        theirs=lambda: 2 * run(llama_8b(16), 0),
        repeats=3,
        warmups=0,
    )
