"""Operators without rules: recorded once their first run has shown what they give, if no value decides it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import dtorch
from dtorch.graph.graph import Graph
from dtorch.hidden import ONLY_READ, writes

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))

pytestmark = pytest.mark.recorded


def pending() -> int:
    return len(Graph.default_graph().constructor.pending.nodes)


def weight_norm(x: torch.Tensor) -> torch.Tensor:
    return torch._weight_norm(x.reshape(2, 2), x[:2].reshape(2, 1), 0)


AT_ONCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_values_decide_runs_at_once(name: str) -> None:
    for shift in (0.0, 1.0, 1.0):
        x = torch.tensor([0.0, 1.0, 1.0, 2.0]) * shift
        assert torch.equal(AT_ONCE[name](dtorch.Tensor(x, MESH)).to_torch(), AT_ONCE[name](x))
    assert pending() == 0


def test_what_no_value_decides_is_recorded() -> None:
    full = torch.tensor([3.0, 1.0, 2.0, 0.5])
    x = dtorch.Tensor(full, MESH)
    for _ in range(2):
        before = pending()
        made = weight_norm(x)
    assert pending() > before
    assert torch.equal(made.to_torch(), weight_norm(full))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("size", [6, 32])
def test_an_lstm_rounds_as_its_grad_mode_says(training: bool, size: int) -> None:
    torch.manual_seed(0)
    plain = nn.LSTM(16, size).train(training)
    model = dtorch.parallelize(copy.deepcopy(plain), MESH, {})
    for _ in range(4):
        full = torch.randn(3, 5, 16)
        x = dtorch.Tensor(full, MESH)
        with torch.no_grad():
            without, expected_without = model(x)[0], plain(full)[0]
        with_grad, expected = model(x)[0], plain(full)[0]
        with torch.no_grad():
            assert torch.equal(with_grad.to_torch(), expected)
        assert torch.equal(without.to_torch(), expected_without)
        with_grad.sum().backward()
        expected.sum().backward()
        assert torch.allclose(model.weight_ih_l0.grad.to_torch(), plain.weight_ih_l0.grad, rtol=1e-5)


def test_a_greatest_norm_is_kept_to_at_each_call() -> None:
    torch.manual_seed(0)
    plain = nn.Embedding(10, 4, max_norm=0.5)
    model = dtorch.parallelize(copy.deepcopy(plain), MESH, {})
    for start in range(5):  # from the third on, they are planned
        ids = torch.arange(start, start + 4)
        assert torch.allclose(model(dtorch.Tensor(ids, MESH)).to_torch(), plain(ids))
    assert torch.allclose(model.weight.to_torch(), plain.weight)


@pytest.mark.parametrize("name", ONLY_READ)
def test_what_is_only_read_is_as_it_was(name: str) -> None:
    func = getattr(torch.ops.aten, name.removeprefix("aten::")).default
    assert not {*ONLY_READ[name]} & {*writes(func)}
    steps = [torch.tensor(3.0)]
    func(
        [torch.ones(4)], [torch.ones(4)], [torch.ones(4)], steps,
        lr=0.1, lr_decay=0.1, weight_decay=0.0, eps=1e-10, maximize=False,
    )  # fmt: skip
    assert steps[0].item() == 3.0


def test_a_rate_of_a_fused_optimizer_makes_no_other_operator() -> None:
    p = nn.Parameter(dtorch.ones(4, 2, device_mesh=MESH))
    optimizer = torch.optim.AdamW([p], lr=0.3, fused=True)
    recipes = Graph.default_graph().constructor._recipes
    known = []
    for number in range(6):
        optimizer.param_groups[0]["lr"] = 0.3 / (number + 1)
        p.grad = torch.ones_like(p)
        optimizer.step()
        known.append(len(recipes))
    assert known[-1] == known[1]
