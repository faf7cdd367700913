"""Graphs and their guards: factories and modules built inside live on the guard's mesh."""

import threading

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Graph, Replicate, Shard

TWO = dtorch.init_device_mesh("cpu", 2)
GRID = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

FACTORIES = {
    "zeros": lambda: torch.zeros(2, 3),
    "ones": lambda: torch.ones((2, 3)),
    "full": lambda: torch.full((2,), 7),
    "arange": lambda: torch.arange(5, device="cpu"),
    "arange_dtype": lambda: torch.arange(0, 1, 0.25, dtype=torch.float64),
    "linspace": lambda: torch.linspace(0, 1, 5),
    "eye": lambda: torch.eye(3),
    "tensor": lambda: torch.tensor([1.0, 2.0]),
    "as_tensor": lambda: torch.as_tensor([1, 2]),
    "rand": lambda: torch.rand(4),
    "randn": lambda: torch.randn(2, 2),
    "randint": lambda: torch.randint(9, (4,)),
    "randperm": lambda: torch.randperm(6),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "generator": lambda: torch.randn(3, generator=torch.Generator().manual_seed(1)),
    "triu_indices": lambda: torch.triu_indices(3, 3),
    "scalar_tensor": lambda: torch.scalar_tensor(2.0),
    "hann_window": lambda: torch.hann_window(4),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_factories_live_on_the_mesh(make):
    torch.manual_seed(1)
    plain = make()
    torch.manual_seed(1)
    with dtorch.device_mesh(GRID) as mesh:
        ours = make()
    assert mesh == GRID
    assert type(ours) is dtorch.Tensor
    assert (ours.device_mesh, ours.placements) == (GRID, [Replicate()] * 2)
    assert ours.dtype is plain.dtype
    assert torch.equal(ours.to_torch(), plain)
    assert type(make()) is torch.Tensor


def test_what_is_asked_for_elsewhere_stays_there():
    with dtorch.device_mesh(TWO):
        assert torch.zeros(2, device="meta").device.type == "meta"
        assert type(torch.zeros(2, device="meta")) is torch.Tensor
        out = torch.empty(2, device="meta")
        assert torch.zeros(2, out=out) is out
        x = torch.zeros(2)
        assert torch.as_tensor(x) is x
        assert torch.zeros(2, requires_grad=True).requires_grad
        assert torch.rand(2, requires_grad=True).is_leaf
        assert dtorch.zeros(2).device_mesh == TWO
        assert dtorch.zeros(2, device_mesh=GRID).device_mesh == GRID
        assert torch.zeros_like(x).device_mesh == TWO


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Linear(3, 5),
        lambda: torch.nn.Conv2d(3, 4, 3),
        lambda: torch.nn.Embedding(7, 3),
        lambda: torch.nn.BatchNorm1d(4),
        lambda: torch.nn.TransformerEncoderLayer(8, 2, 16),
        lambda: torch.nn.GRU(3, 4),
    ],
    ids=["Linear", "Conv2d", "Embedding", "BatchNorm1d", "TransformerEncoderLayer", "GRU"],
)
def test_modules_live_on_the_mesh_with_torchs_values(make):
    torch.manual_seed(1)
    plain = make()
    torch.manual_seed(1)
    with dtorch.device_mesh(TWO):
        ours = make()
    for (name, mine), theirs in zip(ours.state_dict().items(), plain.state_dict().values(), strict=True):
        assert isinstance(mine, dtorch.Tensor), name
        assert mine.device_mesh == TWO
        assert torch.equal(mine.to_torch(), theirs), name
    assert all(isinstance(p, torch.nn.Parameter) and p.requires_grad for p in ours.parameters())


def test_a_module_made_inside_trains():
    torch.manual_seed(1)
    plain = torch.nn.Linear(3, 2)
    torch.manual_seed(1)
    with dtorch.device_mesh(TWO):
        ours = torch.nn.Linear(3, 2)
    x = torch.randn(6, 3)
    ours(dtorch.Tensor(x, device_mesh=TWO, placements=[Shard(0)])).square().sum().backward()
    plain(x).square().sum().backward()
    assert ours.weight.grad.placements == [Replicate()]
    torch.testing.assert_close(ours.weight.grad.to_torch(), plain.weight.grad)


def test_guards_nest_and_end_with_errors():
    graph = dtorch.default_graph
    with dtorch.device_mesh(TWO):
        with dtorch.device_mesh("cpu:1"):
            assert torch.zeros(1).device_mesh == DeviceMesh("cpu:1")
        with pytest.raises(KeyError), dtorch.device_mesh("cpu:1"):
            raise KeyError
        assert torch.zeros(1).device_mesh == TWO
        assert graph.default_device_mesh == TWO
    assert graph.default_device_mesh is None
    assert type(torch.zeros(1)) is torch.Tensor


def test_a_guard_of_another_graph():
    graph = Graph()
    with graph.device_mesh_guard(TWO):
        x = torch.zeros(2)
    assert x.graph == graph
    assert (x + 1).graph == graph
    assert x.graph != dtorch.default_graph


def test_a_guard_of_missing_devices_is_refused():
    mesh = dtorch.init_device_mesh("cuda", (99,))
    assert not dtorch.default_graph.satisfy(mesh)
    assert dtorch.default_graph.satisfy(GRID)
    with pytest.raises(RuntimeError, match="needs cuda devices"), dtorch.device_mesh(mesh):
        pass
    assert dtorch.default_graph.default_device_mesh is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtype_guard(dtype):
    graph = dtorch.default_graph
    with graph.dtype_guard(dtype):
        assert torch.zeros(2).dtype is dtype
        assert torch.tensor([1.0]).dtype is dtype
        assert torch.arange(3).dtype is torch.int64
        assert torch.zeros(2, dtype=torch.float16).dtype is torch.float16
        assert dtorch.rand(2).dtype is dtype
        assert torch.nn.Linear(2, 2).weight.dtype is dtype
        with dtorch.device_mesh(TWO):
            assert torch.nn.Linear(2, 2).weight.dtype is dtype
            assert torch.randn(2).dtype is dtype
    assert torch.get_default_dtype() is torch.float32
    assert torch.zeros(2).dtype is torch.float32
    assert graph.default_dtype is None
    with (
        pytest.raises(RuntimeError, match="a default dtype is a floating-point one"),
        graph.dtype_guard(torch.int64),
    ):
        pass


def test_torchs_default_dtype_counts():
    torch.set_default_dtype(torch.float64)
    try:
        assert dtorch.zeros(2).dtype is torch.float64
        assert dtorch.tensor([1.0]).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_each_thread_has_its_default_graph():
    found = []
    thread = threading.Thread(target=lambda: found.append(dtorch.default_graph))
    with dtorch.device_mesh(TWO):
        thread.start()
        thread.join()
        assert found[0].default_device_mesh is None
    assert found[0] != dtorch.default_graph
    assert dtorch.default_graph == Graph.default_graph()
    assert dtorch.default_graph is dtorch.default_graph
    assert len({dtorch.default_graph, Graph.default_graph()}) == 1
    assert found[0].id != dtorch.default_graph.id


def test_housekeeping():
    dtorch.default_graph.empty_cache()
    assert repr(Graph()).startswith("Graph(id=")
