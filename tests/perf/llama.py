"""Llama by its published sizes, for dry runs."""

from typing import Any

import torch

import dtorch

SIZES = {
    "llama-2-7b": (4096, 32, 32, 32, 11008, 32000),
    "llama-3-8b": (4096, 32, 32, 8, 14336, 128256),
    "llama-3-70b": (8192, 80, 64, 8, 28672, 128256),
}
"""hidden, layers, heads, key/value heads, feed-forward, vocabulary"""


def model_of(name: str, layers: int | None = None) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, count, heads, kv, feed, vocabulary = SIZES[name]
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=count if layers is None else layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        intermediate_size=feed,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def price(
    name: str,
    batch: int,
    length: int,
    device: str = "h100-sxm",
    tp: int = 1,
    layers: Any = None,
    **options: Any,
) -> dtorch.Report:
    mesh = dtorch.described_mesh(device, (tp,), mesh_dim_names=("tp",))
    with dtorch.dry_run(mesh):
        model = dtorch.parallelize(model_of(name, layers), mesh, "auto")
        ids = dtorch.zeros(batch, length, dtype=torch.int64, device_mesh=mesh)
    arguments = {"labels": ids} if options.get("backward") or options.get("optimizer") else {}
    return dtorch.price(model, ids, use_cache=False, **arguments, **options)
