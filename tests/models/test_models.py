"""Unmodified HuggingFace models on meshes: values, gradients and generated tokens are plain torch's.

On one device bit for bit, forward and backward; on several within rounding, dropout included: the same seed
draws the same numbers on every mesh.
"""

from __future__ import annotations

import copy

import pytest
import torch

import dtorch
from dtorch import Layout, Replicate, Shard

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.models

HIDDEN, VOCABULARY, LENGTH = 32, 40, 6


def llama():
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(
        n_embd=HIDDEN,
        n_layer=2,
        n_head=4,
        vocab_size=VOCABULARY,
        n_positions=64,
        pad_token_id=0,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config)


def bert():
    config = transformers.BertConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def gpt2_plan(mesh):
    """The fused qkv projection holds three matrices side by side: each is cut, so the dim has two factors."""
    axis = mesh.axis("tp")
    qkv = ((3, ()), (HIDDEN, (axis,)))
    return {
        "*.attn.c_attn.weight": Layout.replicate(mesh.shape, (HIDDEN, 3 * HIDDEN)).with_dim(1, qkv),
        "*.attn.c_attn.bias": Layout.replicate(mesh.shape, (3 * HIDDEN,)).with_dim(0, qkv),
        "*.attn.c_proj.weight": {"tp": Shard(0)},
        "*.mlp.c_fc.weight": {"tp": Shard(1)},
        "*.mlp.c_fc.bias": {"tp": Shard(0)},
        "*.mlp.c_proj.weight": {"tp": Shard(0)},
    }


def bert_plan(mesh):
    return {
        "*.self.*.weight": {"tp": Shard(0)},
        "*.self.*.bias": {"tp": Shard(0)},
        "*.attention.output.dense.weight": {"tp": Shard(1)},
        "*.intermediate.dense.*": {"tp": Shard(0)},
        "bert.encoder.layer.*.output.dense.weight": {"tp": Shard(1)},
    }


MODELS = {"llama": (llama, lambda mesh: "auto"), "gpt2": (gpt2, gpt2_plan), "bert": (bert, bert_plan)}
MESHES = {
    "dp": ((2,), ("dp",)),
    "tp": ((2,), ("tp",)),
    "dp x tp": ((2, 2), ("dp", "tp")),
    "one": ((1,), ("dp",)),
}


def on(mesh, tensor):
    """The batch sharded over dp where there is one."""
    return dtorch.Tensor(
        tensor, device_mesh=mesh, placements=[Shard(0) if n == "dp" else Replicate() for n in mesh.dim_names]
    )


def built(name, mesh_name):
    torch.manual_seed(0)
    make, plan = MODELS[name]
    reference = make()
    shape, names = MESHES[mesh_name]
    mesh = dtorch.init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, plan(mesh) if "tp" in names else {})
    return reference, model, mesh


def batch_for(name):
    ids = torch.randint(1, VOCABULARY, (5, LENGTH), generator=torch.Generator().manual_seed(1))
    labels = torch.arange(5) % 3 if name == "bert" else ids
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    return ids, labels, mask


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train with dropout"])
@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward(name, mesh_name, training):
    reference, model, mesh = built(name, mesh_name)
    reference.train(training)
    model.train(training)
    ids, labels, mask = batch_for(name)
    torch.manual_seed(7)
    expected = reference(ids, labels=labels, attention_mask=mask)
    expected.loss.backward()
    torch.manual_seed(7)
    got = model(on(mesh, ids), labels=on(mesh, labels), attention_mask=on(mesh, mask))
    got.loss.backward()
    exact = {"rtol": 0, "atol": 0} if mesh_name == "one" else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got.logits.to_torch(), expected.logits.detach(), **exact)
    torch.testing.assert_close(got.loss.to_torch(), expected.loss.detach(), **exact)
    for (key, p), q in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        want = q[1].grad
        assert (p.grad is None) == (want is None), key
        if want is not None:
            assert p.grad.placements == p.placements, key
            torch.testing.assert_close(p.grad.to_torch(), want, **exact, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generate(name, mesh_name, cache):
    reference, model, mesh = built(name, mesh_name)
    ids, _, _ = batch_for(name)
    options = {"max_new_tokens": 6, "do_sample": False}
    if cache == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    expected = reference.eval().generate(ids, **options)
    got = model.eval().generate(on(mesh, ids), **options)
    assert torch.equal(got.to_torch(), expected)


def test_sampling_draws_the_numbers_of_one_device():
    reference, model, mesh = built("llama", "dp x tp")
    ids, _, _ = batch_for("llama")
    torch.manual_seed(3)
    expected = reference.eval().generate(ids, max_new_tokens=6, do_sample=True)
    torch.manual_seed(3)
    got = model.eval().generate(on(mesh, ids), max_new_tokens=6, do_sample=True)
    assert torch.equal(got.to_torch(), expected)


def test_fused_qkv_stays_sharded():
    _, model, mesh = built("gpt2", "tp")
    ids, _, _ = batch_for("gpt2")
    with dtorch.record() as graph, torch.no_grad():
        model.eval()(on(mesh, ids))
    assert [c for c in graph.communications() if c.kind != "all_reduce"] == []


def test_tied_parameters_stay_tied():
    _, model, _ = built("gpt2", "tp")
    assert model.lm_head.weight is model.transformer.wte.weight


def test_full_state_dicts_shard_on_load_and_gather_on_save():
    reference, model, _ = built("llama", "dp x tp")
    saved = model.state_dict()
    for key, value in reference.state_dict().items():
        assert type(saved[key]) is torch.Tensor
        assert torch.equal(saved[key], value), key
    changed = {key: value + 1 for key, value in reference.state_dict().items()}
    for assign in (False, True):
        model.load_state_dict(changed, assign=assign)
        weight = model.model.layers[0].self_attn.q_proj.weight
        assert isinstance(weight, torch.nn.Parameter)
        assert weight.placements == [Replicate(), Shard(0)]
        assert torch.equal(weight.to_torch(), changed["model.layers.0.self_attn.q_proj.weight"])
