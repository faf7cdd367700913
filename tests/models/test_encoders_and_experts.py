"""Encoder-decoders, two towers, speech, experts: T5, CLIP, Whisper and Mixtral, unmodified, on meshes.

Values, gradients and generated tokens are plain torch's: on one device bit for bit, on several within
rounding. Mixtral counts its experts' tokens in tensors that it makes itself, so the mesh is the default.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import dtorch
from dtorch import Layout, Replicate, Shard

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.models

HIDDEN, INNER, VOCABULARY, BATCH, LENGTH, EXPERTS = 32, 48, 40, 5, 6, 4
ROWS, COLUMNS = {"tp": Shard(0)}, {"tp": Shard(1)}

Tensors = dict[str, torch.Tensor]


def ids(seed: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))


def mask() -> torch.Tensor:
    found = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    found[0, -2:] = 0
    return found


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def t5() -> Any:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=HIDDEN,
            d_kv=8,
            d_ff=INNER,
            num_layers=2,
            num_heads=4,
            vocab_size=VOCABULARY,
            relative_attention_num_buckets=8,
            feed_forward_proj="gated-gelu",
            decoder_start_token_id=0,
            eos_token_id=None,
        )
    )


def clip() -> Any:
    tower = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "eos_token_id": VOCABULARY - 1}
    return transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=tower | text,
            vision_config=tower | {"image_size": 16, "patch_size": 8},
            projection_dim=16,
        )
    )


def whisper() -> Any:
    return transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=VOCABULARY,
            num_mel_bins=8,
            d_model=HIDDEN,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=INNER,
            decoder_ffn_dim=INNER,
            max_source_positions=10,
            max_target_positions=32,
            decoder_start_token_id=1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )


def mixtral() -> Any:
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            num_local_experts=EXPERTS,
            num_experts_per_tok=2,
            max_position_embeddings=64,
            output_router_logits=True,
            pad_token_id=0,
            eos_token_id=None,
        )
    )


def experts(mesh: dtorch.DeviceMesh) -> dict[str, Any]:
    """Every expert is cut; gate and up lie side by side in one dim, which has two factors."""
    packed = ((2, ()), (INNER, (mesh.axis("tp"),)))
    return {
        "*.self_attn.[qkv]_proj.weight": ROWS,
        "*.self_attn.o_proj.weight": COLUMNS,
        "*.experts.gate_up_proj": Layout.replicate(mesh.shape, (EXPERTS, 2 * INNER, HIDDEN)).with_dim(
            1, packed
        ),
        "*.experts.down_proj": {"tp": Shard(2)},
        "lm_head.weight": ROWS,
    }


class Model(NamedTuple):
    """A model to try.

    Attributes:
        make: the model, tiny.
        plan: of a tensor parallel mesh.
        inputs: of a training step; the batch is dim 0 of each.
        generate: inputs of a generation, None where there is none.
    """

    make: Callable[[], Any]
    plan: Callable[[dtorch.DeviceMesh], dict[str, Any]]
    inputs: Tensors
    generate: Tensors | None


MODELS = {
    "t5": Model(
        t5,
        lambda mesh: {
            "*Attention.[qkv].weight": ROWS,
            "*Attention.o.weight": COLUMNS,
            "*.relative_attention_bias.weight": COLUMNS,
            "*.wi_[01].weight": ROWS,
            "*.wo.weight": COLUMNS,
        },
        {"input_ids": ids(1), "attention_mask": mask(), "labels": ids(2)},
        {"input_ids": ids(1), "attention_mask": mask()},
    ),
    "clip": Model(
        clip,
        lambda mesh: {
            "*.self_attn.[qkv]_proj.*": ROWS,
            "*.self_attn.out_proj.weight": COLUMNS,
            "*.mlp.fc1.*": ROWS,
            "*.mlp.fc2.weight": COLUMNS,
            "*_projection.weight": ROWS,
        },
        {"input_ids": ids(1), "attention_mask": mask(), "pixel_values": randn(BATCH, 3, 16, 16)},
        None,
    ),
    "whisper": Model(
        whisper,
        lambda mesh: {
            "*_attn.[qkv]_proj.*": ROWS,
            "*_attn.out_proj.weight": COLUMNS,
            "*.fc1.*": ROWS,
            "*.fc2.weight": COLUMNS,
        },
        {"input_features": randn(BATCH, 8, 20), "labels": ids(2)},
        {"input_features": randn(BATCH, 8, 20)},
    ),
    "mixtral": Model(
        mixtral,
        experts,
        {"input_ids": ids(1), "attention_mask": mask(), "labels": ids(1)},
        {"input_ids": ids(1)},
    ),
}

MESHES = {
    "one": ((1,), ("dp",)),
    "dp": ((4,), ("dp",)),
    "tp": ((2,), ("tp",)),
    "dp x tp": ((2, 2), ("dp", "tp")),
}


def built(name: str, mesh_name: str) -> tuple[Any, Any, Callable[[Tensors], Tensors]]:
    """The plain model, the same on a mesh, and what puts a batch there, cut over dp."""
    torch.manual_seed(0)
    reference = MODELS[name].make().train()
    shape, names = MESHES[mesh_name]
    mesh = dtorch.init_device_mesh("cpu", shape, mesh_dim_names=names)
    plan = MODELS[name].plan(mesh) if "tp" in names else {}
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, plan)
    places = [Shard(0) if axis == "dp" else Replicate() for axis in names]

    def spread(batch: Tensors) -> Tensors:
        return {key: dtorch.Tensor(value, mesh, places) for key, value in batch.items()}

    return reference, model, spread


def loss_of(output: Any) -> torch.Tensor:
    """The model's own loss; CLIP's, contrastive over the whole batch, by its logits."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    logits = output.logits_per_text
    return torch.nn.functional.cross_entropy(logits, torch.arange(BATCH)) + logits.t().logsumexp(1).mean()


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward(name: str, mesh_name: str) -> None:
    reference, model, spread = built(name, mesh_name)
    inputs = MODELS[name].inputs
    torch.manual_seed(7)
    expected = loss_of(reference(**inputs))
    expected.backward()
    torch.manual_seed(7)
    placed = spread(inputs)
    with dtorch.device_mesh(next(iter(placed.values())).device_mesh):
        got = loss_of(model(**placed))
    got.backward()
    exact = {"rtol": 0, "atol": 0} if mesh_name == "one" else {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(got.to_torch(), expected.detach(), **exact)
    for (key, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), key
        if q.grad is not None:
            assert p.grad.placements == p.placements, key
            torch.testing.assert_close(p.grad.to_torch(), q.grad, **exact, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.generate is not None])
def test_generate(name: str, mesh_name: str) -> None:
    reference, model, spread = built(name, mesh_name)
    inputs = MODELS[name].generate
    assert inputs is not None
    options = {"max_new_tokens": 5, "do_sample": False}
    expected = reference.eval().generate(**inputs, **options)
    got = model.eval().generate(**spread(inputs), **options)
    assert torch.equal(got.to_torch() if isinstance(got, dtorch.Tensor) else got, expected)
