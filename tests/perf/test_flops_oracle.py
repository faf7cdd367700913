"""Models at full size, exactly: published counts of vision models, the closed formula of language models.

A vision model's published number is of multiply-adds, half the FLOPs, of one 224 x 224 picture. A Llama's
forward over S tokens, attention in full, costs

    F(S) = 2 S (n (2 h^2 + 2 h k d + 3 h f) + h V) + 4 n h S^2

n layers, h hidden, k key and value heads of width d, f feed-forward width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import dtorch
from tests.perf import vision_models

# (multiply-adds, parameters): torchvision's metadata of its weights.
VISION = {
    "resnet18": (1_814_073_344, 11_689_512),
    "resnet50": (4_089_184_256, 25_557_032),
    "vgg16": (15_470_264_320, 138_357_544),
    "vit_b_16": (17_563_828_224, 86_567_656),
    "mobilenet_v2": (300_774_272, 3_504_872),
}
# Batch 2; the gradient of the picture is not asked for.
TRAINING = {"resnet50": 48_598_155_264, "resnet18": 21_296_824_320}

ONE = dtorch.described_mesh("h100-sxm")


def built(make: Callable[[], nn.Module], mesh: Any = ONE) -> nn.Module:
    """A model of described parameters, of any size in no memory."""
    with dtorch.dry_run(mesh):
        return make()


def size_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", VISION)
def test_vision(name: str) -> None:
    macs, parameters = VISION[name]
    model = built(getattr(vision_models, name)).eval()
    assert size_of(model) == parameters
    report = dtorch.price(model, torch.empty(1, 3, 224, 224, device="meta"))
    assert report.unknown == {}
    assert report.flops == 2 * macs


@pytest.mark.parametrize("name", TRAINING)
def test_vision_training(name: str) -> None:
    model = built(getattr(vision_models, name))
    report = dtorch.price(model, torch.empty(2, 3, 224, 224, device="meta"), backward=True)
    assert report.flops == TRAINING[name]
    forward = 2 * 2 * VISION[name][0]
    stem = 2 * 2 * 64 * 112 * 112 * 3 * 49
    assert report.flops == 3 * forward - stem


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "vit_b_16"])
def test_vision_on_real_meta_tensors(name: str) -> None:
    with torch.device("meta"):
        model = getattr(vision_models, name)().eval()
    assert dtorch.price(model, torch.empty(1, 3, 224, 224, device="meta")).flops == 2 * VISION[name][0]


class Llama(NamedTuple):
    """The sizes that count."""

    n: int
    h: int
    heads: int
    k: int
    f: int
    v: int

    @property
    def d(self) -> int:
        return self.h // self.heads

    @property
    def weights(self) -> int:
        """Elements of the weights that every token meets."""
        return self.n * (2 * self.h**2 + 2 * self.h * self.k * self.d + 3 * self.h * self.f) + self.h * self.v

    def flops(self, s: int) -> int:
        return 2 * s * self.weights + 4 * self.n * self.h * s**2

    def model(self) -> Any:
        transformers = pytest.importorskip("transformers")
        config = transformers.LlamaConfig(
            num_hidden_layers=self.n, hidden_size=self.h, num_attention_heads=self.heads,
            num_key_value_heads=self.k, intermediate_size=self.f, vocab_size=self.v,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config)


LLAMAS = {
    "llama-2-7b": Llama(32, 4096, 32, 32, 11008, 32000),
    "llama-3-8b": Llama(32, 4096, 32, 8, 14336, 128256),
    "llama-3-70b": Llama(80, 8192, 64, 8, 28672, 128256),
}
# (parameters, {tokens: FLOPs})
PUBLISHED = {
    "llama-2-7b": (6_738_415_616, {1: 13_214_679_040, 4096: 62_921_270_886_400}),
    "llama-3-8b": (
        8_030_261_248,
        {1: 15_009_841_152, 2048: 32_938_104_193_024, 4096: 70_274_254_897_152},
    ),
    "llama-3-70b": (70_553_706_496, {1: 139_006_050_304, 4096: 613_338_509_737_984}),
}


def ids(s: int) -> torch.Tensor:
    return torch.zeros(1, s, dtype=torch.long)


@pytest.mark.models
@pytest.mark.parametrize("name", LLAMAS)
def test_llama(name: str) -> None:
    sizes, (parameters, flops) = LLAMAS[name], PUBLISHED[name]
    model = built(sizes.model)
    assert size_of(model) == parameters
    for s, wanted in flops.items():
        report = dtorch.price(model, ids(s))
        assert report.unknown == {}
        assert report.flops == sizes.flops(s) == wanted


@pytest.mark.models
def test_a_decode_step_of_llama() -> None:
    """Every weight but the embedding table is read for a token, in bfloat16; keys and values add 128 KiB."""
    sizes = LLAMAS["llama-3-8b"]
    norms = (2 * sizes.n + 1) * sizes.h
    assert 2 * (sizes.weights + norms) == 15_009_849_344
    assert 2 * 2 * sizes.n * sizes.k * sizes.d == 131_072


@pytest.mark.models
@pytest.mark.parametrize("mesh", [(8,), (2, 2)])
def test_llama_on_several_devices(mesh: tuple[int, ...]) -> None:
    """Cut or not, all devices together do the whole; tensor parallelism divides it evenly."""
    sizes = LLAMAS["llama-3-8b"]._replace(n=2)
    names = ("tp",) if len(mesh) == 1 else ("dp", "tp")
    there = dtorch.described_mesh("h100-sxm", mesh, mesh_dim_names=names)
    model = dtorch.parallelize(built(sizes.model, there), there, "auto")
    tp = mesh[-1]
    report = dtorch.price(model, ids(512), mesh=there)
    assert report.flops == sizes.flops(512)
    head = 2 * 512 * sizes.h * sizes.v
    assert report.flops_max_device == (sizes.flops(512) - head) // tp + head // tp


@pytest.mark.models
@pytest.mark.parametrize("s", [1024])
def test_gpt2(s: int) -> None:
    transformers = pytest.importorskip("transformers")
    model = built(lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()))
    assert size_of(model) == 124_439_808
    h, n, v = 768, 12, 50257
    wanted = 2 * s * (n * 12 * h**2 + h * v) + 4 * n * h * s**2
    assert dtorch.price(model, ids(s)).flops == wanted == 291_648_307_200


@pytest.mark.models
def test_training_costs_three_forwards() -> None:
    """Published rates count three forwards; the gradient of the embedding adds no product."""
    sizes = LLAMAS["llama-3-8b"]._replace(n=2)
    model = built(sizes.model)
    report = dtorch.price(model, ids(256), labels=ids(256), backward=True)
    assert report.flops == 3 * sizes.flops(256)
