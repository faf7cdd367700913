"""Five well-known vision models in plain torch.nn, by their papers; for counting, without weights.

ResNet (He et al. 2015), VGG (Simonyan and Zisserman 2014), ViT (Dosovitskiy et al. 2020), MobileNetV2
(Sandler et al. 2018), with the widths of the usual releases for 1000 classes of 224 x 224 pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

CLASSES = 1000


def conv_norm(given: int, made: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias, and a batch norm."""
    conv = nn.Conv2d(given, made, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(made))


class Residual(nn.Module):
    """relu(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) + self.shortcut(x)).relu()


def _basic(given: int, width: int, stride: int) -> tuple[nn.Module, int]:
    body = nn.Sequential(conv_norm(given, width, 3, stride), nn.ReLU(), conv_norm(width, width, 3))
    return body, width


def _bottleneck(given: int, width: int, stride: int) -> tuple[nn.Module, int]:
    made = 4 * width
    middle = conv_norm(width, width, 3, stride)
    return nn.Sequential(conv_norm(given, width), nn.ReLU(), middle, nn.ReLU(), conv_norm(width, made)), made


def _resnet(blocks: Sequence[int], deep: bool) -> nn.Module:
    layers: list[nn.Module] = [conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    given = 64
    for stage, count in enumerate(blocks):
        for number in range(count):
            stride = 2 if stage and not number else 1
            body, made = (_bottleneck if deep else _basic)(given, 64 << stage, stride)
            same = stride == 1 and given == made
            layers.append(Residual(body, nn.Identity() if same else conv_norm(given, made, 1, stride)))
            given = made
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, CLASSES))


def resnet18() -> nn.Module:
    return _resnet((2, 2, 2, 2), deep=False)


def resnet50() -> nn.Module:
    return _resnet((3, 4, 6, 3), deep=True)


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    given = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(given, width, 3, padding=1), nn.ReLU()]
            given = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


class InvertedResidual(nn.Module):
    """Wider, depthwise, narrower; added to its input where the sizes agree."""

    def __init__(self, given: int, made: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = given * factor
        widen = [conv_norm(given, wide), nn.ReLU6()] if factor > 1 else []
        self.body = nn.Sequential(
            *widen, conv_norm(wide, wide, 3, stride, wide), nn.ReLU6(), conv_norm(wide, made)
        )
        self.adds = stride == 1 and given == made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet_v2() -> nn.Module:
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def blocks() -> Iterator[nn.Module]:
        given = 32
        for factor, made, count, stride in stages:
            for number in range(count):
                yield InvertedResidual(given, made, 1 if number else stride, factor)
                given = made

    first = [conv_norm(3, 32, 3, 2), nn.ReLU6()]
    last = [conv_norm(320, 1280), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, CLASSES)]
    return nn.Sequential(*first, *blocks(), *last)


class EncoderBlock(nn.Module):
    """Attention and a perceptron, each after a norm and added to what it was given."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.perceptron = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.perceptron(self.norm2(x))


class VitB16(nn.Module):
    """Patches of 16 x 16, 12 blocks of width 768."""

    def __init__(self, width: int = 768, patches: int = 14 * 14) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.zeros(1, patches + 1, width))
        self.blocks = nn.Sequential(
            *[EncoderBlock(width, 12, 4 * width) for _ in range(12)], nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(x.shape[0], -1, -1), patches], dim=1)
        return self.head(self.blocks(tokens + self.place)[:, 0])


def vit_b_16() -> nn.Module:
    return VitB16()
