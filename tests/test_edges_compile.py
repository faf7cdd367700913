"""Compilers and tracers leave distributed tensors alone; docs/edges.md lists what happens instead."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch import Replicate, Shard, UnsupportedError, tensor_compile
from tests.dist import place, ways

MESH = dtorch.init_device_mesh("cpu", (2,))
FULL = torch.arange(12.0).view(4, 3)


def spread(places: str = "S0") -> dtorch.Tensor:
    return place(FULL, (2,), (places,))


class Counting:
    """A backend that compiles nothing, and counts."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph


def parallel() -> torch.nn.Module:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    return dtorch.parallelize(module, MESH, {"0.*": [Shard(0)], "2.weight": [Shard(1)]})


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    monkeypatch.setattr(tensor_compile, "_told", False)
    yield Counting()
    torch._dynamo.reset()


def test_a_compiled_model_runs_uncompiled_with_one_notice(
    backend: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    model = parallel()
    compiled = torch.compile(model, backend=backend)
    with caplog.at_level(logging.WARNING):
        for x in (spread("S0"), spread("R"), FULL):
            found = compiled(x)
            assert torch.equal(found.to_torch(), model(x).to_torch())
            found.sum().backward()
    assert model[0].weight.grad.placements == [Shard(0)]
    assert backend.graphs == 0
    assert [record.getMessage() for record in caplog.records] == [
        tensor_compile.NOTICE.format(name="Sequential")
    ]
    assert "dtorch.optimize()" in caplog.text
    assert "dtorch.capture()" in caplog.text


def test_plain_models_are_compiled_before_and_after(backend: Counting) -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    torch.compile(plain, backend=backend)(FULL)
    assert backend.graphs == 1
    torch.compile(parallel(), backend=backend)(FULL)
    assert backend.graphs == 1
    torch.compile(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh()), backend=backend)(FULL)
    assert backend.graphs == 2


def test_compiled_functions(backend: Counting, caplog: pytest.LogCaptureFixture) -> None:
    held = spread("S1")

    @torch.compile(backend=backend)
    def moved(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).redistribute(placements=[Replicate()]).to_torch() + 1

    @torch.compile(backend=backend)
    def makes(x: torch.Tensor) -> torch.Tensor:
        return (dtorch.ones(4, 3, device_mesh=MESH, placements=[Shard(0)]) * 2).sum() + x.sum()

    @torch.compile(backend=backend)
    def closes_over(x: torch.Tensor) -> torch.Tensor:
        return (held * 2 + x).to_torch()

    @torch.compile(backend=backend)
    def nested(x: Any) -> torch.Tensor:
        return F.relu(x["rows"][0]) + 1

    with caplog.at_level(logging.WARNING):
        assert torch.equal(moved(spread()), FULL * 2 + 1)
        assert makes(FULL).item() == 24 + 66
        assert torch.equal(closes_over(FULL), FULL * 3)
        assert torch.equal(nested({"rows": [spread("P")]}).to_torch(), FULL + 1)
    assert len(caplog.records) == 1


def test_one_graph_or_none_is_refused(backend: Counting) -> None:
    with pytest.raises(UnsupportedError, match=r"fullgraph=True\): Sequential holds distributed tensors"):
        torch.compile(parallel(), backend=backend, fullgraph=True)(FULL)


def test_importing_dtorch_does_not_import_dynamo() -> None:
    code = "import sys, dtorch; assert 'torch._dynamo' not in sys.modules"
    source = str(Path(dtorch.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    )


@pytest.mark.parametrize("places", ways(2, (2,)), ids="".join)
def test_other_tracers(places: Any) -> None:
    x = place(FULL, (2,), places)
    with pytest.raises(RuntimeError):
        torch.export.export(torch.nn.Linear(3, 4), (x,))
    linear = torch.nn.Linear(3, 4)
    torch.testing.assert_close(torch.fx.symbolic_trace(linear)(x).to_torch(), linear(FULL))
