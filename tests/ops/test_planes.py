"""Pooling, interpolation, padding and shuffles: planes are whole, batch and channels may be cut."""

import pytest
import torch
import torch.nn.functional as F

from tests.dist import assert_like_torch, communications, flat, over, place


def grad(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_()


X, LINE, BODY = grad(3, 5, 6, 8), grad(3, 5, 8), grad(2, 3, 4, 6, 4)
POOLS = {
    "max 1d": (lambda x: F.max_pool1d(x, 2), [LINE]),
    "max 2d": (lambda x: F.max_pool2d(x, 3, 2, 1), [X]),
    "max 3d": (lambda x: F.max_pool3d(x, 2), [BODY]),
    "max 2d of one image": (lambda x: F.max_pool2d(x, 2), [grad(5, 6, 8)]),
    "avg 1d": (lambda x: F.avg_pool1d(x, 2), [LINE]),
    "avg 2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [X]),
    "avg 3d": (lambda x: F.avg_pool3d(x, 2), [BODY]),
    "adaptive avg": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), [X]),
    "adaptive avg to one": (lambda x: F.adaptive_avg_pool2d(x, 1), [X]),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (3, 5)), [X]),
    "adaptive max 1d": (lambda x: F.adaptive_max_pool1d(x, 3), [LINE]),
    "max and back": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), [X]),
    "lp": (lambda x: F.lp_pool2d(x.abs(), 2, 2), [X]),
    "local response": (lambda x: F.local_response_norm(x, 3), [X]),
}
OTHERS = {
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), [X]),
    "nearest-exact": (lambda x: F.interpolate(x, size=5, mode="nearest-exact"), [LINE]),
    "linear": (lambda x: F.interpolate(x, size=11, mode="linear"), [LINE]),
    "bilinear": (lambda x: F.interpolate(x, size=(7, 5), mode="bilinear", align_corners=True), [X]),
    "bicubic": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"), [X]),
    "trilinear": (lambda x: F.interpolate(x, size=(3, 4, 5), mode="trilinear"), [BODY]),
    "antialias": (lambda x: F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True), [X]),
    "area": (lambda x: F.interpolate(x, size=(3, 4), mode="area"), [X]),
    "grid": (lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), [X, grad(3, 4, 7, 2)]),
    "reflect": (lambda x: F.pad(x, (1, 2, 2, 1), "reflect"), [X]),
    "replicate": (lambda x: F.pad(x, (1, 2), "replicate"), [LINE]),
    "circular": (lambda x: F.pad(x, (1, 2), "circular"), [LINE]),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), [grad(3, 4, 2, 5)]),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), [X]),
    "pixel_shuffle, uneven": (lambda x: F.pixel_shuffle(x, 2), [grad(3, 16, 5, 3)]),
    "pixel_unshuffle without a batch": (lambda x: F.pixel_unshuffle(x, 3), [grad(2, 6, 12)]),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), [grad(3, 6, 4)]),
    "unfold": (lambda x: F.unfold(x, 2), [X]),
    "fold": (lambda x: F.fold(x, (5, 6), 2), [grad(3, 12, 20)]),
    "fold of four": (lambda x: F.fold(x, (5, 6), 2), [grad(3, 16, 20)]),
}
CASES = POOLS | OTHERS


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 2))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


REGROUPED = {
    "pixel_shuffle, uneven": ["S1", "S2", "S3"],
    "pixel_unshuffle": ["S1", "S3"],
    "pixel_unshuffle without a batch": ["S2"],
    "unfold": ["S1"],
    "fold of four": ["S1"],
}


@pytest.mark.parametrize(("name", "way"), [(name, way) for name in REGROUPED for way in REGROUPED[name]])
def test_what_is_regrouped_sends_nothing(name, way):
    fn, (x,) = CASES[name]
    assert communications(fn, [x], (2,), [(way,)]) == []
    assert any(p.is_shard() for p in fn(place(x, (2,), (way,))).placements)
    assert_like_torch(fn, [x], (2,), [(way,)])


@pytest.mark.parametrize("shape", [(6, 0, 4), (0, 4, 4), (2, 4, 0), (2, 0, 4, 4), (0, 4, 0, 2)])
@pytest.mark.parametrize("fn", [F.pixel_shuffle, F.pixel_unshuffle])
def test_pictures_without_elements(fn, shape):
    x = torch.zeros(4 * shape[0], *shape[1:]) if len(shape) == 3 else torch.zeros(shape)
    for way in range(x.ndim):
        assert_like_torch(lambda x: fn(x, 2), [x], (2,), [(f"S{way}",)])


def test_a_shuffle_and_back_sends_nothing():
    """Rows 3 + 2 of 5 become 6 + 4 of 10, which no chunks are, and come back."""
    x = grad(2, 8, 5, 3)
    assert communications(lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), [x], (2,), [("S2",)]) == []


BY_CHANNEL = [
    n for n in CASES if "channel" not in n and "local" not in n and "pixel" not in n and "fold" not in n
]


@pytest.mark.parametrize("name", CASES)
def test_a_cut_batch_sends_nothing(name):
    fn, tensors = CASES[name]
    assert communications(fn, tensors, (4,), [("S0",)] * len(tensors)) == []


@pytest.mark.parametrize("name", [n for n in BY_CHANNEL if n not in ("grid", "max 2d of one image")])
def test_cut_channels_send_nothing(name):
    fn, tensors = CASES[name]
    assert communications(fn, tensors, (2, 2), [("S0", "S1")]) == []


@pytest.mark.parametrize("name", [n for n in POOLS if "avg" in n and "one" not in n])
def test_an_average_of_pending_sums_is_pending(name):
    fn, tensors = POOLS[name]
    assert communications(fn, tensors, (4,), [("P",)]) == []


@pytest.mark.parametrize("name", CASES)
def test_one_device_is_bit_equal(name):
    fn, tensors = CASES[name]
    found = flat(fn(*[place(t, (1,), ("R",)) for t in tensors]))
    for ours, plain in zip(found, flat(fn(*[t.detach() for t in tensors])), strict=True):
        assert torch.equal(ours.to_torch(), plain)
