"""The same code path on CUDA: several simulated devices on one GPU, and one device by itself.

Run by `make gpu-check`; without a CUDA device every test here is skipped with that reason.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

import dtorch
from dtorch import Partial, Replicate, Shard

pytestmark = pytest.mark.gpu


@pytest.fixture
def mesh(monkeypatch):
    """2 x 2 devices, all simulated on one GPU."""
    monkeypatch.setenv("DTORCH_DTENSOR_IN_SAME_DEVICE", "1")
    return dtorch.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))


@pytest.fixture
def one():
    return dtorch.DeviceMesh("cuda")


def test_one_device_is_torch_bit_for_bit(one):
    x, w = torch.randn(64, 32, device="cuda"), torch.randn(48, 32, device="cuda")
    dx, dw = (
        dtorch.Tensor(x, device_mesh=one).requires_grad_(),
        dtorch.Tensor(w, device_mesh=one).requires_grad_(),
    )
    px, pw = x.clone().requires_grad_(), w.clone().requires_grad_()
    F.gelu(F.linear(dx, dw)).square().mean().backward()
    F.gelu(F.linear(px, pw)).square().mean().backward()
    assert dx.device.type == "cuda"
    assert torch.equal(dx.grad.to_torch(), px.grad)
    assert torch.equal(dw.grad.to_torch(), pw.grad)


@pytest.mark.parametrize("source", [[Shard(0), Shard(1)], [Shard(1), Replicate()], [Partial(), Shard(0)]])
@pytest.mark.parametrize("target", [[Replicate(), Replicate()], [Shard(1), Shard(0)], [Shard(0), Shard(0)]])
def test_redistribution(mesh, source, target):
    value = torch.randn(7, 5, device="cuda")
    moved = dtorch.Tensor(value, device_mesh=mesh, placements=source).redistribute(placements=target)
    assert moved.placements == target
    assert moved.to_torch().is_cuda
    torch.testing.assert_close(moved.to_torch(), value)


def test_sharded_matmul_and_its_gradients(mesh):
    x, w = torch.randn(10, 12, device="cuda"), torch.randn(12, 9, device="cuda")
    dx = dtorch.Tensor(x, device_mesh=mesh, placements=[Shard(0), Shard(1)]).requires_grad_()
    dw = dtorch.Tensor(w, device_mesh=mesh, placements=[Replicate(), Shard(0)]).requires_grad_()
    px, pw = x.clone().requires_grad_(), w.clone().requires_grad_()
    (dx @ dw).relu().sum().backward()
    (px @ pw).relu().sum().backward()
    torch.testing.assert_close(dx.grad.to_torch(), px.grad)
    torch.testing.assert_close(dw.grad.to_torch(), pw.grad)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_heads(mesh, causal):
    shapes = [(2, 4, 16, 32)] * 3
    plain = [torch.randn(s, device="cuda", dtype=torch.bfloat16) for s in shapes]
    ours = [
        dtorch.Tensor(t, device_mesh=mesh, placements=[Shard(0), Shard(1)]).requires_grad_() for t in plain
    ]
    theirs = [t.clone().requires_grad_() for t in plain]
    got = F.scaled_dot_product_attention(*ours, is_causal=causal)
    expected = F.scaled_dot_product_attention(*theirs, is_causal=causal)
    torch.testing.assert_close(got.to_torch(), expected.detach(), rtol=2e-2, atol=2e-2)
    got.float().sum().backward()
    expected.float().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad.to_torch(), b.grad, rtol=2e-2, atol=2e-2)


def test_random_numbers_do_not_depend_on_placements(mesh):
    drawn = []
    for placements in ([Shard(0), Shard(1)], [Replicate(), Replicate()]):
        torch.manual_seed(0)
        x = dtorch.Tensor(torch.ones(6, 5, device="cuda"), device_mesh=mesh, placements=placements)
        drawn.append(F.dropout(x, 0.5).to_torch())
    assert torch.equal(*drawn)


@pytest.mark.models
def test_llama_training_step(mesh):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=64,
    )
    plain = transformers.LlamaForCausalLM(config).cuda()
    model = dtorch.parallelize(copy.deepcopy(plain), mesh, "auto")
    ids = torch.randint(0, 64, (5, 16), device="cuda")
    expected = plain(ids, labels=ids).loss
    expected.backward()
    x = dtorch.Tensor(ids, device_mesh=mesh, placements=[Shard(0), Replicate()])
    loss = model(x, labels=x).loss
    loss.backward()
    torch.testing.assert_close(loss.to_torch(), expected.detach(), rtol=1e-4, atol=1e-4)
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            p.grad.to_torch(), q.grad, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("fused", [False, True])
def test_optimizer(mesh, fused):
    value, gradient = torch.randn(6, 4, device="cuda"), torch.randn(6, 4, device="cuda")
    plain = torch.nn.Parameter(value.clone())
    ours = torch.nn.Parameter(dtorch.Tensor(value, device_mesh=mesh, placements=[Shard(0), Shard(1)]))
    for parameter, grad in ((plain, gradient), (ours, dtorch.Tensor(gradient, device_mesh=mesh))):
        optimizer = torch.optim.AdamW([parameter], fused=fused)
        for _ in range(3):
            parameter.grad = grad.clone()
            optimizer.step()
    torch.testing.assert_close(ours.detach().to_torch(), plain.detach(), rtol=1e-6, atol=1e-6)


def test_memory_of_a_gpu(one):
    graph = dtorch.Graph.default_graph()
    graph.get_memory_stats(one, reset_peak=True)
    before = graph.get_memory_stats(one).find(one.device_ids[0]).memory_allocated
    x = dtorch.ones(2**20, device_mesh=one)
    with dtorch.cuda.nvtx.range("double"):
        y = x * 2
    stats = graph.get_memory_stats(one).find(one.device_ids[0])
    assert stats.memory_allocated - before == 8 * 2**20
    assert stats.max_memory_allocated >= stats.memory_allocated <= stats.memory_reserved
    assert y.sum().item() == 2**21
    del x, y
    graph.empty_cache()
