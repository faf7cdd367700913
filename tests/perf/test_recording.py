"""Who made each call: module, phase, line; what memory it holds, and until when."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dtorch
from dtorch import Replicate, Shard
from dtorch.perf.memory import memory_of
from dtorch.perf.recording import Recording


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def model_of() -> nn.Module:
    return nn.Sequential(Block(), Block())


def priced(*args, **options) -> dtorch.Report:
    return dtorch.price(model_of(), torch.randn(4, 8), *args, device="h100-sxm", **options)


def test_calls_bear_the_path_of_their_module() -> None:
    report = priced()
    assert [(e.facts.kind, e.module) for e in report.entries if e.facts.kernels] == [
        ("Matmul", "0.up"), ("ReLU", "0"), ("Matmul", "0.down"), ("Add", "0"),
        ("Matmul", "1.up"), ("ReLU", "1"), ("Matmul", "1.down"), ("Add", "1"),
    ]  # fmt: skip


def test_backward_calls_bear_that_of_their_forward() -> None:
    report = priced(backward=True)
    backward = [
        e for e in report.entries if e.phase == "backward" and e.facts.kind in ("Matmul", "ReLUBackward")
    ]
    assert [(e.facts.kind, e.module) for e in backward] == [
        ("Matmul", "1.down"), ("Matmul", "1.down"), ("ReLUBackward", "1"), ("Matmul", "1.up"),
        ("Matmul", "1.up"), ("Matmul", "0.down"), ("Matmul", "0.down"), ("ReLUBackward", "0"),
        ("Matmul", "0.up"),
    ]  # fmt: skip


def test_gradients_brought_home_bear_the_module_of_the_leaf() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (2,), mesh_dim_names=("dp",))
    x = dtorch.randn(4, 8, device_mesh=mesh, placements=[Shard(0)])
    report = dtorch.price(model_of(), x, mesh=mesh, backward=True)
    reduced = Counter(e.module for e in report.entries if e.communication and e.phase == "backward")
    assert reduced == {"0.up": 2, "0.down": 2, "1.up": 2, "1.down": 2}


def test_a_recomputed_forward_is_part_of_the_backward() -> None:
    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    report = dtorch.price(Saving(), torch.randn(4, 8), device="l4", backward=True)
    again = [e for e in report.entries if e.facts.kind == "ReLU"]
    assert [(e.module, e.phase) for e in again] == [("inner", "forward"), ("inner", "backward")]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", lambda p: torch.optim.AdamW(p, foreach=True)])
def test_phases(optimizer) -> None:
    phases = [e.phase for e in priced(optimizer=optimizer).entries]
    assert list(dict.fromkeys(phases)) == ["forward", "backward", "optimizer"]


def test_what_a_training_loop_does_beside() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x: torch.Tensor) -> None:
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    report = dtorch.price(step, torch.randn(4, 8), device="l4")
    assert list(report.by_phase()) == ["forward", "backward", "other", "optimizer"]
    assert all(p.grad is None for p in model.parameters())
    squared = next(e for e in report.entries if e.facts.kind == "Pow")
    assert (squared.module, squared.phase) == ("", "forward")


def test_calls_bear_the_users_line() -> None:
    report = priced(backward=True)
    lines = {e.source.rpartition(":")[0] for e in report.entries}
    assert lines == {__file__}
    by_kind = {(e.facts.kind, e.phase): e.source for e in report.entries if e.module == "0"}
    assert by_kind["ReLUBackward", "backward"] == by_kind["ReLU", "forward"]


def test_methods_and_modules_called_inside() -> None:
    model = model_of()
    report = dtorch.price(lambda x: model[1](model[0](x)), torch.randn(4, 8))
    assert {e.module for e in report.entries if e.facts.kernels} == {"", "up", "down"}


def test_one_storage_for_a_lineage_of_views() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (1,))
    with dtorch.dry_run(mesh) as run:
        x = torch.zeros(4, 8)
        y = x.view(8, 4).t()
        y.add_(1)
        z = x + 1
        del x, y, z
    last = run.made[-1]
    added = run.made[-2]
    assert last.reads == added.writes
    assert len(run.storages) == 2
    assert [storage.died for storage in run.storages] == [len(run)] * 2


def test_memory_is_freed_when_the_program_lets_go() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (1,))
    with dtorch.dry_run(mesh) as run:
        x = torch.ones(1000)
        y = x * 2
        del x
        z = y * 2
        del y
        w = z * 2
        run.finish()
        del w
    memory = memory_of(run)
    assert [sum(step.values()) for step in memory.steps] == [4000, 8000, 8000, 8000]
    assert memory.peak == 8000


def test_memory_by_what_it_is_for() -> None:
    report = priced(optimizer="adamw")
    parameters = sum(p.numel() for p in model_of().parameters()) * 4
    last = report.memory.steps[-1]
    assert last["parameters"] == parameters
    assert last["gradients"] == parameters
    assert last["optimizer"] == 2 * parameters
    phases = [e.phase for e in report.entries]
    forward_ends = phases.index("backward") - 1
    # what the backward needs: inputs and relu's result of both blocks; and the output
    saved = (3 * 4 * 8 + 2 * 4 * 32) * 4
    assert report.memory.steps[forward_ends]["activations"] >= saved
    assert report.memory.steps[forward_ends]["gradients"] == 0
    assert report.peak_memory == max(sum(step.values()) for step in report.memory.steps)
    names = {holder.what for holder in report.memory.holders if holder.category == "parameters"}
    assert names == {name for name, _ in model_of().named_parameters()}


def test_a_sharded_parameter_counts_what_one_device_holds() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (4,), mesh_dim_names=("tp",))
    plan = {"*.up.weight": {"tp": Shard(0)}, "*.down.weight": {"tp": Shard(1)}}
    report = dtorch.price(model_of(), torch.randn(4, 8), mesh=mesh, plan=plan)
    held = {holder.what: holder.nbytes for holder in report.memory.holders}
    assert held["0.up.weight"] == 8 * 32 * 4 // 4
    assert held["0.up.bias"] == 32 * 4


def test_tied_parameters_count_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    assert dtorch.price(model, torch.randn(2, 8)).memory.before["parameters"] == 8 * 8 * 4


def test_a_recording_outside_of_a_dry_run_has_no_modules() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (2,))
    recording = Recording()
    x = dtorch.ones(4, 4, device_mesh=mesh, placements=[Replicate()])
    with x.graph.record(recording):
        x + x
    assert [made.module for made in recording.made] == [""]


def test_parameters_that_a_module_gets_later_have_its_names() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (2,), mesh_dim_names=("tp",))
    with dtorch.dry_run(mesh) as run:
        model = model_of()
        model(torch.randn(4, 8))
        dtorch.parallelize(model, mesh, {"*.up.weight": {"tp": Shard(0)}})
        model(torch.randn(4, 8))
        held = [s.nbytes for s in run.storages if s.name == "0.up.weight" and s.died is None]
    assert held == [8 * 32 * 4 // 2]


def test_a_price_inside_a_dry_run() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (2,))
    with dtorch.dry_run(mesh) as run:
        model, x = model_of(), torch.randn(4, 8)
        report = dtorch.price(model, x)
        before = len(run)
        with torch.no_grad():
            model(x)
    assert report.mesh == mesh
    assert [e.facts.describe for e in report.entries] == [n.operator.describe() for n in run.nodes[before:]]
