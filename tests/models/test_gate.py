"""The gate: Llama training on several meshes sends exactly what a hand-written Megatron model sends.

Expected for 4 layers: forward one all-reduce for each attention and each feed-forward (8 over tp), backward
the same 8 and one for the sharded lm_head, one reduction for each of the 39 gradients over the data axes, and
the statistics of the vocabulary-parallel loss, counted apart. No gather. With the sequence sharded: keys and
values are gathered (8), their gradients reduce-scattered (8), and each gradient is reduced once over dp and
sp together.
"""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch

import dtorch
from dtorch import Replicate, Shard

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.models

LAYERS, LENGTH = 4, 16
RESIDUAL_ADD = NORM_BACKWARD = "BroadcastBinary"  # the add after o and down; the mul in the norm's backward
LEAF = ""  # no operator: a gradient arrives at its leaf
N_PARAMETERS = 9 * LAYERS + 3
PLAN = {
    "*.[qkv]_proj.weight": {"tp": Shard(0)},
    "*.gate_proj.weight": {"tp": Shard(0)},
    "*.up_proj.weight": {"tp": Shard(0)},
    "lm_head.weight": {"tp": Shard(0)},
    "*.o_proj.weight": {"tp": Shard(1)},
    "*.down_proj.weight": {"tp": Shard(1)},
}


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=64,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


def train_step(reference, shape, names, batch, ids_placements, labels_placements):
    """One step on a mesh and in plain torch: both losses, both models, what was sent forward and backward."""
    mesh = dtorch.init_device_mesh("cpu", shape, mesh_dim_names=names)
    plan = PLAN if "tp" in names else {}
    plain, model = copy.deepcopy(reference), dtorch.parallelize(copy.deepcopy(reference), mesh, plan)
    ids = torch.randint(0, 64, (batch, LENGTH), generator=torch.Generator().manual_seed(1))
    expected = plain(ids, labels=ids).loss
    expected.backward()
    x = dtorch.Tensor(ids, device_mesh=mesh, placements=ids_placements)
    y = dtorch.Tensor(ids, device_mesh=mesh, placements=labels_placements)
    with dtorch.record() as forward:
        loss = model(x, labels=y).loss
    with dtorch.record() as backward:
        loss.backward()
    torch.testing.assert_close(loss.to_torch(), expected.detach(), rtol=1e-5, atol=1e-5)
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert p.grad.placements == p.placements, name
        torch.testing.assert_close(
            p.grad.to_torch(), q.grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    return sent(forward), sent(backward)


def sent(graph):
    """How often each (kind, axes, operator that needed it) was sent; statistics and values read left out."""
    apart = ("statistics", "get")
    return Counter((c.kind, c.axes, c.cause) for c in graph.communications() if c.kind not in apart)


def statistics(graph):
    return Counter(c.cause for c in graph.communications() if c.kind == "statistics")


@pytest.mark.parametrize(
    ("shape", "batch"),
    [((2, 2), 10), ((4, 2), 3)],
    ids=["dp2 x tp2, batch 10", "dp4 x tp2, batch 3: an empty device"],
)
def test_data_and_tensor_parallel(reference, shape, batch):
    rows = [Shard(0), Replicate()]
    forward, backward = train_step(reference, shape, ("dp", "tp"), batch, rows, rows)
    assert forward == {("all_reduce", "tp", RESIDUAL_ADD): 2 * LAYERS}
    assert backward == {
        ("all_reduce", "tp", NORM_BACKWARD): 2 * LAYERS + 1,
        ("all_reduce", "dp", LEAF): N_PARAMETERS,
    }


def test_data_parallel_uneven(reference):
    forward, backward = train_step(reference, (4,), ("dp",), 7, [Shard(0)], [Shard(0)])
    assert forward == {}
    assert backward == {("all_reduce", "dp", LEAF): N_PARAMETERS}


def test_sequence_parallel(reference):
    forward, backward = train_step(
        reference, (2, 2), ("dp", "sp"), 10, [Shard(0), Shard(1)], [Shard(0), Replicate()]
    )
    assert forward == {("all_gather", "sp", "Sdpa"): 2 * LAYERS}
    assert backward == {
        ("reduce_scatter", "sp", "SdpaBackward"): 2 * LAYERS,
        ("all_reduce", "dp+sp", LEAF): N_PARAMETERS,
    }


def test_statistics_are_those_of_the_loss(reference):
    mesh = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, PLAN)
    x = dtorch.Tensor(
        torch.zeros(4, LENGTH, dtype=torch.long), device_mesh=mesh, placements=[Shard(0), Replicate()]
    )
    with dtorch.record() as graph:
        model(x, labels=x).loss.backward()
    assert set(statistics(graph)) <= {"Softmax", "SoftmaxBackward", "CrossEntropy"}
