"""The demo's Llama on 2 x 2 devices, trained by replays and by recorded calls: equal, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Replicate, Shard
from dtorch.replay import capture
from tests.support import cases

pytestmark = [
    pytest.mark.models,
    pytest.mark.recorded,
]

PLAN = {
    "*.[qkv]_proj.weight": {"tp": Shard(0)},
    "*.gate_proj.weight": {"tp": Shard(0)},
    "*.up_proj.weight": {"tp": Shard(0)},
    "lm_head.weight": {"tp": Shard(0)},
    "*.o_proj.weight": {"tp": Shard(1)},
    "*.down_proj.weight": {"tp": Shard(1)},
}


def llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=64, max_position_embeddings=32,
        )
    )  # fmt: skip


def test_200_training_steps_replayed_are_200_recorded() -> None:
    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plain = llama()
    texts = torch.randint(64, (10, 4, 8), generator=torch.Generator().manual_seed(1))
    batches = [dtorch.Tensor(text, mesh, [Shard(0), Replicate()]) for text in texts]
    runs: list[tuple[Any, Any, list[torch.Tensor]]] = []
    for captured in (False, True):
        model = dtorch.parallelize(copy.deepcopy(plain), mesh, PLAN)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cases(200))

        def step(text: torch.Tensor, model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(text, labels=text, use_cache=False).loss
            loss.backward()
            optimizer.step()
            return loss.detach()

        run: Any = capture(step) if captured else step
        losses = []
        for number in range(cases(200)):
            losses.append(run(batches[number % len(batches)]).to_torch())
            schedule.step()
        runs.append((run, model, losses))
    (_, recorded, expected), (run, replayed, losses) = runs
    assert run.stats().replays >= cases(200) - 5
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    for mine, other in zip(replayed.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(mine.detach().to_torch(), other.detach().to_torch())
        assert torch.equal(mine.grad.to_torch(), other.grad.to_torch())
