"""The main job: an unmodified HuggingFace Llama on a 2 x 2 mesh, in this one process, beside plain PyTorch.

    make demo

Builds LlamaForCausalLM from a config with random weights, lays it out over axes dp and tp of four virtual CPU
devices, and compares with a plain copy: logits, generated tokens, losses and parameters after training. The
text is the project's own documentation, one token per byte. Exits with 1 if any difference is too large.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import LlamaConfig, LlamaForCausalLM

import dtorch
from dtorch import Replicate, Shard
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.report import terminal

BATCH, LENGTH, STEPS, TOKENS = 8, 64, 20, 32
PLAN = {
    "*.[qkv]_proj.weight": {"tp": Shard(0)},
    "*.gate_proj.weight": {"tp": Shard(0)},
    "*.up_proj.weight": {"tp": Shard(0)},
    "lm_head.weight": {"tp": Shard(0)},
    "*.o_proj.weight": {"tp": Shard(1)},
    "*.down_proj.weight": {"tp": Shard(1)},
}
NEAR_TIE = 1e-4  # where the two best logits are this near, rounding may choose either


def main() -> int:
    """Run the job; 0 if everything agrees with plain torch."""
    torch.manual_seed(0)
    console = Console(width=100)
    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    reference = LlamaForCausalLM(config()).eval()
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, PLAN)
    batches = text_batches()
    rows: list[tuple[str, float, float]] = []
    graphs: dict[str, LogicalGraph] = {}
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=False) as progress:
        task = progress.add_task("forward", total=2 + 2 + 2 * STEPS)

        def tick(what: str) -> None:
            progress.update(task, advance=1, description=what)

        forward(reference, model, mesh, batches[0], rows, graphs, tick)
        generation(reference, model, mesh, batches[0], rows, graphs, tick)
        adamw = {"lr": 1e-3, "weight_decay": 0.1}
        trained = train("AdamW", torch.optim.AdamW, adamw, 1e-3, reference, mesh, batches, rows, graphs, tick)
        train("SGD", torch.optim.SGD, {"lr": 1e-2}, 1e-5, reference, mesh, batches, rows, graphs, tick)

    console.print(terminal.tensors_table(kinds_of_tensors(trained), "Where each kind of tensor lives"))
    for name in ("forward", "AdamW step"):
        console.print(terminal.operators_table(graphs[name], f"Operators of one {name}"))
    console.print(terminal.communication_table(graphs["AdamW step"], "Communication of one AdamW step"))
    console.print(terminal.differences_table(rows, "Greatest difference from plain torch"))
    failed = [name for name, difference, bound in rows if not difference <= bound]
    console.print(
        f"[red]TOO LARGE: {', '.join(failed)}" if failed else "[green]everything agrees with plain torch"
    )
    return 1 if failed else 0


def config() -> LlamaConfig:
    """A small Llama, one token per byte."""
    return LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=256,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )


def text_batches() -> list[torch.Tensor]:
    """Batches of token ids [BATCH, LENGTH] from the documentation's bytes."""
    root = Path(__file__).resolve().parent.parent
    files = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    data = b"".join(path.read_bytes() for path in files)
    count = BATCH * LENGTH
    data = data * (-(-STEPS * count // max(len(data), 1)))
    ids = torch.tensor(list(data[: STEPS * count]))
    return list(ids.view(STEPS, BATCH, LENGTH))


def on_dp(ids: torch.Tensor, mesh: dtorch.DeviceMesh) -> dtorch.Tensor:
    """Token ids with the batch sharded over dp."""
    return dtorch.Tensor(ids, device_mesh=mesh, placements=[Shard(0), Replicate()])


def forward(reference, model, mesh, ids, rows, graphs, tick) -> None:
    """Logits, by the plan given and by the model's own."""
    with torch.no_grad():
        expected = reference(ids).logits
        with dtorch.record() as graphs["forward"]:
            logits = model(on_dp(ids, mesh)).logits
        rows.append(("logits", greatest(logits.to_torch(), expected), 1e-5))
        tick("forward, own plan of the model")
        auto = dtorch.parallelize(copy.deepcopy(reference), mesh, "auto")
        rows.append(
            ('logits, plan="auto"', greatest(auto(on_dp(ids, mesh)).logits.to_torch(), expected), 1e-5)
        )
        tick("generate")


def generation(reference, model, mesh, ids, rows, graphs, tick) -> None:
    """Greedy tokens with both caches; a near tie of the reference's logits ends the comparison of its row."""
    prompt = ids[:, :16]
    options = {
        "max_new_tokens": TOKENS,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    for cache in ("dynamic", "static"):
        kind = {} if cache == "dynamic" else {"cache_implementation": "static", "disable_compile": True}
        with torch.no_grad():
            expected = reference.generate(prompt, **options, **kind)
            with dtorch.record() as graphs[f"generate, {cache} cache"]:
                got = model.generate(on_dp(prompt, mesh), **options, **kind)
        best = torch.stack(expected.logits, 1).topk(2).values
        clear = ((best[..., 0] - best[..., 1]) > NEAR_TIE).cumprod(1).bool()
        tokens = got.sequences.to_torch()[:, 16:]
        wrong = ((tokens != expected.sequences[:, 16:]) & clear).sum()
        rows.append((f"wrong tokens of {int(clear.sum())}, {cache} cache", float(wrong), 0.0))
        tick(f"generate, {cache} cache")


def train(name, optimizer, options, bound, reference, mesh, batches, rows, graphs, tick):
    """Train both for some steps; losses at each step, parameters at the end."""
    plain = copy.deepcopy(reference).train()
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, PLAN).train()
    plain_optimizer = optimizer(plain.parameters(), **options)
    our_optimizer = optimizer(model.parameters(), **options)
    worst = 0.0
    for step, ids in enumerate(batches):
        expected = step_of(plain, plain_optimizer, ids)
        if step == 1:
            with dtorch.record() as graphs[f"{name} step"]:
                loss = step_of(model, our_optimizer, on_dp(ids, mesh))
        else:
            loss = step_of(model, our_optimizer, on_dp(ids, mesh))
        worst = max(worst, greatest(loss.to_torch(), expected))
        tick(f"{name} step {step + 1}, loss {expected.item():.3f}")
    rows.append((f"losses of {STEPS} {name} steps", worst, 1e-4))
    ours = torch.cat([p.detach().to_torch().flatten() for p in model.parameters()])
    theirs = torch.cat([p.detach().flatten() for p in plain.parameters()])
    rows.append(
        (f"parameters after {name}, relative", ((ours - theirs).norm() / theirs.norm()).item(), bound)
    )
    return model


def step_of(model, optimizer, ids) -> torch.Tensor:
    """One training step; the loss."""
    optimizer.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    return loss.detach()


def kinds_of_tensors(model) -> list[tuple[str, torch.Tensor]]:
    """One of each kind: parameters of the first layer and outside layers, and a gradient."""
    found = [(n, p) for n, p in model.named_parameters() if ".layers." not in n or ".layers.0." in n]
    name, parameter = next((n, p) for n, p in found if n.endswith("q_proj.weight"))
    return [*found, (f"{name}.grad", parameter.grad)]


def greatest(a: torch.Tensor, b: torch.Tensor) -> float:
    """Greatest absolute difference; infinite where something is no number."""
    difference = (a - b).abs().max().item()
    return difference if difference == difference else float("inf")


if __name__ == "__main__":
    sys.exit(main())
