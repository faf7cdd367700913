"""Calls that a calibration measures: torch operators, ready to be called, with their features and work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch

from dtorch.perf.features import features_of

aten = torch.ops.aten

# (m, n, k): square, one row, few rows, tall, wide, thin.
PRODUCTS = (
    (16, 16, 16), (64, 64, 64), (128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
    (1, 256, 256), (1, 1024, 1024), (1, 4096, 1024), (8, 256, 256), (8, 1024, 1024), (32, 512, 512),
    (64, 256, 1024), (64, 1024, 256), (128, 768, 768), (256, 3072, 768), (256, 768, 3072), (512, 128, 512),
    (2048, 64, 64), (64, 64, 2048), (512, 2048, 64), (768, 768, 256), (1024, 256, 128),
)  # fmt: skip
BATCHED = ((8, 64, 64, 64), (32, 64, 64, 32), (48, 128, 128, 64), (64, 16, 16, 16), (96, 1, 64, 64))
# batch, channels in, channels out, pixels a side, kernel, stride, groups
CONVOLUTIONS = (
    (1, 3, 64, 64, 7, 2, 1), (8, 3, 64, 64, 7, 2, 1), (8, 3, 192, 64, 16, 16, 1),
    (4, 3, 384, 112, 16, 16, 1), (8, 64, 64, 16, 3, 1, 1), (8, 128, 128, 8, 3, 1, 1),
    (8, 256, 256, 4, 3, 1, 1), (8, 512, 512, 2, 3, 1, 1), (2, 64, 64, 16, 3, 1, 1),
    (2, 128, 128, 8, 3, 1, 1), (2, 256, 256, 4, 3, 1, 1), (2, 512, 512, 2, 3, 1, 1),
    (1, 64, 64, 56, 3, 1, 1), (1, 128, 128, 28, 3, 1, 1), (1, 256, 256, 14, 3, 1, 1),
    (1, 512, 512, 7, 3, 1, 1), (8, 64, 128, 16, 3, 2, 1), (8, 128, 256, 8, 3, 2, 1),
    (8, 64, 128, 16, 1, 2, 1), (8, 256, 512, 4, 1, 2, 1), (8, 64, 256, 16, 1, 1, 1),
    (8, 256, 64, 16, 1, 1, 1), (1, 256, 1024, 14, 1, 1, 1), (1, 1024, 256, 14, 1, 1, 1),
    (1, 512, 2048, 7, 1, 1, 1), (4, 64, 64, 56, 3, 1, 1), (4, 16, 16, 8, 3, 1, 1),
    (8, 128, 128, 16, 3, 1, 128), (8, 32, 32, 32, 3, 1, 32),
)  # fmt: skip
# batch x heads, query tokens, key tokens, width
ATTENTIONS = (
    (8, 16, 16, 32),
    (48, 64, 64, 64),
    (48, 128, 128, 64),
    (12, 256, 256, 64),
    (8, 1, 64, 32),
    (24, 197, 197, 32),
)
SIZES = (64, 4096, 32768, 262144, 1048576, 4194304)


@dataclass(frozen=True, slots=True)
class Probe:
    """A call to measure: operator and dtype, what to call, its features and its work (FLOPs or bytes)."""

    operator: str
    dtype: torch.dtype
    call: Callable[[], Any]
    features: tuple[float, ...]
    work: float


def products(dtype: torch.dtype) -> Iterator[Probe]:
    """mm, addmm and bmm; the weight of a linear arrives transposed, so one of the two is measured so."""
    for m, n, k in PRODUCTS:
        a, w, bias = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype), torch.randn(n).to(dtype)
        yield _contraction("aten.mm", dtype, partial(torch.mm, a, w.t()), ((m, k), (k, n)), 2 * m * n * k)
        yield _contraction(
            "aten.addmm", dtype, partial(torch.addmm, bias, a, w.t()), ((n,), (m, k), (k, n)), 2 * m * n * k
        )
        yield _contraction(
            "aten.linear",
            dtype,
            partial(torch.nn.functional.linear, a, w, bias),
            ((m, k), (n, k)),
            2 * m * n * k,
        )
    for b, m, n, k in BATCHED:
        x, y = torch.randn(b, m, k).to(dtype), torch.randn(b, k, n).to(dtype)
        yield _contraction(
            "aten.bmm", dtype, partial(torch.bmm, x, y), ((b, m, k), (b, k, n)), 2 * b * m * n * k
        )


def convolutions(dtype: torch.dtype) -> Iterator[Probe]:
    """convolution, and both parts of its backward in one call."""
    for batch, inner, outer, side, kernel, stride, groups in CONVOLUTIONS:
        x = torch.randn(batch, inner, side, side).to(dtype)
        w = torch.randn(outer, inner // groups, kernel, kernel).to(dtype)
        sizes = ([stride] * 2, [0 if kernel == stride else kernel // 2] * 2, [1, 1], False, [0, 0], groups)
        y = aten.convolution.default(x, w, None, *sizes)
        flops = 2 * y.numel() * prod(w.shape[1:])
        shapes = (tuple(x.shape), tuple(w.shape))
        forward = partial(aten.convolution.default, x, w, None, *sizes)
        backward = partial(aten.convolution_backward.default, y, x, w, None, *sizes, [True, True, False])
        yield _contraction("aten.convolution", dtype, forward, shapes, flops)
        yield _contraction("aten.convolution_backward", dtype, backward, (tuple(y.shape), *shapes), 2 * flops)


def attentions(dtype: torch.dtype) -> Iterator[Probe]:
    """Attention as cpu runs it under autograd, forward and backward, and whole."""
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    for heads, queries, keys, width in ATTENTIONS:
        q = torch.randn(1, heads, queries, width).to(dtype)
        k, v = torch.randn(2, 1, heads, keys, width).to(dtype)
        shapes, flops = (tuple(q.shape), tuple(k.shape)), 4 * heads * queries * keys * width
        name = "aten._scaled_dot_product_flash_attention_for_cpu"
        whole = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v)
        yield _contraction("aten.scaled_dot_product_attention", dtype, whole, shapes, flops)
        if q.device.type != "cpu":
            continue
        out, logsumexp = forward(q, k, v)
        yield _contraction(name, dtype, partial(forward, q, k, v), shapes, flops)
        yield _contraction(
            f"{name}_backward",
            dtype,
            partial(backward, out, q, k, v, out, logsumexp, 0.0, False),
            (tuple(out.shape), *shapes),
            2 * flops,
        )


def _contraction(
    operator: str,
    dtype: torch.dtype,
    call: Callable[[], Any],
    shapes: tuple[tuple[int, ...], ...],
    flops: int,
) -> Probe:
    features = features_of(operator, shapes)
    if features is None:
        raise KeyError(operator)
    return Probe(operator, dtype, call, features, float(flops))


def passes(dtype: torch.dtype) -> Iterator[Probe]:
    """Operators that go over their operands once or a few times, at several sizes, by bytes touched."""
    for size in SIZES:
        columns = min(size, 256)
        x, y = torch.randn(2, size // columns, columns).to(dtype)
        w = torch.randn(columns).to(dtype)
        for name, call in _elementwise(x, y) + _rows(x, y, w):
            yield Probe(name, dtype, call, (_touched(call),), _touched(call))
        if size >= 4096:
            images = x.view(4, 16, -1, 16) if size < 262144 else x.view(8, 64, -1, 16)
            for name, call in _images(images):
                yield Probe(name, dtype, call, (_touched(call),), _touched(call))


Calls = list[tuple[str, "partial[Any]"]]


def _elementwise(x: torch.Tensor, y: torch.Tensor) -> Calls:
    target, positive = x.clone(), x.abs()
    return [
        ("aten.add", partial(torch.add, x, y)),
        ("aten.sub", partial(torch.sub, x, y)),
        ("aten.mul", partial(torch.mul, x, y)),
        ("aten.div", partial(torch.div, x, y)),
        ("aten.neg", partial(torch.neg, x)),
        ("aten.pow", partial(torch.pow, x, 2)),
        ("aten.sqrt", partial(torch.sqrt, positive)),
        ("aten.rsqrt", partial(torch.rsqrt, positive)),
        ("aten.exp", partial(torch.exp, x)),
        ("aten.tanh", partial(torch.tanh, x)),
        ("aten.sigmoid", partial(torch.sigmoid, x)),
        ("aten.relu", partial(torch.relu, x)),
        ("aten.gelu", partial(torch.nn.functional.gelu, x)),
        ("aten.silu", partial(torch.nn.functional.silu, x)),
        ("aten.clone", partial(aten.clone.default, x)),
        ("aten.copy_", partial(target.copy_, x)),
        ("aten.add_", partial(target.add_, y)),
        ("aten.mul_", partial(target.mul_, 1.0)),
        ("aten.lerp_", partial(target.lerp_, y, 0.1)),
        ("aten.addcmul_", partial(target.addcmul_, y, y, value=1e-3)),
        ("aten.addcdiv_", partial(target.addcdiv_, y, positive, value=1e-6)),
        ("aten.threshold_backward", partial(aten.threshold_backward.default, y, x, 0)),
        ("aten.gelu_backward", partial(aten.gelu_backward.default, y, x)),
        ("aten.silu_backward", partial(aten.silu_backward.default, y, x)),
        ("aten.tanh_backward", partial(aten.tanh_backward.default, y, x)),
        ("aten.where", partial(torch.where, x > 0, x, y)),
    ]


def _rows(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Calls:
    soft = torch.softmax(x, -1)
    shape = list(w.shape)
    _, mean, rstd = aten.native_layer_norm.default(x, shape, w, w, 1e-5)
    rows, labels = x.shape[0], torch.zeros(x.shape[0], dtype=torch.long)
    total = torch.tensor(float(rows)).to(x.dtype)
    picked = torch.arange(rows) % 97
    table = y[:97].contiguous() if rows >= 97 else y
    picked %= table.shape[0]
    loss = x.new_ones(())
    return [
        ("aten._softmax", partial(torch.softmax, x, -1)),
        ("aten._softmax_backward_data", partial(aten._softmax_backward_data.default, y, soft, -1, x.dtype)),
        ("aten._log_softmax", partial(torch.log_softmax, x, -1)),
        (
            "aten._log_softmax_backward_data",
            partial(aten._log_softmax_backward_data.default, y, soft, -1, x.dtype),
        ),
        ("aten.native_layer_norm", partial(aten.native_layer_norm.default, x, shape, w, w, 1e-5)),
        (
            "aten.native_layer_norm_backward",
            partial(aten.native_layer_norm_backward.default, y, x, shape, mean, rstd, w, w, [True] * 3),
        ),
        ("aten.sum", partial(torch.sum, x, 0)),
        ("aten.mean", partial(torch.mean, x, -1, True)),
        ("aten.cat", partial(torch.cat, [x, y])),
        ("aten.embedding", partial(aten.embedding.default, table, picked)),
        (
            "aten.embedding_dense_backward",
            partial(aten.embedding_dense_backward.default, y, picked, 97, -1, False),
        ),
        ("aten.nll_loss_forward", partial(aten.nll_loss_forward.default, x, labels, None, 1, -100)),
        (
            "aten.nll_loss_backward",
            partial(aten.nll_loss_backward.default, loss, x, labels, None, 1, -100, total),
        ),
    ]


def _images(x: torch.Tensor) -> Calls:
    channels = x.shape[1]
    w, b, mean, var = (torch.ones(channels).to(x.dtype) for _ in range(4))
    pooled, where = aten.max_pool2d_with_indices.default(x, [2, 2])
    _, saved, inverse = aten.native_batch_norm.default(x, w, b, mean, var, True, 0.1, 1e-5)
    return [
        (
            "aten.native_batch_norm",
            partial(aten.native_batch_norm.default, x, w, b, mean, var, True, 0.1, 1e-5),
        ),
        (
            "aten.native_batch_norm_backward",
            partial(
                aten.native_batch_norm_backward.default,
                x, x, w, mean, var, saved, inverse, True, 1e-5, [True] * 3,
            ),
        ),
        ("aten.max_pool2d_with_indices", partial(aten.max_pool2d_with_indices.default, x, [2, 2])),
        (
            "aten.max_pool2d_with_indices_backward",
            partial(
                aten.max_pool2d_with_indices_backward.default,
                pooled, x, [2, 2], [2, 2], [0, 0], [1, 1], False, where,
            ),
        ),
    ]  # fmt: skip


def _touched(call: partial[Any]) -> float:
    """Bytes of the tensors a call is given and gives; a tensor it writes into is counted once."""
    given = [value for value in (*call.args, *call.keywords.values()) if isinstance(value, torch.Tensor)]
    given += [
        value
        for list_ in call.args
        if isinstance(list_, list)
        for value in list_
        if isinstance(value, torch.Tensor)
    ]
    owner = getattr(call.func, "__self__", None)
    if isinstance(owner, torch.Tensor):
        given.append(owner)
    result = call()
    results = result if isinstance(result, tuple) else (result,)
    distinct = {
        value.data_ptr(): value.nbytes for value in (*given, *results) if isinstance(value, torch.Tensor)
    }
    return float(sum(distinct.values()))
