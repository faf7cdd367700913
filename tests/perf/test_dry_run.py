"""Dry runs: nothing is computed, drawn or allocated, and values that are asked for raise."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

import dtorch
from dtorch import MeshError, Partial, Replicate, Shard, UnsupportedError

GIGANTIC = 1 << 20  # a float32 matrix of this many rows and columns takes 4 TiB


def mesh_of() -> dtorch.DeviceMesh:
    return dtorch.described_mesh("h100-sxm", (2, 4), mesh_dim_names=("dp", "tp"))


def test_a_real_mesh_is_refused() -> None:
    with (
        pytest.raises(MeshError, match="a dry run needs described devices"),
        dtorch.dry_run(dtorch.init_device_mesh("cpu", (2,))),
    ):
        pass


def test_modules_and_factories_take_no_memory() -> None:
    with dtorch.dry_run(mesh_of()):
        layer = nn.Linear(GIGANTIC, GIGANTIC)
        y = layer(torch.randn(8, GIGANTIC)).relu()
    assert isinstance(layer.weight, nn.Parameter)
    assert isinstance(y, dtorch.Tensor)
    assert y.shape == (8, GIGANTIC)


def test_init_draws_nothing() -> None:
    before = torch.random.get_rng_state()
    with dtorch.dry_run(mesh_of()):
        nn.init.trunc_normal_(nn.Linear(100, 100).weight)
        torch.randn(10), torch.rand(10), torch.randperm(10), torch.randint(0, 5, (4,))
        nn.functional.dropout(torch.ones(100), 0.5)
        dtorch.randn(10), dtorch.randint(0, 5, (4,))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.item(),
        lambda x: bool(x > 0),
        lambda x: float(x),
        lambda x: x.to_torch(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.to_local(0),
        lambda x: torch.equal(x, x + 1),
        lambda x: f"{x:.3f}",
        lambda x: x.repeat(3).nonzero(),
        lambda x: x.repeat(3)[x.repeat(3) > 0],
        lambda x: torch.empty(()).copy_(x),
    ],
)
def test_asking_for_a_value_raises(ask) -> None:
    x = dtorch.randn(4, 4, device_mesh=mesh_of()).sum()
    with pytest.raises(UnsupportedError, match="described devices"):
        ask(x)


def test_what_torch_cannot_infer_says_why() -> None:
    x = dtorch.randn(48, 64, device_mesh=mesh_of())
    w, ends = dtorch.randn(4, 64, 256, device_mesh=mesh_of()), dtorch.ones(4, device_mesh=mesh_of()).int()
    with pytest.raises(UnsupportedError, match=r"without running it .Expected inputs of BF16 type"):
        torch._grouped_mm(x, w, offs=ends)
    assert torch._grouped_mm(x.bfloat16(), w.bfloat16(), offs=ends).shape == (48, 256)


def test_whole_numbers_and_masks_keep_values() -> None:
    with dtorch.dry_run(mesh_of()):
        positions = torch.arange(6)
        mask = positions[:, None] >= positions[None]
        assert mask.all() == torch.tensor(False)
        assert positions[2:4].tolist() == [2, 3]
        positions += 1
        assert int(positions.sum()) == 21
        assert (torch.tensor([3, 1, 2]).sort().values).tolist() == [1, 2, 3]
        assert torch.nonzero(torch.tensor([0, 1, 1])).tolist() == [[1], [2]]


def test_whole_numbers_that_depend_on_others_have_none() -> None:
    with dtorch.dry_run(mesh_of()):
        token = torch.randn(4, 100).argmax(-1)
        assert token.dtype == torch.int64
        ids = torch.zeros(4, 8, dtype=torch.int64)
        ids[:, 0] = token
        for lost in (token, token + 1, ids, ids[:, 1], torch.randint(0, 5, (4,))):
            with pytest.raises(UnsupportedError, match="has no value"):
                lost.tolist()


def test_large_masks_have_no_value() -> None:
    with dtorch.dry_run(mesh_of()):
        with pytest.raises(UnsupportedError, match="has no value"):
            torch.ones(1 << 20, dtype=torch.bool).any().item()
        assert torch.ones((1 << 20) - 1, dtype=torch.bool).any().item()


def test_numbers_stay_on_the_host() -> None:
    with dtorch.dry_run(mesh_of()):
        scale = torch.tensor(0.5)
        assert scale.item() == 0.5
        scale += 1
        assert (torch.ones(3) * scale).shape == (3,)
        assert scale.item() == 1.5


def test_placements_are_those_of_a_real_run() -> None:
    real, described = dtorch.init_device_mesh("cpu", (2, 4), ("dp", "tp")), mesh_of()

    def run(mesh: dtorch.DeviceMesh) -> list[str]:
        x = dtorch.ones(10, 12, device_mesh=mesh, placements=[Shard(0), Replicate()])
        w = dtorch.ones(12, 8, device_mesh=mesh, placements=[Replicate(), Shard(0)], requires_grad=True)
        with dtorch.record() as graph:
            y = (x @ w).relu() + 1
            y[1:3].mul_(2)
            (y.view(5, 2, 8).transpose(0, 1).reshape(-1) ** 2).mean().backward()
        return [*str(graph).splitlines(), str(y.placements), str(w.grad.placements)]

    assert run(described) == run(real)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[1].add_(1),  # a copied view, carried back
        lambda x: x[:, 1:3].zero_(),
        lambda x: x.add_(1),
        lambda x: x.t().mul_(3),
        lambda x: x.index_add_(0, torch.tensor([0, 2]), torch.ones(2, 8)),
    ],
)
@pytest.mark.parametrize(
    "placements", [(Shard(0), Replicate()), (Partial(), Shard(1)), (Replicate(), Shard(0))]
)
def test_writes_record_the_same(write, placements) -> None:
    real, described = dtorch.init_device_mesh("cpu", (2, 4), ("dp", "tp")), mesh_of()

    def run(mesh: dtorch.DeviceMesh) -> tuple[str, str]:
        x = dtorch.ones(5, 8, device_mesh=mesh, placements=list(placements))
        with dtorch.record() as graph:
            write(x)
            y = x + 1
        return str(y.placements), [n.operator.describe() for n in graph][-1]

    assert run(described) == run(real)


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam, foreach": partial(torch.optim.Adam, foreach=True),
    "adamw, fused": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_steps(make) -> None:
    with dtorch.dry_run(mesh_of()):
        model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 4))
        optimizer = make(model.parameters())
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert all(p.grad.shape == p.shape for p in model.parameters())


def test_copies_of_modules() -> None:
    with dtorch.dry_run(mesh_of()):
        model = nn.Linear(4, 4)
        twin = copy.deepcopy(model)
    assert twin.weight is not model.weight
    assert twin.weight.shape == (4, 4)


def test_parallelize_inside() -> None:
    mesh = mesh_of()
    with dtorch.dry_run(mesh):
        model = dtorch.parallelize(nn.Linear(GIGANTIC, 64), mesh, {"weight": {"tp": Shard(1)}})
    assert model.weight.placements == [Replicate(), Shard(1)]


def test_plain_tensors_from_outside_stay_as_they_are() -> None:
    w, counts = torch.ones(4, 4, requires_grad=True), torch.zeros(3, dtype=torch.int64)
    w.grad = torch.full((4, 4), 7.0)
    with dtorch.dry_run(mesh_of()):
        y = (w @ w).sum()
        y.backward()
        counts += 1
        assert counts.tolist() == [1, 1, 1]
    assert isinstance(y, dtorch.Tensor)
    assert w.grad.tolist() == [[7.0] * 4] * 4
    assert type(counts) is torch.Tensor


def test_meta_modules_take_part() -> None:
    with torch.device("meta"):
        model = nn.Linear(GIGANTIC, 16)
    with dtorch.dry_run(mesh_of()):
        assert model(torch.ones(2, GIGANTIC)).shape == (2, 16)


def test_other_devices_named_in_a_program() -> None:
    with dtorch.dry_run(mesh_of()):
        x = torch.zeros(4, 4).cuda()
        y = torch.ones(4, 4, device="cuda").to("cuda:0")
        assert (x + y).device == torch.device("cpu")


def test_between_described_and_real() -> None:
    real, described = dtorch.init_device_mesh("cpu", (2,), ("dp",)), dtorch.described_mesh("l4", (2,))
    x = dtorch.ones(4, 4, device_mesh=real, placements=[Shard(0)])
    there = x.redistribute(described, [Replicate()])
    assert there.device_mesh == described
    with pytest.raises(UnsupportedError, match="has no value"):
        there.redistribute(real, [Shard(0)]).to_torch()
    with pytest.raises(dtorch.MeshMismatchError):
        x + there


def test_after_it_everything_is_as_before() -> None:
    with dtorch.dry_run(mesh_of()):
        pass
    assert type(torch.zeros(3)) is torch.Tensor
    assert math.isclose(torch.ones(3).sum().item(), 3)
    assert dtorch.get_default_device_mesh().description is None


def test_a_failing_program_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError), dtorch.dry_run(mesh_of()):
        raise ZeroDivisionError
    assert type(torch.zeros(3)) is torch.Tensor


def test_factories_are_calls() -> None:
    with dtorch.dry_run(mesh_of()) as run:
        torch.zeros(4, 4), torch.arange(3), torch.randn(2, 2), torch.empty(5, dtype=torch.bfloat16)
    assert [(n.operator.describe(), n.operator.price().traffic_bytes) for n in run] == [
        ("Create(-> [4, 4], float32)", 64),
        ("Create(-> [3], int64)", 24),
        ("Create(-> [2, 2], float32)", 16),
        ("Create(-> [5], bfloat16)", 0),
    ]


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=128, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.models
@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True}, {"cache_implementation": "static", "disable_compile": True}]
)
def test_generation(options) -> None:
    pytest.importorskip("transformers")
    mesh = mesh_of()
    with dtorch.dry_run(mesh) as run, torch.no_grad():
        model = dtorch.parallelize(llama(), mesh, "auto")
        ids = torch.arange(16).view(2, 8)
        made = model.generate(ids, max_new_tokens=4, eos_token_id=None, **options)
    assert made.shape == (2, 12)
    products = [node for node, at in zip(run.nodes, run.made) if at.module.endswith("lm_head")]
    assert len([node for node in products if node.operator.price().flops]) == 4


@pytest.mark.models
def test_generation_that_asks_for_an_end_token() -> None:
    pytest.importorskip("transformers")
    with dtorch.dry_run(mesh_of()), torch.no_grad(), pytest.raises(UnsupportedError, match="end token"):
        llama().generate(torch.arange(8).view(1, 8), max_new_tokens=4)


@pytest.mark.models
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_masks_of_padded_batches(attention: str) -> None:
    pytest.importorskip("transformers")
    model = llama()
    model.set_attn_implementation(attention)
    ids, mask = torch.ones(2, 12, dtype=torch.int64), torch.tensor([[1] * 12, [0] * 4 + [1] * 8])
    report = dtorch.price(model, ids, attention_mask=mask, labels=ids, device="l4", backward=True)
    assert report.unknown == {}
    phases = report.by_phase()
    assert phases["backward"]["flops"] == 2 * phases["forward"]["flops"]
