"""Models against torch eager and torch.compile: a step of GPT-2's smallest, the small Llama decoding."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.bench_compiled import lazily
from benchmarks.bench_llama import _model
from benchmarks.harness import Row

TOKENS = 16


def rows() -> Iterator[Row]:
    for size in (1, 2):
        devices = f"{size} device{'s' * (size > 1)}"
        for against, budget in (("torch eager", 1.1), ("torch.compile", 1.25)):
            if size > 1 and against == "torch.compile":
                continue  # which takes a minute to compile it, and has one device anyway
            yield Row(
                name=f"GPT-2-small training step, 2 x 32 tokens, {devices}, replayed",
                against=against,
                budget=budget,
                ours=lazily(lambda size=size: _gpt2_ours(size)),
                theirs=lazily(lambda against=against: _gpt2_theirs(against == "torch.compile")),
                repeats=3,
                warmups=1,
            )
        for against, budget in (("torch eager", 2.3), ("torch.compile(model)", 2.3)):
            yield Row(
                name=f"small Llama decoding {TOKENS} tokens by generate, {devices}",
                against=against,
                budget=budget * size,
                ours=lazily(lambda size=size: _decode(size, False)),
                theirs=lazily(lambda against=against: _decode(0, against != "torch eager")),
                repeats=5,
                warmups=3,
            )


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_positions=64, use_cache=False)
    return GPT2LMHeadModel(config)


def _step(model: Any, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    def step(text: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(text, labels=text, use_cache=False).loss.backward()
        optimizer.step()

    return step


TEXT = torch.arange(64).view(2, 32)


def _gpt2_ours(size: int) -> Callable[[], object]:
    import dtorch
    from dtorch import Replicate, Shard

    mesh = dtorch.init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    model = dtorch.parallelize(_gpt2(), mesh, {})
    step = dtorch.capture(_step(model, torch.optim.AdamW(model.parameters())))
    text = dtorch.Tensor(TEXT, device_mesh=mesh, placements=[Shard(0) if size > 1 else Replicate()])
    step.capture(text)
    return lambda: step(text)


def _gpt2_theirs(compiling: bool) -> Callable[[], object]:
    plain = _gpt2()
    model = torch.compile(plain, dynamic=False) if compiling else plain
    step = _step(model, torch.optim.AdamW(plain.parameters()))
    return lambda: step(TEXT)


def _decode(size: int, compiling: bool) -> Callable[[], object]:
    """Tokens by `generate`, greedily; size 0 is torch."""
    import dtorch

    model: Any = _model().eval()
    ids = torch.zeros(1, 4, dtype=torch.long)
    if size:
        mesh = dtorch.init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
        model = dtorch.parallelize(model, mesh, "auto" if size > 1 else {})
        ids = dtorch.Tensor(ids, device_mesh=mesh)
    elif compiling:
        model.forward = torch.compile(model.forward)  # sizes grow, so they become symbols

    def run() -> object:
        with torch.no_grad():
            return model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)

    return run
