"""dtorch.price: what may be priced, on which devices, what stays as it was, what the report says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dtorch
from dtorch import DeviceError, MeshError, Replicate, Shard, UnsupportedError


def model_of() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def test_without_a_device_calls_are_counted() -> None:
    report = dtorch.price(model_of(), torch.randn(8, 16))
    assert report.flops == 2 * 8 * (16 * 32 + 32 * 4)
    assert report.time is None
    assert report.to_dict()["device"] is None
    assert {o["time_s"] for o in report.to_dict()["operators"]} == {None}


def test_nothing_is_computed_or_changed() -> None:
    model, x = model_of(), torch.randn(8, 16)
    before = {name: (p, p.clone()) for name, p in model.named_parameters()}
    state = torch.random.get_rng_state()
    dtorch.price(model, x, device="l4", optimizer="adamw")
    assert torch.equal(state, torch.random.get_rng_state())
    for name, p in model.named_parameters():
        assert p is before[name][0]
        assert torch.equal(p, before[name][1])
        assert p.grad is None
    assert type(model(x)) is torch.Tensor


def test_a_program_that_fails_leaves_the_model_as_it_was() -> None:
    model = model_of()
    with pytest.raises(RuntimeError):
        dtorch.price(model, torch.randn(8, 17))
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert type(torch.zeros(2)) is torch.Tensor


def test_plain_distributed_and_meta_cost_the_same() -> None:
    x = torch.randn(8, 16)
    with torch.device("meta"):
        on_meta = model_of()
    mesh = dtorch.init_device_mesh("cpu", (1,))
    distributed = dtorch.parallelize(model_of(), mesh, {})
    described = dtorch.described_mesh("l4", (1,))
    with dtorch.dry_run(described):
        inside = model_of()
    reports = [
        dtorch.price(model_of(), x, device="l4"),
        dtorch.price(on_meta, x, device="l4"),
        dtorch.price(distributed, dtorch.tensor(x, device_mesh=mesh), device="l4"),
        dtorch.price(inside, x),
    ]
    totals = [report.to_dict()["total"] for report in reports]
    assert totals[1:] == totals[:1] * 3


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_grad_modes_cost_the_same(mode) -> None:
    with mode():
        report = dtorch.price(model_of().forward, torch.randn(8, 16))
    assert report.flops == 2 * 8 * (16 * 32 + 32 * 4)


def test_tensors_keep_their_placements_on_the_described_mesh() -> None:
    mesh = dtorch.init_device_mesh("cpu", (2, 2), ("dp", "tp"))
    x = dtorch.ones(8, 16, device_mesh=mesh, placements=[Shard(0), Replicate()])
    w = dtorch.ones(16, 32, device_mesh=mesh, placements=[Replicate(), Shard(1)])
    report = dtorch.price(torch.mm, x, w, device="h100-sxm")
    (entry,) = report.entries
    assert [t.placements for t in entry.facts.inputs] == [
        ("Shard(0)", "Replicate()"),
        ("Replicate()", "Shard(1)"),
    ]
    assert report.flops_max_device == report.flops // 4
    assert report.mesh.dim_names == ("dp", "tp")


def test_a_mesh_by_names_and_a_plan() -> None:
    report = dtorch.price(
        nn.Sequential(*model_of(), nn.ReLU()), torch.randn(8, 16), device="h100-sxm", mesh={"tp": 4},
        plan={"0.weight": {"tp": Shard(0)}, "0.bias": {"tp": Shard(0)}, "2.weight": {"tp": Shard(1)}},
    )  # fmt: skip
    assert [e.communication.kind for e in report.entries if e.communication] == ["all_reduce"]
    assert report.communication_bytes == 2 * 3 * 8 * 4 * 4


def test_methods_are_priced() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    report = dtorch.price(Model().encode, torch.randn(2, 4))
    assert report.title == "encode"
    assert report.flops == 2 * 2 * 4 * 4


def test_backward_starts_at_the_loss_or_at_all_that_is_given() -> None:
    class Output(dict):
        loss = None

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> Output:
            output = Output(logits=self.layer(x))
            output.loss = output["logits"].sum()
            return output

    with_loss = dtorch.price(WithLoss(), torch.randn(2, 4), backward=True)
    without = dtorch.price(nn.Linear(4, 4, bias=False), torch.randn(2, 4), backward=True)
    assert (
        with_loss.by_phase()["backward"]["flops"] == without.by_phase()["backward"]["flops"] == 2 * 2 * 4 * 4
    )
    with pytest.raises(UnsupportedError, match="nothing that requires grad"):
        dtorch.price(nn.ReLU(), torch.randn(2), backward=True)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "h100"}, DeviceError, "did you mean .*h100-sxm"),
        ({"mesh": 3}, MeshError, "neither a DeviceMesh nor axis names"),
        ({"optimizer": "lion"}, UnsupportedError, "no optimizer 'lion'; there are adamw, adam, sgd"),
        ({"roof": "best"}, DeviceError, "no roof 'best'"),
    ],
)
def test_wrong_options_are_refused(options, error, message: str) -> None:
    with pytest.raises(error, match=message):
        dtorch.price(model_of(), torch.randn(8, 16), **options)


def test_a_device_beside_a_mesh_of_another() -> None:
    mesh = dtorch.described_mesh("l4", (2,))
    with pytest.raises(DeviceError, match="device='h100-sxm' and a mesh of 'l4'"):
        dtorch.price(model_of(), torch.randn(8, 16), mesh=mesh, device="h100-sxm")


def test_optimizers_are_for_modules() -> None:
    with pytest.raises(UnsupportedError, match="is for a module"):
        dtorch.price(lambda x: x.requires_grad_() * 2, torch.randn(3), optimizer="sgd")


def test_values_that_are_asked_for() -> None:
    with pytest.raises(UnsupportedError, match="described devices"):
        dtorch.price(lambda x: x if x.sum() > 0 else -x, torch.randn(3))


def test_unknown_prices_are_listed_and_refused_when_strict() -> None:
    def odd(x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x).cumsum(0)

    report = dtorch.price(odd, torch.randn(3))
    dtorch.price(model_of(), torch.randn(8, 16), strict=True)
    unknown = {entry.facts.describe: False for entry in report.entries if not entry.facts.known}
    assert set(report.unknown) == set(unknown)


# ---- the report


def test_sums_by_module_and_phase() -> None:
    report = dtorch.price(model_of(), torch.randn(8, 16), device="l4", optimizer="sgd")
    by_module, by_phase = report.by_module(), report.by_phase()
    assert by_module[""]["flops"] == report.flops == sum(sums["flops"] for sums in by_phase.values())
    assert by_module["0"]["flops"] == 2 * 2 * 8 * 16 * 32
    assert sum(sums["kernels"] for sums in by_phase.values()) == report.kernels


def test_the_dict_is_plain_and_adds_up() -> None:
    report = dtorch.price(model_of(), torch.randn(8, 16), device="h100-sxm", backward=True, title="mine")
    data = json.loads(json.dumps(report.to_dict()))
    assert data["version"] == 1
    assert data["title"] == "mine"
    assert data["torch"] == torch.__version__
    assert data["dtorch"] == dtorch.__version__
    total, operators = data["total"], data["operators"]
    assert total["flops"] == sum(o["flops"] or 0 for o in operators)
    assert total["traffic_bytes"] == sum(o["traffic_bytes"] for o in operators)
    assert total["kernels"] == sum(o["kernels"] for o in operators)
    assert total["time_s"] == max(o["start_s"] + o["time_s"] for o in operators)
    assert [o["index"] for o in operators] == list(range(len(operators)))
    assert len(data["memory"]) == len(operators)
    assert total["peak_memory_bytes"] >= max(sum(step["bytes"].values()) for step in data["memory"])
    assert {o["phase"] for o in operators} == {"forward", "backward"}
    assert data["device"]["name"] == "h100-sxm"
    assert data["device"]["source"] == "achievable"
    assert data["mesh"] == {"shape": [1], "dim_names": ["0"], "axis_links": ["nvlink"]}


def test_communication_in_the_dict() -> None:
    mesh = dtorch.described_mesh("h100-sxm", (2,), mesh_dim_names=("tp",))
    x = dtorch.ones(8, 16, device_mesh=mesh, placements=[Shard(1)])
    data = dtorch.price(lambda x: (x.sum(1), torch.relu(x.sum(1))), x).to_dict()
    sent = [o["communication"] for o in data["operators"] if o["communication"]]
    assert sent == [{"kind": "all_reduce", "axes": "tp", "implicit": True, "cause": "Reduce"}] * 2
    assert data["total"]["communication_bytes"] == 2 * data["total"]["communication_bytes_max_device"]


def test_differences() -> None:
    one = dtorch.price(model_of(), torch.randn(8, 16), device="l4")
    two = dtorch.price(model_of(), torch.randn(16, 16), device="l4")
    difference = one.diff(two)
    assert difference["total"]["flops"] == {
        "this": one.flops,
        "other": two.flops,
        "difference": one.flops - two.flops,
    }
    assert difference["kinds"] == {}
    assert one.diff(one) == {"total": {}, "kinds": {}, "modules": {}}


def test_the_names_are_there_and_cost_no_import() -> None:
    code = (
        "import sys, dtorch;"
        "early = [m for m in sys.modules if m.startswith(('dtorch.perf', 'dtorch.report'))];"
        "names = ['Report', 'described_mesh', 'devices', 'dry_run', 'price'];"
        "assert set(names) <= set(dir(dtorch)) & set(dtorch.__all__); dtorch.price; print(early)"
    )
    path = os.pathsep.join([str(Path(dtorch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_states_of_an_optimizer_are_there_from_the_start() -> None:
    model = torch.nn.Linear(64, 64, bias=False)
    report = dtorch.price(model, torch.empty(2, 64), device="h100-sxm", optimizer="adamw")
    parameters = 64 * 64 * 4
    assert report.memory.before["optimizer"] == 2 * parameters
    # parameters, both states and the gradient are alive together
    assert report.peak_memory >= 4 * parameters
