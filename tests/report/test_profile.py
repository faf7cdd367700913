"""Profiling: the same calls as priced, each with a time of its own, and nothing of the program changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dtorch
from dtorch.errors import UnsupportedError
from dtorch.perf.device import described_mesh
from dtorch.report.price import price
from dtorch.report.profile import profile


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def test_each_call_is_timed(model: nn.Module) -> None:
    report = profile(model, torch.randn(4, 6), repeats=2)
    assert set(report.measured) == set(range(len(report.entries)))
    assert all(time >= 0 for time in report.measured.values())
    assert sum(report.measured.values()) > 0
    assert all(row["measured_s"] is not None for row in report.to_dict()["operators"])


@pytest.mark.parametrize("optimizer", [None, "adamw"])
def test_what_is_profiled_is_what_is_priced(model: nn.Module, optimizer: str | None) -> None:
    x = torch.randn(4, 6)
    measured, priced = profile(model, x, optimizer=optimizer, repeats=1), price(model, x, optimizer=optimizer)
    assert measured.flops == priced.flops
    assert measured.memory.peak == priced.memory.peak > 0


def test_the_program_stays_as_it_is(model: nn.Module) -> None:
    before = [parameter.detach().clone() for parameter in model.parameters()]
    profile(model, torch.randn(4, 6), optimizer="sgd", repeats=2)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_function_on_several_devices() -> None:
    mesh = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    x = dtorch.randn(4, 6, device_mesh=mesh, placements=["S1"])
    w = dtorch.randn(3, 6, device_mesh=mesh, placements=["S1"])
    report = profile(lambda: F.linear(x, w).relu(), mesh=mesh, repeats=2)
    assert [entry.communication is not None for entry in report.entries].count(True) == 1


def test_afterwards_calls_are_recorded_again(model: nn.Module) -> None:
    graph = dtorch.default_graph
    eager, runner = graph.constructor.eager, graph.constructor.runner
    profile(model, torch.randn(4, 6), repeats=1)
    assert graph.constructor.eager is eager
    assert graph.constructor.runner is runner


def test_a_described_mesh_computes_nothing(model: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match=r"use dtorch\.price"):
        profile(model, torch.randn(4, 6), mesh=described_mesh("h100-sxm", (2,)))


def test_runs_that_differ_are_refused() -> None:
    x = dtorch.randn(4, 6)
    calls = iter(range(10))

    def uneven() -> torch.Tensor:
        return x.relu() if next(calls) % 2 else x.relu().exp()

    with pytest.raises(UnsupportedError, match="other calls"):
        profile(uneven, repeats=2)
