"""Decoding with a static cache: one captured step gives the tokens that plain torch's generate gives."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Replicate, Shard

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.models, pytest.mark.recorded]

BATCH, TOKENS, LENGTH, HEADS, HEAD = 2, 24, 40, 4, 8


def llama() -> Any:
    """Weights so large that the tokens differ from one another."""
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=HEADS,
            vocab_size=128,
            max_position_embeddings=64,
            initializer_range=0.2,
            bos_token_id=0,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()


def static_cache(model: Any, mesh: dtorch.DeviceMesh, placement: Any) -> Any:
    """A cache on the mesh, its heads placed."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=LENGTH)
    with dtorch.device_mesh(mesh):
        cache.early_initialization(BATCH, HEADS, HEAD, torch.float32, torch.device("cpu"))
    for layer in cache.layers:
        layer.keys = layer.keys.redistribute(mesh, [placement])
        layer.values = layer.values.redistribute(mesh, [placement])
    return cache


class Decoder:
    """Greedy tokens by a captured step."""

    def __init__(self, model: Any, mesh: dtorch.DeviceMesh, placement: Any) -> None:
        self.model, self.mesh, self.cache = model, mesh, static_cache(model, mesh, placement)
        self.step = dtorch.capture(self._step)

    @torch.no_grad()
    def _step(self, token: torch.Tensor) -> torch.Tensor:
        return self.model(token, cache=self.cache).logits[:, -1:].argmax(-1)

    def tokens(self, prompt: torch.Tensor) -> torch.Tensor:
        """TOKENS of them [batch, TOKENS], after the prompt [batch, length]."""
        self.cache.reset()
        found = [self._step(dtorch.Tensor(prompt, device_mesh=self.mesh))]
        while len(found) < TOKENS:
            found.append(self.step(found[-1]))
        return torch.cat(found, 1).to_torch()


def prompt(length: int) -> torch.Tensor:
    return torch.randint(1, 128, (BATCH, length), generator=torch.Generator().manual_seed(length))


def expected(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model.generate(ids, max_new_tokens=TOKENS, do_sample=False)[:, ids.shape[1] :]


@pytest.mark.parametrize(("size", "placement"), [(1, Replicate()), (2, Replicate()), (2, Shard(1))])
def test_tokens_are_those_of_generate(size: int, placement: Any) -> None:
    plain = llama()
    mesh = dtorch.init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    model = dtorch.parallelize(copy.deepcopy(plain), mesh, "auto" if size > 1 else {})
    decoder = Decoder(model, mesh, placement)
    for length in (4, 7, 5):  # from the cache's start again, with one recording
        ids = prompt(length)
        wanted = expected(plain, ids)
        assert len(wanted.unique()) > TOKENS // 2, "tokens that say nothing"
        assert torch.equal(decoder.tokens(ids), wanted)
    stats = decoder.step.stats()
    assert (stats.captures, stats.replays) == (2, 3 * (TOKENS - 1) - 3), decoder.step.why()


@pytest.mark.parametrize(("placement", "gathers_a_layer"), [(Shard(1), 0), (Replicate(), 2)])
def test_a_cache_cut_by_heads_sends_nothing(placement: Any, gathers_a_layer: int) -> None:
    mesh = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    model = dtorch.parallelize(llama(), mesh, "auto")
    decoder = Decoder(model, mesh, placement)
    decoder.tokens(prompt(4))
    with dtorch.record() as recorded:
        decoder.step(dtorch.Tensor(prompt(1), device_mesh=mesh))
    kinds = [c.kind for c in recorded.communications()]
    assert kinds.count("all_reduce") == 1 + 2 * len(model.model.layers)
    assert kinds.count("all_gather") == gathers_a_layer * len(model.model.layers)


@pytest.mark.compiler
def test_compiled_tokens_are_those_of_generate() -> None:
    plain = llama()
    mesh = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    decoder = Decoder(dtorch.parallelize(copy.deepcopy(plain), mesh, "auto"), mesh, Shard(1))
    decoder.tokens(prompt(4))
    with dtorch.optimize("fast"):
        decoder.step.instantiate()
        assert torch.equal(decoder.tokens(prompt(7)), expected(plain, prompt(7)))
        assert decoder.step.why().endswith("compiled (fast)")
