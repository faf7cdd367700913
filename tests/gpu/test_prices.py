"""The same count on cuda as on cpu, whichever kernels torch chooses there."""

from __future__ import annotations

import pytest
import torch

import dtorch
from dtorch import Graph
from tests.perf.test_counts import ALL, ATTENTION, CONVOLUTIONS, LINALG

pytestmark = pytest.mark.gpu

CASES = {**ALL, **LINALG}
# torch has no such kernel on cuda, or wants sizes that are multiples of 16 there.
NOT_THERE = {"int", "grouped rows", "grouped columns", "grouped sums", "eigvals"}


@pytest.fixture
def one():
    return dtorch.DeviceMesh("cuda")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_THERE])
def test_forward(one, name, mode):
    fn, tensors, wanted = CASES[name]
    placed = [dtorch.Tensor(t.cuda(), device_mesh=one) for t in tensors]
    with mode(), Graph.default_graph().record() as graph:
        fn(*placed)
    assert (graph.cost().flops or 0) == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*CONVOLUTIONS, *ATTENTION])
def test_backward(one, name, dtype):
    if name in ("steps first", "causal, in full"):
        pytest.skip("the gradient of x that is used twice, or of padding, is another product")
    fn, tensors, wanted = CASES[name]
    placed = [
        dtorch.Tensor(t.cuda().to(dtype) if t.is_floating_point() else t.cuda(), device_mesh=one)
        for t in tensors
    ]
    for x in placed:
        x.requires_grad_(x.is_floating_point())
    with Graph.default_graph().record() as graph:
        fn(*placed).sum().backward()
    assert graph.cost().flops == 3 * wanted


def test_recurrent(one):
    with dtorch.device_mesh(one):
        lstm = torch.nn.LSTM(6, 5)
    x = dtorch.ones(4, 3, 6, device_mesh=one)
    with Graph.default_graph().record() as graph:
        lstm(x)
    assert graph.cost().flops == 2 * 4 * 3 * 20 * (6 + 5)
    assert graph.cost().known
