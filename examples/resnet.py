"""A ResNet-50 in plain torch, priced: its forward, and a training step.

    dtorch price examples/resnet.py --device l4
    dtorch price examples/resnet.py --device a100-sxm-80gb --mesh dp=8 --optimizer sgd
    python examples/resnet.py

The network of He et al., Deep Residual Learning for Image Recognition (2015), with the stride in the 3 x 3
convolution as torchvision has it: 4,089,184,256 multiply-adds an image of 224 x 224.
"""

import torch
from torch import nn

import dtorch
from dtorch import Replicate, Shard

BATCH = 32
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width, blocks
EXPANSION = 4


class Bottleneck(nn.Module):
    """1 x 1 down, 3 x 3, 1 x 1 up, added to the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.skip = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet50(classes: int = 1000) -> nn.Sequential:
    """The network: images [batch, 3, 224, 224] to logits [batch, classes]."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for stage, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = width * EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def build(mesh: dtorch.DeviceMesh) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The network, Replicate, and images cut over the first axis of the mesh; what `dtorch price` calls."""
    places = [Shard(0), *[Replicate()] * (mesh.ndim - 1)]
    images = dtorch.zeros(BATCH, 3, 224, 224, device_mesh=mesh, placements=places)
    return resnet50(), (images,)


def main() -> None:
    for device in ("l4", "a100-sxm-80gb", "h100-sxm"):
        mesh = dtorch.described_mesh(device, (1,), mesh_dim_names=("dp",))
        with dtorch.dry_run(mesh):
            model, images = build(mesh)
        forward = dtorch.price(model, *images)
        step = dtorch.price(model, *images, optimizer="sgd")
        print(
            f"{device:14} forward {forward.time * 1e3:7.2f} ms, training step {step.time * 1e3:7.2f} ms, "
            f"{step.peak_memory / 1e9:.1f} GB"
        )


if __name__ == "__main__":
    main()
