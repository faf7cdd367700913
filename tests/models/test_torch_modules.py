"""Recurrent and transformer modules of torch.nn, as they are, on data-parallel meshes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dtorch
from dtorch import Replicate, Shard

pytestmark = pytest.mark.models

BATCH, LENGTH, WIDTH = 5, 4, 8
MESHES = {"one": (1,), "dp2": (2,), "dp4 uneven": (4,), "two axes": (2, 2)}


class First(nn.Module):
    """The first output of a module that gives several."""

    def __init__(self, inner: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.inner, self.times = inner, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(*[x] * self.times)
        return found[0] if isinstance(found, tuple) else found


def encoder(**options):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODULES = {
    "lstm": lambda: First(nn.LSTM(WIDTH, 6, num_layers=2, batch_first=True, bidirectional=True)),
    "gru": lambda: First(nn.GRU(WIDTH, 6, batch_first=True)),
    "rnn": lambda: First(nn.RNN(WIDTH, 6, batch_first=True)),
    "lstm cell": lambda: First(nn.Sequential(nn.Flatten(0, 1), nn.LSTMCell(WIDTH, 6))),
    "attention": lambda: First(nn.MultiheadAttention(WIDTH, 2, batch_first=True), 3),
    "encoder": encoder,
    "encoder, norm first": lambda: encoder(norm_first=True, activation="gelu"),
    "decoder": lambda: First(
        nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True), 1), 2
    ),
    "bilinear": lambda: First(nn.Bilinear(WIDTH, WIDTH, 3), 2),
}


def placed(value, shape):
    mesh = dtorch.init_device_mesh("cpu", shape)
    places = [Shard(0), *[Replicate()] * (len(shape) - 1)]
    return dtorch.Tensor(value, device_mesh=mesh, placements=places), mesh


def outcome(module, x):
    y = module(x)
    y.square().mean().backward()
    return y, {n: p.grad for n, p in module.named_parameters()}


def plain(value):
    return value.to_torch() if isinstance(value, dtorch.Tensor) else value.detach()


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", MODULES)
def test_forward_and_backward(name, mesh_name):
    torch.manual_seed(0)
    reference = MODULES[name]()
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    ours, mesh = placed(x, MESHES[mesh_name])
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, {})
    wanted, got = outcome(reference, x), outcome(model, ours)
    exact = {"rtol": 0, "atol": 0} if mesh_name == "one" else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(plain(got[0]), plain(wanted[0]), **exact)
    for key, gradient in wanted[1].items():
        torch.testing.assert_close(plain(got[1][key]), gradient, **exact, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", ["attention", "encoder", "decoder", "lstm cell"])
def test_evaluation(name):
    """Without gradients torch takes shorter paths."""
    torch.manual_seed(0)
    reference = MODULES[name]().eval()
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    ours, mesh = placed(x, (4,))
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, {})
    with torch.inference_mode():
        torch.testing.assert_close(plain(model(ours)), reference(x), rtol=1e-4, atol=1e-6)
