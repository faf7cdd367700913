"""Samples of operators of neural networks: norms, convolutions, pooling, attention, losses, optimizers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from dtorch.testing.samples import Sample, Values


def _batch_norm(r: Values) -> Any:
    mean, var = r.constant(5), r.positive(5).detach()
    return [
        F.batch_norm(r(4, 5, 3), mean, var, r(5), r(5), training=True),
        F.batch_norm(r(4, 5), mean, var, r(5), r(5)),
        F.batch_norm(r(4, 5, 3), None, None, training=True),
        F.batch_norm(r(4, 5, 3), mean, var, training=True, momentum=0.3),
        torch._native_batch_norm_legit(r(4, 5), r(5), r(5), mean, var, True, 0.1, 1e-5),
        torch.batch_norm_update_stats(r.constant(4, 5, 3), mean, var, 0.1),
        torch._native_batch_norm_legit(r(4, 5), r(5), None, True, 0.1, 1e-5),
        torch._native_batch_norm_legit_no_training(r(4, 5), r(5), r(5), mean, var, 0.1, 1e-5),
    ]


def _sdpa(r: Values) -> Any:
    f = F.scaled_dot_product_attention
    shape = (2, 3, 5, 4)
    return [
        f(r(*shape), r(2, 3, 7, 4), r(2, 3, 7, 4)),
        f(r(*shape), r(*shape), r(*shape), is_causal=True),
        f(r(*shape), r(2, 3, 7, 4), r(2, 3, 7, 4), attn_mask=r.mask(5, 7)),
        f(r(*shape), r(2, 3, 7, 4), r(2, 3, 7, 6)),
        f(r(*shape), r(2, 3, 7, 4), r(2, 3, 7, 4), attn_mask=r(2, 1, 5, 7), scale=0.3),
        f(r(2, 6, 5, 4), r(2, 3, 7, 4), r(2, 3, 7, 4), enable_gqa=True),
    ]


def _optimizers(r: Values) -> Any:
    for kind, options in (
        (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.RMSprop, {"foreach": False}),
        (torch.optim.Adagrad, {"foreach": False}),
        (torch.optim.SGD, {"fused": True}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.Adagrad, {"fused": True}),
    ):
        parameters = [r(4, 5), r(3)]
        optimizer = kind(parameters, lr=0.1, **options)
        for _ in range(2):
            for p in parameters:
                p.grad = r.constant(*p.shape)
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    return parameters


def _losses(r: Values) -> Any:
    found = []
    for how in ("none", "mean", "sum"):
        found += [
            F.mse_loss(r(4, 5), r(4, 5), reduction=how),
            F.l1_loss(r(4, 5), r(4, 5), reduction=how),
            F.smooth_l1_loss(r(4, 5), r(4, 5), reduction=how),
            F.huber_loss(r(4, 5), r(4, 5), reduction=how),
            F.kl_div(r(4, 5), r.positive(4, 5), reduction=how),
            F.soft_margin_loss(r(4, 5), r.constant(4, 5), reduction=how),
            F.binary_cross_entropy(r.positive(4, 5), r.positive(4, 5).detach(), reduction=how),
            F.binary_cross_entropy_with_logits(r(4, 5), r.positive(4, 5), reduction=how),
            F.nll_loss(r(4, 5), r.ints(5, 4), reduction=how),
            F.nll_loss(r(4, 5, 3), r.ints(5, 4, 3), reduction=how),
            F.nll_loss(r(4, 5), torch.tensor([1, -100, 3, 0]), r.positive(5).detach(), reduction=how),
            F.cross_entropy(r(4, 5), r.ints(5, 4), reduction=how),
            F.cross_entropy(r(4, 5, 3), r.ints(5, 4, 3), reduction=how),
            F.cross_entropy(r(4, 5), r.positive(4, 5), reduction=how),
            F.cross_entropy(r(4, 5), r.ints(5, 4), label_smoothing=0.1, reduction=how),
        ]
    return found


def _whole(r: Values) -> Any:
    """Composites arrive whole below inference_mode."""
    with torch.inference_mode():
        x, w = r.constant(3, 4, 5), r.constant(7, 5)
        return [
            F.linear(x, w, r.constant(7)),
            F.linear(x, w),
            F.linear(r.constant(4, 5), w, r.constant(7)),
            torch.outer(r.constant(4), r.constant(5)),
        ]


SAMPLES: dict[str, Sample] = {
    "whole composites": _whole,
    "layer_norm": lambda r: [
        F.layer_norm(r(4, 3, 5), (5,), r(5), r(5)),
        F.layer_norm(r(4, 3, 5), (3, 5)),
        F.layer_norm(r(4, 5), (5,), r(5)),
        F.layer_norm(r(3, 4, 5), (4, 5), r(4, 5), r(4, 5), 0.1),
    ],
    "rms_norm": lambda r: [F.rms_norm(r(4, 3, 5), (5,), r(5)), F.rms_norm(r(4, 5), (5,))],
    "group_norm": lambda r: [F.group_norm(r(4, 6, 5), 2, r(6), r(6)), F.group_norm(r(4, 6, 5, 3), 3)],
    "instance_norm": lambda r: F.instance_norm(r(4, 3, 5)),
    "batch_norm": _batch_norm,
    "conv": lambda r: [
        F.conv2d(r(4, 3, 7, 5), r(2, 3, 3, 2), r(2)),
        F.conv1d(r(4, 6, 7), r(4, 3, 3), padding=1, groups=2),
        F.conv2d(r(4, 3, 7, 5), r(2, 3, 3, 3), None, 2, 1),
        F.conv3d(r(2, 3, 4, 5, 6), r(5, 3, 2, 2, 2)),
        F.conv_transpose2d(r(4, 3, 5, 6), r(3, 2, 3, 3), r(2), 2, 1),
        F.conv1d(r(4, 3, 7), r(5, 3, 3), r(5), dilation=2),
        F.conv2d(r(3, 7, 5), r(2, 3, 3, 2)),
        F.conv2d(r(4, 3, 7, 5), r(2, 3, 1, 1), r(2)),
        F.conv2d(r(4, 6, 7, 5), r(12, 1, 2, 2), r(12), groups=6),
        F.conv_transpose1d(r(4, 6, 5), r(6, 2, 3), r(4), groups=2),
    ],
    "pool": lambda r: [
        F.max_pool2d(r(4, 3, 6, 8), 2),
        F.avg_pool2d(r(4, 3, 6, 8), 3, 2, 1),
        F.adaptive_avg_pool2d(r(4, 3, 6, 8), (3, 4)),
        F.max_pool1d(r(4, 3, 8), 2),
        F.avg_pool1d(r(4, 3, 8), 2),
        F.adaptive_avg_pool2d(r(4, 3, 6, 8), 1),
        F.max_pool3d(r(2, 3, 4, 4, 6), 2),
        F.adaptive_max_pool2d(r(4, 3, 6, 8), (2, 3)),
        F.max_pool2d(r(4, 3, 6, 8), 3, 2, 1),
        F.lp_pool2d(r(4, 3, 6, 8), 2, 2),
    ],
    "interpolate": lambda r: [
        F.interpolate(r(4, 3, 5, 6), scale_factor=2, mode="nearest"),
        F.interpolate(r(4, 3, 5, 6), size=(7, 3), mode="bilinear"),
        F.interpolate(r(4, 3, 5), size=8, mode="linear", align_corners=True),
        F.interpolate(r(4, 3, 5, 6), size=(7, 3), mode="bicubic"),
        F.interpolate(r(4, 3, 5, 6), size=(2, 3), mode="area"),
        F.interpolate(r(4, 3, 5), size=7, mode="nearest"),
    ],
    "pixel_shuffle": lambda r: [
        F.pixel_shuffle(r(3, 8, 2, 5), 2),
        F.pixel_unshuffle(r(3, 2, 4, 6), 2),
        F.channel_shuffle(r(3, 6, 4), 2),
    ],
    "fold": lambda r: [F.unfold(r(4, 3, 5, 6), 2), F.fold(r(4, 12, 20), (5, 6), 2)],
    "grid_sample": lambda r: F.grid_sample(r(4, 3, 5, 6), r(4, 2, 7, 2), align_corners=False),
    "sdpa": _sdpa,
    "glu": lambda r: [F.glu(r(4, 6)), F.glu(r(6, 5), 0)],
    "losses": _losses,
    "optimizers": _optimizers,
    "margin losses": lambda r: [
        F.margin_ranking_loss(r(4), r(4), r(4)),
        F.hinge_embedding_loss(r(4, 5), r(4, 5)),
        F.triplet_margin_loss(r(4, 5), r(4, 5), r(4, 5)),
        F.multilabel_soft_margin_loss(r(4, 5), r.positive(4, 5)),
        F.gaussian_nll_loss(r(4, 5), r(4, 5), r.positive(4, 5)),
        F.poisson_nll_loss(r(4, 5), r.positive(4, 5)),
        F.multi_margin_loss(r(4, 5), r.ints(5, 4)),
    ],
    "dropout off": lambda r: [F.dropout(r(4, 5), 0.5, training=False), F.dropout(r(4, 5), 0.0)],
    "embedding_bag": lambda r: F.embedding_bag(r.ints(7, 4, 3), r(7, 5), mode="sum"),
}
