"""Beside torch's own FLOP counter: equal where that is right, and the places where it is not, one by one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import dtorch
from tests.perf.counting import Function, on_one_device, recorded
from tests.perf.test_counts import CONVOLUTIONS, B, K, M, N, r, sdpa

q, kv = r(2, 8, 5, 16), r(2, 8, 7, 16)

# name -> the function and its tensors; forward and backward.
RIGHT = {
    "mm": (torch.mm, [r(M, K), r(K, N)]),
    "bmm": (torch.bmm, [r(B, M, K), r(B, K, N)]),
    "addmm": (torch.addmm, [r(N), r(M, K), r(K, N)]),
    "baddbmm": (torch.baddbmm, [r(B, M, N), r(B, M, K), r(B, K, N)]),
    "linear": (F.linear, [r(B, M, K), r(N, K), r(N)]),
    "einsum": (lambda *x: torch.einsum("bij,jk,kl->bil", *x), [r(B, M, K), r(K, N), r(N, 2)]),
    "attention of other widths": (sdpa, [q, kv, r(2, 8, 7, 4)]),
    "conv": (F.conv2d, CONVOLUTIONS["conv2d"][1]),
    "conv3d": (F.conv3d, CONVOLUTIONS["conv3d"][1]),
    "strided": CONVOLUTIONS["strided"][:2],
    "transposed": (F.conv_transpose1d, CONVOLUTIONS["transposed 1d"][1]),
    "a perceptron": (nn.Sequential(nn.Linear(K, 9), nn.GELU(), nn.Linear(9, N)), [r(M, K)]),
}


def counted(fn: Function, tensors: list[torch.Tensor], backward: bool) -> tuple[int, int]:
    """By torch's counter, and by ours."""

    def run(given: list[torch.Tensor]) -> None:
        given = [t.requires_grad_() if backward and t.is_floating_point() else t for t in given]
        y = fn(*given)
        if backward:
            y.sum().backward()

    counter = FlopCounterMode(display=False)
    with counter:
        run([t.clone() for t in tensors])
    with recorded() as graph:
        run(on_one_device(*tensors))
    return counter.get_total_flops(), graph.cost().flops or 0


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", RIGHT)
def test_equal_to_torchs_counter(name: str, backward: bool) -> None:
    fn, tensors = RIGHT[name]
    theirs, ours = counted(fn, list(tensors), backward)
    assert ours == theirs > 0


# name -> the function, its tensors, whether backward too, torch's count, the right one.
WRONG = {
    "mv": (torch.mv, [r(M, K), r(K)], False, 0, 2 * M * K),
    "dot": (torch.dot, [r(K), r(K)], False, 0, 2 * K),
    "addmv": (torch.addmv, [r(M), r(M, K), r(K)], False, 0, 2 * M * K),
    "addmm_": (lambda a, x, w: (a * 1).addmm_(x, w), [r(M, N), r(M, K), r(K, N)], False, 0, 2 * M * K * N),
    "addbmm": (torch.addbmm, [r(M, N), r(B, M, K), r(B, K, N)], False, 0, 2 * B * M * K * N),
    "bilinear": (F.bilinear, [r(B, M), r(B, K), r(N, M, K)], False, 0, 2 * B * N * M * K + 2 * B * N * K),
    "attention on the cpu": (sdpa, [q, kv, kv], False, 0, 4 * 2 * 8 * 5 * 7 * 16),
    "its backward": (sdpa, [q, kv, kv], True, 0, 3 * 4 * 2 * 8 * 5 * 7 * 16),
    "integers": (
        torch._int_mm,
        [torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)],
        False,
        0,
        2 * 32 * 16 * 8,
    ),
    "groups of rows": (
        torch._grouped_mm,
        [r(16, 32).bfloat16(), r(2, 32, 8).bfloat16(), torch.tensor([8, 16], dtype=torch.int32)],
        False,
        0,
        2 * 16 * 32 * 8,
    ),
    "complex numbers": (
        torch.mm,
        [r(M, K).to(torch.complex64), r(K, N).to(torch.complex64)],
        False,
        2 * M * K * N,
        8 * M * K * N,
    ),
    "distances": (torch.cdist, [r(M, K), r(N, K)], False, 0, 3 * M * K * N),
    "solving": (torch.linalg.solve, [torch.eye(6), r(6, 2)], False, 0, 2 * 6**3 // 3 + 2 * 36 * 2),
    "a transform": (torch.fft.fft, [r(8).to(torch.complex64)], False, 0, 5 * 8 * 3),
}


@pytest.mark.parametrize("name", WRONG)
def test_where_torchs_counter_is_wrong(name: str) -> None:
    """If torch counts one of these some day, it moves to the others."""
    fn, tensors, backward, theirs, right = WRONG[name]
    assert counted(fn, list(tensors), backward) == (theirs, right)


def test_lstm() -> None:
    lstm, x = nn.LSTM(6, 5), r(4, 3, 6)
    counter = FlopCounterMode(display=False)
    with counter:
        lstm(x)
    assert counter.get_total_flops() == 0
    assert dtorch.price(lstm, x).flops == 2 * 4 * 3 * 20 * (6 + 5)


def test_backward_of_a_depthwise_convolution() -> None:
    """torch's counter forgets that a group sees its own channels alone."""

    def depthwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, padding=1, groups=16)

    theirs, ours = counted(depthwise, [r(2, 16, 9, 9), r(16, 1, 3, 3)], backward=True)
    forward = 2 * 2 * 16 * 81 * 9
    assert ours == 3 * forward
    assert theirs > 5 * ours
