"""Convolutional models and vision transformers on meshes: one training step is plain torch's.

Batch norm's statistics are those of the whole batch, however unevenly it is cut; on one device bit for bit.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dtorch
from dtorch import Replicate, Shard

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.models

CLASSES, SIZE, BATCH = 5, 16, 6


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(made)
        self.conv2 = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(made)
        self.shortcut = nn.Sequential(nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Block(8, 8, 1),
        Block(8, 16, 2),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def unet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, 2, 1),
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.ConvTranspose2d(8, 4, 2, 2),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, CLASSES),
    )


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=CLASSES
    )
    return transformers.ResNetForImageClassification(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=SIZE,
        patch_size=4,
        num_labels=CLASSES,
        hidden_dropout_prob=0.1,
    )
    return transformers.ViTForImageClassification(config)


MODELS = {"cnn": cnn, "unet": unet, "resnet": resnet, "vit": vit}
MESHES = {
    "one": ((1,), ("dp",)),
    "dp2 x tp1": ((2, 1), ("dp", "tp")),
    "dp4 uneven": ((4,), ("dp",)),
    "dp8, some empty": ((8,), ("dp",)),
}


def logits(output):
    return output if isinstance(output, torch.Tensor) else output.logits


def step(model, x, labels):
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    y = logits(model(x))
    loss = nn.functional.cross_entropy(y, labels)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    optimizer.step()
    return y, loss, gradients


def plain(value):
    return value.to_torch() if isinstance(value, dtorch.Tensor) else value.detach()


@pytest.mark.parametrize("mesh_name", MESHES)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step(name, mesh_name):
    torch.manual_seed(0)
    reference = MODELS[name]().train()
    shape, names = MESHES[mesh_name]
    mesh = dtorch.init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, {})
    x = torch.randn(BATCH, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(BATCH) % CLASSES
    places = [Shard(0) if axis == "dp" else Replicate() for axis in names]
    placed = [dtorch.Tensor(t, device_mesh=mesh, placements=places) for t in (x, labels)]
    wanted, got = step(reference, x, labels), step(model, *placed)
    exact = {"rtol": 0, "atol": 0} if mesh_name == "one" else {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(plain(got[0]), plain(wanted[0]), **exact)
    torch.testing.assert_close(plain(got[1]), plain(wanted[1]), **exact)
    for key, gradient in wanted[2].items():
        torch.testing.assert_close(plain(got[2][key]), gradient, **exact, msg=lambda m, k=key: f"{k}: {m}")
    state = model.state_dict()
    for key, value in reference.state_dict().items():
        torch.testing.assert_close(plain(state[key]), value, **exact, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_sends_nothing(name):
    torch.manual_seed(0)
    mesh = dtorch.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    reference = MODELS[name]().eval()
    model = dtorch.parallelize(copy.deepcopy(reference), mesh, {})
    x = torch.randn(BATCH, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    placed = dtorch.Tensor(x, device_mesh=mesh, placements=[Shard(0)])
    with torch.no_grad(), dtorch.Graph.default_graph().record() as graph:
        found = logits(model(placed))
    assert found.placements == [Shard(0)]
    assert graph.communications() == []
    with torch.no_grad():
        torch.testing.assert_close(plain(found), logits(reference(x)), rtol=1e-4, atol=1e-5)
