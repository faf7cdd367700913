"""FLOPs of every contraction, by its formula, the same in whatever way it is run."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dtorch
from tests.perf.counting import (
    CPU_WAYS,
    WAYS,
    Function,
    flops,
    forward_and_backward,
    on_one_device,
    recorded,
    recorded_in,
)

B, M, K, N = 3, 5, 7, 4
aten = torch.ops.aten


def r(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def sdpa(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **options)


def einsum(equation: str) -> Function:
    return lambda *tensors: torch.einsum(equation, *tensors)


Case = tuple[Function, Sequence[torch.Tensor], int]

PRODUCTS: dict[str, Case] = {
    "mm": (torch.mm, [r(M, K), r(K, N)], 2 * M * K * N),
    "bmm": (torch.bmm, [r(B, M, K), r(B, K, N)], 2 * B * M * K * N),
    "mv": (torch.mv, [r(M, K), r(K)], 2 * M * K),
    "dot": (torch.dot, [r(K), r(K)], 2 * K),
    "vdot": (torch.vdot, [r(K), r(K)], 2 * K),
    "inner": (torch.inner, [r(M, K), r(N, K)], 2 * M * K * N),
    "matmul 1 1": (torch.matmul, [r(K), r(K)], 2 * K),
    "matmul 1 2": (torch.matmul, [r(K), r(K, N)], 2 * K * N),
    "matmul 2 1": (torch.matmul, [r(M, K), r(K)], 2 * M * K),
    "matmul 3 2": (torch.matmul, [r(B, M, K), r(K, N)], 2 * B * M * K * N),
    "matmul 2 3": (torch.matmul, [r(M, K), r(B, K, N)], 2 * B * M * K * N),
    "matmul 1 3": (torch.matmul, [r(K), r(B, K, N)], 2 * B * K * N),
    "matmul broadcast": (torch.matmul, [r(2, 1, M, K), r(B, K, N)], 2 * 2 * B * M * K * N),
    "addmm": (torch.addmm, [r(N), r(M, K), r(K, N)], 2 * M * K * N),
    "addmm_": (lambda a, x, w: (a * 1).addmm_(x, w), [r(M, N), r(M, K), r(K, N)], 2 * M * K * N),
    "addmv": (torch.addmv, [r(M), r(M, K), r(K)], 2 * M * K),
    "addmv_": (lambda a, x, w: (a * 1).addmv_(x, w), [r(M), r(M, K), r(K)], 2 * M * K),
    "addbmm": (torch.addbmm, [r(M, N), r(B, M, K), r(B, K, N)], 2 * B * M * K * N),
    "baddbmm": (torch.baddbmm, [r(B, M, N), r(B, M, K), r(B, K, N)], 2 * B * M * K * N),
    "baddbmm_": (
        lambda a, x, w: (a * 1).baddbmm_(x, w),
        [r(B, M, N), r(B, M, K), r(B, K, N)],
        2 * B * M * K * N,
    ),
    "addr": (torch.addr, [r(M, N), r(M), r(N)], M * N),
    "linear": (F.linear, [r(B, M, K), r(N, K), r(N)], 2 * B * M * K * N),
    "linear of a vector": (F.linear, [r(K), r(N, K), r(N)], 2 * K * N),
    "linear without bias": (F.linear, [r(B, M, K), r(N, K)], 2 * B * M * K * N),
    "bilinear": (F.bilinear, [r(B, M), r(B, K), r(N, M, K)], 2 * B * N * M * K + 2 * B * N * K),
    "chain": (lambda *x: torch.linalg.multi_dot(x), [r(M, K), r(K, N), r(N, 1)], 2 * K * N + 2 * M * K),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 2), [r(B, M, K), r(M, K, N)], 2 * B * M * K * N),
    "matrix power": (lambda x: torch.linalg.matrix_power(x, 3), [r(K, K)], 2 * 2 * K**3),
    "complex": (
        torch.mm,
        [r(M, K).to(torch.complex64), r(K, N).to(torch.complex64)],
        4 * 2 * M * K * N,
    ),
    "einsum of one": (einsum("ij->ji"), [r(M, K)], 0),
    "einsum of a diagonal": (einsum("ii->i"), [r(K, K)], 0),
    "einsum of two": (einsum("bij,jk->bik"), [r(B, M, K), r(K, N)], 2 * B * M * K * N),
    "einsum with summed letters": (einsum("bij,jk->k"), [r(B, M, K), r(K, N)], 2 * K * N),
    "einsum of three": (
        einsum("ij,jk,kl->il"),
        [r(M, K), r(K, N), r(N, B)],
        2 * M * K * N + 2 * M * N * B,
    ),
    "einsum of four": (
        einsum("ij,jk,kl,lm->im"),
        [r(M, K), r(K, N), r(N, B), r(B, 6)],
        2 * M * K * N + 2 * M * N * B + 2 * M * B * 6,
    ),
    "einsum of a trace of a product": (einsum("ij,ji->"), [r(M, K), r(K, M)], 2 * M * K),
    "einsum of an outer product": (einsum("i,j->ij"), [r(M), r(N)], 0),
    "einsum with dots": (einsum("...ij,...jk->...ik"), [r(2, B, M, K), r(B, K, N)], 2 * 2 * B * M * K * N),
    "int": (
        torch._int_mm,
        [torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)],
        2 * 32 * 16 * 8,
    ),
    "grouped rows": (
        torch._grouped_mm,
        [r(16, 32).bfloat16(), r(2, 32, 8).bfloat16(), torch.tensor([8, 16], dtype=torch.int32)],
        2 * 16 * 32 * 8,
    ),
    "grouped columns": (
        torch._grouped_mm,
        [r(2, 16, 32).bfloat16(), r(32, 8).bfloat16(), torch.tensor([4, 8], dtype=torch.int32)],
        2 * 16 * 32 * 8,
    ),
    "grouped sums": (
        torch._grouped_mm,
        [r(16, 32).bfloat16(), r(32, 8).bfloat16(), torch.tensor([16, 32], dtype=torch.int32)],
        2 * 16 * 32 * 8,
    ),
    "distances": (torch.cdist, [r(M, K), r(N, K)], 3 * M * K * N),
    "distances by a product": (torch.cdist, [r(30, K), r(40, K)], 2 * 30 * 40 * (K + 2)),
    "distances within": (F.pdist, [r(M, K)], 3 * (M * (M - 1) // 2) * K),
}

CONVOLUTIONS: dict[str, Case] = {
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), [r(2, 4, 9), r(6, 4, 3)], 2 * 2 * 6 * 9 * 4 * 3),
    "conv2d": (F.conv2d, [r(2, 4, 9, 8), r(6, 4, 3, 2), r(6)], 2 * 2 * 6 * 7 * 7 * 4 * 6),
    "conv3d": (F.conv3d, [r(2, 4, 5, 6, 7), r(6, 4, 2, 2, 2)], 2 * 2 * 6 * 4 * 5 * 6 * 4 * 8),
    "same padding": (
        lambda x, w: F.conv2d(x, w, padding="same"),
        [r(2, 4, 9, 8), r(6, 4, 3, 3)],
        2 * 2 * 6 * 72 * 4 * 9,
    ),
    "strided": (
        lambda x, w: F.conv2d(x, w, stride=2, dilation=2),
        [r(2, 4, 9, 9), r(6, 4, 3, 3)],
        2 * 2 * 6 * 9 * 4 * 9,
    ),
    "groups": (lambda x, w: F.conv2d(x, w, groups=2), [r(2, 4, 9, 9), r(6, 2, 3, 3)], 2 * 2 * 6 * 49 * 2 * 9),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=4), [r(2, 4, 9, 9), r(4, 1, 3, 3)], 2 * 2 * 4 * 49 * 9),
    "transposed 1d": (F.conv_transpose1d, [r(2, 4, 9), r(4, 6, 3)], 2 * 2 * 4 * 9 * 6 * 3),
    "transposed 2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1, groups=2),
        [r(2, 4, 5, 5), r(4, 3, 3, 3)],
        2 * 2 * 4 * 25 * 3 * 9,
    ),
    "one sample": (F.conv2d, [r(4, 9, 8), r(6, 4, 3, 2)], 2 * 6 * 7 * 7 * 4 * 6),
    "steps first": (
        lambda x, w, b: torch.conv_tbc(x, w, b, 1),
        [r(9, 2, 4), r(3, 4, 6), r(6)],
        2 * 9 * 2 * 6 * 4 * 3,
    ),
}

QKV = [r(2, 8, 5, 16), r(2, 8, 7, 16), r(2, 8, 7, 16)]
ATTENTION: dict[str, Case] = {
    "sdpa": (sdpa, QKV, 2 * 2 * 8 * 5 * 7 * 32),
    "grouped heads": (sdpa, [QKV[0], r(2, 2, 7, 16), r(2, 2, 7, 16)], 2 * 2 * 8 * 5 * 7 * 32),
    "another width of values": (sdpa, [*QKV[:2], r(2, 8, 7, 4)], 2 * 2 * 8 * 5 * 7 * (16 + 4)),
    "causal, in full": (lambda q, k: sdpa(q, k, k, is_causal=True), QKV[:2], 2 * 2 * 8 * 5 * 7 * 32),
    "masked": (
        lambda q, k, v, m: sdpa(q, k, v, attn_mask=m),
        [*QKV, torch.ones(5, 7, dtype=torch.bool)],
        2 * 2 * 8 * 5 * 7 * 32,
    ),
    "dropout": (lambda *x: sdpa(*x, dropout_p=0.5), QKV, 2 * 2 * 8 * 5 * 7 * 32),
}

ALL = {**PRODUCTS, **CONVOLUTIONS, **ATTENTION}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALL)
def test_the_formula_in_every_way(name: str, way: str) -> None:
    fn, tensors, wanted = ALL[name]
    assert (flops(way, fn, tensors) or 0) == wanted


TWICE = [
    "mm", "bmm", "addmm", "linear", "mv", "dot", "addmv", "baddbmm", "addbmm", "matmul 3 2", "tensordot",
    "einsum of two", *CONVOLUTIONS, *ATTENTION,
]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in TWICE if n not in ("steps first", "causal, in full")])
def test_backward_is_twice_the_forward(name: str) -> None:
    """The same contraction for each of two factors, of whatever rank."""
    fn, tensors, wanted = ALL[name]
    forward, backward = forward_and_backward(fn, tensors)
    elementwise = {"mv", "dot", "addmv"}  # the gradient of a vector's factor is an outer product
    assert forward == wanted
    assert backward == (forward if name in {"mv", "addmv"} else 0 if name in elementwise else 2 * forward)


def test_an_outer_product_counts_where_it_arrives_whole() -> None:
    outer = (torch.outer, [r(M), r(N)])
    assert [flops(way, *outer) for way in CPU_WAYS] == [None, None, M * N]
    complex_outer = (torch.outer, [x.to(torch.complex64) for x in (r(M), r(N))])
    assert flops("inference", *complex_outer) == 6 * M * N


@pytest.mark.parametrize("mask", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_backward_counts_the_gradients_that_are_asked_for(
    mask: tuple[bool, bool], transposed: bool
) -> None:
    conv = F.conv_transpose2d if transposed else F.conv2d
    x, w = on_one_device(r(2, 4, 6, 6), r(4, 4, 3, 3))
    x.requires_grad_(mask[0])
    w.requires_grad_(mask[1])
    with recorded() as forward:
        y = conv(x, w)
    with recorded() as backward:
        y.sum().backward()
    assert backward.cost().flops == sum(mask) * (forward.cost().flops or 0)


def test_attention_backward_reports_recomputed_scores_apart() -> None:
    q, k, v = (x.requires_grad_() for x in on_one_device(*QKV))
    with recorded() as graph:
        sdpa(q, k, v).sum().backward()
    assert graph.cost().flops == 3 * ATTENTION["sdpa"][2]
    assert graph.cost().recomputed_flops == 2 * 2 * 8 * 5 * 7 * 16
    plain = [x.detach().to_torch().requires_grad_() for x in (q, k, v)]
    report = dtorch.price(lambda *x: sdpa(*(t * 1 for t in x)).sum().backward(), *plain)
    assert (report.flops, report.recomputed_flops) == (graph.cost().flops, graph.cost().recomputed_flops)


@pytest.mark.parametrize(("block", "share"), [(1, 2049 / 4096), (64, 33 / 64), (128, 17 / 32), (256, 9 / 16)])
def test_causal_blocks_that_are_skipped_on_request(block: int, share: float) -> None:
    graph = recorded_in("no_grad", lambda q: sdpa(q, q, q, is_causal=True), [r(1, 1, 2048, 8)])
    (operator,) = [op for op in graph.operators if op.type == "Sdpa"]
    assert operator.causal_flops(block) == share * (operator.flops() or 0)
    assert graph.cost(causal_block=block).flops == operator.causal_flops(block)
    assert graph.cost().flops == operator.flops()
    assert operator.flops() == 4 * 2048 * 2048 * 8


@pytest.mark.parametrize(("s", "t", "block"), [(5, 7, 1), (7, 5, 1), (7, 5, 2), (6, 9, 4), (1, 4, 64)])
def test_causal_blocks_are_those_that_hold_a_kept_score(s: int, t: int, block: int) -> None:
    graph = recorded_in("no_grad", lambda q, k: sdpa(q, k, k, is_causal=True), [r(1, 1, s, 8), r(1, 1, t, 8)])
    (operator,) = [op for op in graph.operators if op.type == "Sdpa"]
    kept = torch.ones(s, t, dtype=torch.bool).tril()
    count = sum(part.numel() for rows in kept.split(block) for part in rows.split(block, dim=1) if part.any())
    assert operator.causal_flops(block) == 4 * 8 * count


# ---- recurrent layers: weights times sequence


RNNS = {
    "lstm": nn.LSTM(6, 5, 2),
    "lstm both ways": nn.LSTM(6, 5, bidirectional=True),
    "lstm projected": nn.LSTM(6, 5, proj_size=3),
    "gru": nn.GRU(6, 5, 2),
    "rnn": nn.RNN(6, 5),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", RNNS)
def test_recurrent(name: str) -> None:
    model, x = RNNS[name], r(4, 3, 6)
    products = {n: w.numel() for n, w in model.named_parameters() if n.startswith("weight")}
    forward = dtorch.price(model, x)
    assert forward.unknown == {}
    assert forward.flops == 2 * 4 * 3 * sum(products.values())
    both = dtorch.price(model, x, backward=True)
    # The gradient of x is not asked for, nor where layers are made of steps that of the first states.
    first = sum(n for key, n in products.items() if key.startswith("weight_ih_l0"))
    states = sum(n for key, n in products.items() if key.startswith("weight_hh"))
    fused = "lstm" in name and "projected" not in name
    left_out = 0 if fused else 2 * 4 * 3 * first + 2 * 3 * states
    assert both.flops == 3 * forward.flops - left_out


@pytest.mark.parametrize("cell", [nn.LSTMCell(6, 5), nn.GRUCell(6, 5), nn.RNNCell(6, 5)])
def test_cells(cell: nn.Module) -> None:
    weights = sum(w.numel() for n, w in cell.named_parameters() if n.startswith("weight"))
    assert dtorch.price(cell, r(3, 6)).flops == 2 * 3 * weights


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_layer_that_torch_fuses_counts_as_its_parts(way: str) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = r(2, 6, 16)
    wanted = 2 * 2 * 6 * 16 * (4 * 16 + 2 * 32) + 4 * 2 * 6 * 6 * 16
    with torch.set_grad_enabled(way == "grad"):
        assert dtorch.price(lambda: layer(x)).flops == wanted


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_packed_weights() -> None:
    weight = torch.quantize_per_tensor(r(N, K), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, r(N))
    graph = recorded_in("no_grad", lambda x: torch.ops.quantized.linear_dynamic(x, packed), [r(B, M, K)])
    assert graph.cost().flops == 2 * B * M * K * N
    assert "LinearDynamic" in str(graph)


# ---- dense linear algebra, by the counts of counts.py


def spd(n: int) -> torch.Tensor:
    return torch.eye(n).expand(B, n, n).contiguous()


LINALG: dict[str, Case] = {
    "cholesky": (torch.linalg.cholesky, [spd(6)], B * 6**3 // 3),
    "lu": (torch.linalg.lu_factor, [spd(6)], B * 2 * 6**3 // 3),
    "tall lu": (torch.linalg.lu, [torch.eye(6, 3)], 6 * 9 - 27 // 3),
    "det": (torch.linalg.det, [spd(6)], B * 2 * 6**3 // 3),
    "slogdet": (torch.linalg.slogdet, [spd(6)], B * 2 * 6**3 // 3),
    "inv": (torch.linalg.inv, [spd(6)], B * 2 * 6**3),
    "solve": (torch.linalg.solve, [spd(6), r(B, 6, 2)], B * (2 * 6**3 // 3 + 2 * 36 * 2)),
    "solve a vector": (torch.linalg.solve, [spd(6), r(B, 6)], B * (2 * 6**3 // 3 + 2 * 36)),
    "triangle": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        [spd(6), r(B, 6, 2)],
        B * 36 * 2,
    ),
    "cholesky_solve": (torch.cholesky_solve, [r(B, 6, 2), spd(6)], B * 2 * 36 * 2),
    "cholesky_inverse": (torch.cholesky_inverse, [spd(6)], B * 2 * 72),
    "qr": (torch.linalg.qr, [torch.eye(6, 3)], 2 * 6 * 9 - 18 + (4 * 6 * 9 - 2 * 9 * 9 + 36)),
    "r alone": (lambda x: torch.linalg.qr(x, mode="r")[1], [torch.eye(6, 3)], 2 * 6 * 9 - 18),
    "geqrf": (torch.geqrf, [torch.eye(6, 3)], 2 * 6 * 9 - 18),
    "eigh": (torch.linalg.eigh, [spd(6)], B * 9 * 6**3),
    # torch asks for vectors wherever a gradient could follow, and of every tensor subclass.
    "eigvalsh": (torch.linalg.eigvalsh, [spd(6)], B * 9 * 6**3),
    "values alone": (lambda x: aten._linalg_eigh(x, "L", False), [spd(6)], B * 4 * 6**3 // 3),
    "eigvals": (torch.ops.aten._linalg_eigvals, [spd(6)], B * 10 * 6**3),
    "eig": (torch.linalg.eig, [spd(6)], B * 25 * 6**3),
    "svd": (lambda x: torch.linalg.svd(x, full_matrices=False), [torch.eye(6, 3)], 14 * 6 * 9 + 8 * 27),
    "full svd": (torch.linalg.svd, [torch.eye(6, 3)], 4 * 36 * 3 + 8 * 6 * 9 + 9 * 27),
    "singular values": (lambda x: aten._linalg_svd(x, False, False), [torch.eye(6, 3)], 4 * 6 * 9 - 36),
    "ldl": (torch.linalg.ldl_factor, [spd(6)], B * 72),
    "complex cholesky": (torch.linalg.cholesky, [spd(6).to(torch.complex64)], 4 * B * 72),
    "pinv": (torch.linalg.pinv, [torch.eye(6, 3)], 14 * 6 * 9 + 8 * 27 + 2 * 6 * 3 * 3),
}


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra(name: str) -> None:
    fn, tensors, wanted = LINALG[name]
    assert flops("no_grad", fn, tensors) == wanted
    if name not in ("geqrf", "eigvals"):  # torch has no meta kernel
        assert flops("meta", fn, tensors) == wanted


FFTS: dict[str, Case] = {
    "fft": (torch.fft.fft, [r(3, 8).to(torch.complex64)], 3 * 5 * 8 * 3),
    "rfft": (torch.fft.rfft, [r(3, 8)], 3 * 5 * 8 * 3 // 2),
    "irfft": (torch.fft.irfft, [r(3, 5).to(torch.complex64)], 3 * 5 * 8 * 3 // 2),
    "fft2": (torch.fft.fft2, [r(3, 4, 8).to(torch.complex64)], 3 * 5 * 32 * 5),
    "of any size": (torch.fft.fft, [r(3, 6).to(torch.complex64)], 3 * round(5 * 6 * math.log2(6))),
}


@pytest.mark.parametrize("way", CPU_WAYS)
@pytest.mark.parametrize("name", FFTS)
def test_transforms(name: str, way: str) -> None:
    fn, tensors, wanted = FFTS[name]
    assert flops(way, fn, tensors) == wanted


def test_a_transform_is_bound_by_either() -> None:
    cost = recorded_in("no_grad", torch.fft.fft, [r(3, 8).to(torch.complex64)]).cost()
    assert cost.is_compute_bound()
    assert cost.is_memory_bound()
