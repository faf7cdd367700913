"""Copies, pickles, `.data`, parameters: what a program keeps."""

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Partial, Replicate, Shard
from tests.places import FULL, GRID, TWO, spread

ROOT = Path(__file__).parent.parent


def through_save(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": through_save,
}
copies = pytest.mark.parametrize("twin_of", COPIES.values(), ids=COPIES)
PLACES = [
    (["S0"], TWO),
    (["R"], TWO),
    (["P"], TWO),
    ([], DeviceMesh("cpu")),
    (["S1", "S0"], GRID),
    (["S0", "P"], GRID),
]
places = pytest.mark.parametrize(("placements", "mesh"), PLACES, ids=str)


@copies
@places
@pytest.mark.parametrize("requires_grad", [True, False])
def test_copies_are_whole_and_independent(twin_of, placements, mesh, requires_grad):
    x = spread(placements, mesh, requires_grad=requires_grad)
    y = twin_of(x)
    assert type(y) is dtorch.Tensor
    assert (y.dist_layout, y.device_mesh, y.dtype) == (x.dist_layout, x.device_mesh, x.dtype)
    assert (y.requires_grad, y.is_leaf, y.stride()) == (requires_grad, True, x.stride())
    with torch.no_grad():
        x.zero_()
    assert torch.equal(y.detach().to_torch(), FULL)
    if requires_grad:
        (y * FULL).sum().backward()
        assert y.grad.dist_layout is y.dist_layout
        assert torch.equal(y.grad.to_torch(), FULL)


@copies
@pytest.mark.parametrize(
    "view", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:3], lambda x: x[0].expand(4, 3)]
)
def test_copies_of_views(twin_of, view):
    y = twin_of(view(spread()))
    assert torch.equal(y.to_torch(), view(FULL))
    assert torch.equal((y + 1).t().to_torch(), (view(FULL) + 1).t())
    y.zero_()


def test_copy_copy_shares_storage_as_torchs_does():
    x = spread(requires_grad=True)
    y = copy.copy(x)
    assert y.requires_grad
    with torch.no_grad():
        y.zero_()
    assert not x.detach().to_torch().any()


def test_deepcopy_remembers_and_copies_gradients():
    x = spread(requires_grad=True)
    x.sum().backward()
    x.note = ["mine"]
    y, z = copy.deepcopy([x, x])
    assert y is z
    assert torch.equal(y.grad.to_torch(), x.grad.to_torch())
    y.grad.zero_()
    y.note.append("changed")
    assert x.grad.to_torch().all()
    assert x.note == ["mine"]
    with pytest.raises(RuntimeError, match="support the deepcopy protocol; detach"):
        copy.deepcopy(x * 2)


@copies
def test_parameters_stay_parameters(twin_of):
    module = torch.nn.Linear(3, 5)
    module.weight = torch.nn.Parameter(spread())
    twin = (
        twin_of(module.state_dict(keep_vars=True))["weight"]
        if twin_of is through_save
        else twin_of(module).weight
    )
    assert isinstance(twin, torch.nn.Parameter)
    assert isinstance(twin, dtorch.Tensor)
    assert twin.requires_grad
    assert torch.equal(twin.detach().to_torch(), FULL)


@copies
def test_optimizers_and_their_state(twin_of):
    w = torch.nn.Parameter(spread())
    optimizer = torch.optim.Adam([w])
    w.sum().backward()
    optimizer.step()
    state = twin_of(optimizer.state_dict())
    assert torch.equal(state["state"][0]["exp_avg"].to_torch(), optimizer.state[w]["exp_avg"].to_torch())


def test_a_fresh_process_loads_it(tmp_path):
    file = tmp_path / "x.pt"
    torch.save({"x": spread(["S1", "S0"], GRID, requires_grad=True)}, file)
    code = (
        "import sys, torch, dtorch\n"
        f"x = torch.load({str(file)!r}, weights_only=True)['x']\n"
        "print(x.placements, x.device_mesh.dim_names, x.requires_grad, x.detach().sum().item())"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[Shard(1), Shard(0)] ('dp', 'tp') True 105.0"


def test_one_shard_on_disk_is_no_larger_than_the_shard():
    x = spread(full=torch.zeros(10_000), mesh=dtorch.init_device_mesh("cpu", 10))
    sizes = {}
    for name, thing in {"shard": x.to_local(3), "whole": x, "slice": x.view(10, 1000)[:, :10]}.items():
        file = io.BytesIO()
        torch.save(thing, file)
        sizes[name] = file.tell()
    assert sizes["shard"] < 4000 + 2000
    assert sizes["whole"] < 40_000 + 10 * 2000
    assert sizes["slice"] < 400 + 10 * 2000


def test_replicas_are_saved_once():
    file = io.BytesIO()
    torch.save(spread(["R"], full=torch.zeros(10_000)), file)
    assert file.tell() < 40_000 + 4000


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_tensor_of_missing_devices_is_refused_when_loaded():
    function, (parts, where, state) = spread().__reduce_ex__(2)
    with pytest.raises(RuntimeError, match=r"needs cuda devices \[0, 1\]"):
        function(parts, where, (("cuda", (0, 1), (2,), None), *state[1:]))


# -- .data


def test_data_shares_storage_out_of_autograds_sight():
    w = spread(requires_grad=True)
    y = (w * w).sum()
    assert not w.data.requires_grad
    w.data[:] = torch.ones(5, 3)
    w.data.mul_(2)
    assert torch.equal(w.detach().to_torch(), torch.full((5, 3), 2.0))
    y.backward()  # no version error: as torch, .data is unseen
    assert w.grad is not None


@pytest.mark.parametrize(
    "value", [FULL + 1, spread(["S1"], full=FULL + 1), (FULL + 1).double()], ids=["plain", "ours", "double"]
)
def test_data_may_be_assigned(value):
    w = torch.nn.Parameter(spread())
    w.data = value
    assert isinstance(w, torch.nn.Parameter)
    assert w.requires_grad
    assert torch.equal(w.detach().to_torch(), (FULL + 1).to(value.dtype))
    assert w.dtype is value.dtype
    assert w.placements == (value.placements if isinstance(value, dtorch.Tensor) else [Shard(0)])
    (w * 3).sum().backward()
    assert w.grad.placements == w.placements
    assert torch.equal(w.grad.to_torch(), torch.full((5, 3), 3.0, dtype=value.dtype))


def test_data_of_another_shape():
    w = spread(requires_grad=True)
    w.data = torch.zeros(8, 2)
    assert w.shape == (8, 2)
    assert w.placements == [Shard(0)]
    w.data = torch.zeros(())
    assert w.placements == [Replicate()]
    q = spread()
    w.data = q
    w.data.zero_()
    assert not q.to_torch().any()


# -- parameters and modules


def test_requires_grad_by_any_way_keeps_gradients_placed():
    for switch in (lambda x: x.requires_grad_(), lambda x: setattr(x, "requires_grad", True)):
        x = spread(["S1"])
        switch(x)
        (x @ torch.ones(3, 2)).sum().backward()
        assert x.grad.placements == [Shard(1)]
        x.requires_grad = False
        assert not x.requires_grad
        x.requires_grad = True
        (x * 2).sum().backward()
        assert torch.equal(x.grad.to_torch(), torch.full((5, 3), 4.0))
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        spread(full=FULL.long()).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        (x * 2).requires_grad = False


def linear(mesh=TWO):
    module = torch.nn.Linear(3, 4)
    module.weight = torch.nn.Parameter(
        dtorch.Tensor(module.weight, device_mesh=mesh, placements=["S0"] * mesh.ndim)
    )
    module.bias = torch.nn.Parameter(dtorch.Tensor(module.bias, device_mesh=mesh))
    return module


def test_modules_convert_and_copy():
    module = linear()
    plain = {name: p.detach().to_torch() for name, p in module.named_parameters()}
    twin = copy.deepcopy(module)
    weight = module.weight
    module.double()
    assert module.weight is weight
    assert module.to(torch.float64) is module
    assert module.weight.dtype is torch.float64
    assert module.weight.placements == [Shard(0)]
    module(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    assert module.weight.grad.dtype is torch.float64
    assert module.weight.grad.placements == [Shard(0)]
    module.float()
    assert module.weight.grad.dtype is torch.float32
    for name, p in twin.named_parameters():
        assert isinstance(p, torch.nn.Parameter)
        assert torch.equal(p.detach().to_torch(), plain[name])
    assert module.cpu() is module


def test_state_dicts_load_from_plain_and_distributed():
    source, target = torch.nn.Linear(3, 4), linear()
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.weight.detach().to_torch(), source.weight.detach())
    assert target.weight.placements == [Shard(0)]
    again = linear(GRID)
    again.load_state_dict(target.state_dict())
    assert torch.equal(again.weight.detach().to_torch(), source.weight.detach())
    assert again.weight.device_mesh == GRID


def test_plain_parameters_load_distributed_state():
    target = torch.nn.Linear(3, 4)
    source = linear()
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.weight.detach(), source.weight.detach().to_torch())


def test_shared_memory():
    x = spread()
    assert x.share_memory_() is x
    assert torch.equal(x.to_torch(), FULL)
    assert all(part.is_shared() for part in x._operand.parts)


def test_pending_sums_keep_their_parts():
    x = dtorch.from_local([torch.ones(2), torch.full((2,), 3.0)], TWO, [Partial()])
    for twin_of in COPIES.values():
        assert twin_of(x).to_local(1).tolist() == [3.0, 3.0]
