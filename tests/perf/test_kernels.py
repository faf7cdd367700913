"""Kernels of a decode step of Llama-3-8B, recorded at full size, beside the article's count by hand."""

import pytest
import torch

import dtorch
from dtorch.perf.kernels import FUSED, UNFUSED, kernel_counts
from dtorch.perf.recording import Recording

transformers = pytest.importorskip("transformers")

LAYERS, PROMPT = 32, 16


def decode_step(attention: str) -> Recording:
    """One token after a prompt, with the keys and values of that in the cache."""
    config = transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=LAYERS, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, attn_implementation=attention,
    )  # fmt: skip
    mesh = dtorch.described_mesh("h100-sxm")
    with dtorch.dry_run(mesh), torch.no_grad():
        model = transformers.LlamaForCausalLM(config).eval()
        cache = model(torch.zeros(1, PROMPT, dtype=torch.int64), use_cache=True).past_key_values
    step = Recording()
    with dtorch.dry_run(mesh, into=step), torch.no_grad():
        logits = model(torch.zeros(1, 1, dtype=torch.int64), past_key_values=cache, use_cache=True).logits
    assert logits.shape == (1, 1, 128256)
    assert cache.get_seq_length() == PROMPT + 1
    return step


@pytest.mark.models
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize(("attention", "fused", "batched"), [("sdpa", LAYERS, 0), ("eager", 0, 2 * LAYERS)])
def test_a_decode_step_of_llama(attention: str, fused: int, batched: int) -> None:
    step = decode_step(attention)
    counts = kernel_counts(step)
    assert counts["weight GEMM"] == 7 * LAYERS + 1 == 225
    assert counts.get("batched GEMM", 0) == batched
    assert counts.get("attention", 0) == fused
    assert counts.get("other", 0) == 0
    # Two norms a layer and the last one, made of 6 kernels each; one mean in each.
    assert counts["reduction"] == 2 * LAYERS + 1
    assert 300 < sum(counts.values()) < 1400
    products = [node.operator.price() for node in step.nodes if node.operator.name == "aten.mm"]
    assert sum(price.flops or 0 for price in products) == 2 * 7_504_658_432


def test_the_article_counts_by_hand() -> None:
    assert (UNFUSED.per_layer, UNFUSED.total(32)) == (34, 34 * 32 + 5)
    assert (FUSED.per_layer, FUSED.total(32)) == (11, 11 * 32 + 3)
    assert (UNFUSED.total(32), FUSED.total(32)) == (1093, 355)


@pytest.mark.parametrize("spelling", [UNFUSED, FUSED])
def test_the_spellings_have_all_weight_products(spelling: object) -> None:
    products = sum(n for name, n in spelling.layer.items() if "projection" in name)  # type: ignore[attr-defined]
    assert products * 32 + 1 == 225


def test_kinds_of_a_small_program() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (2,))
    with dtorch.dry_run(mesh):
        layer = torch.nn.Linear(8, 8, bias=False)
    with dtorch.dry_run(mesh) as run:
        x = dtorch.zeros(4, 8, device_mesh=mesh, placements=[dtorch.Shard(0)])
        y = layer(x).relu().view(2, 2, 8)
        torch.bmm(y, y.transpose(1, 2)).softmax(-1)
        y.redistribute(placements=[dtorch.Replicate()])
    counts = kernel_counts(run)
    assert (
        counts["weight GEMM"] == counts["batched GEMM"] == counts["softmax"] == counts["communication"] == 1
    )
    assert counts["element-wise"] == 1
