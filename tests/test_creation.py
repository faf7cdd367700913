"""Making distributed tensors: torch's values and dtypes, on every mesh, under all placements."""

import numpy as np
import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Partial, Replicate, Shard

MESHES = {
    "one": DeviceMesh("cpu"),
    "two": dtorch.init_device_mesh("cpu", 2),
    "grid": dtorch.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp")),
}
WAYS = [
    ("one", []),
    ("two", [Replicate()]),
    ("two", [Shard(0)]),
    ("two", [Shard(-1)]),
    ("two", [Partial()]),
    ("grid", [Shard(0), Shard(0)]),
    ("grid", [Shard(1), Shard(0)]),
    ("grid", [Partial(), Shard(1)]),
    ("grid", [Replicate(), Partial()]),
]
ways = pytest.mark.parametrize(("mesh", "placements"), WAYS, ids=lambda v: str(v))

FACTORIES = {
    "zeros": (5, 3),
    "ones": ((5, 3),),
    "full": ((5, 3), 2.5),
    "rand": (5, 3),
    "randn": (torch.Size([5, 3]),),
    "randint": (2, 90, (5, 3)),
}
LIKE = {
    "zeros_like": (),
    "ones_like": (),
    "full_like": (2.5,),
    "rand_like": (),
    "randn_like": (),
    "randint_like": (7,),
}


def same(ours: torch.Tensor, plain: torch.Tensor) -> None:
    """Equal bit for bit, and alike as tensors."""
    assert type(ours) is dtorch.Tensor
    value = ours.detach().to_torch()
    assert torch.equal(value, plain)
    assert (ours.dtype, ours.shape, ours.stride()) == (plain.dtype, plain.shape, plain.stride())
    assert value.dtype == plain.dtype


@ways
@pytest.mark.parametrize("name", FACTORIES)
def test_factories_give_torchs_values(name, mesh, placements):
    args = FACTORIES[name]
    torch.manual_seed(3)
    plain = getattr(torch, name)(*args)
    after = torch.rand(1)
    torch.manual_seed(3)
    ours = getattr(dtorch, name)(*args, device_mesh=MESHES[mesh], placements=placements)
    same(ours, plain)
    assert torch.equal(torch.rand(1), after)
    assert ours.is_leaf
    assert not ours.requires_grad
    assert len(ours.placements) == MESHES[mesh].ndim


@ways
@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("source", ["plain", "transposed", "distributed"])
def test_like_factories_give_torchs_values(name, mesh, placements, source):
    x = torch.zeros(3, 5).t() if source == "transposed" else torch.zeros(5, 3)
    torch.manual_seed(3)
    plain = getattr(torch, name)(x, *LIKE[name])
    torch.manual_seed(3)
    if source == "distributed":
        y = dtorch.Tensor(x, device_mesh=MESHES[mesh], placements=placements)
        ours = getattr(dtorch, name)(y, *LIKE[name])
        assert ours.device_mesh == y.device_mesh
        assert ours.dist_layout is y.dist_layout.without_partial()
    else:
        ours = getattr(dtorch, name)(x, *LIKE[name], device_mesh=MESHES[mesh], placements=placements)
    same(ours, plain)


@pytest.mark.parametrize("args", [(7,), (2, 7), (0, 1, 0.25), (5.0,)], ids=str)
def test_arange(args):
    same(dtorch.arange(*args, device_mesh=MESHES["two"], placements=[Shard(0)]), torch.arange(*args))


def test_empty_has_the_shape_and_holds_no_more_than_its_part():
    x = dtorch.empty(6, 3, device_mesh=MESHES["two"], placements=[Shard(0)], dtype=torch.int16)
    assert (x.shape, x.dtype) == ((6, 3), torch.int16)
    assert x.to_local(1).shape == (3, 3)
    p = dtorch.empty(4, device_mesh=MESHES["two"], placements=[Partial()])
    assert torch.equal(p.to_local(1), torch.zeros(4))


def test_options_of_factories():
    x = dtorch.ones(
        4, device_mesh=MESHES["two"], placements=[Shard(0)], dtype=torch.float64, requires_grad=True
    )
    assert (x.dtype, x.requires_grad, x.is_leaf) == (torch.float64, True, True)
    x.sum().backward()
    assert x.grad.placements == [Shard(0)]
    assert dtorch.full(size=(2,), fill_value=True, device="cpu").dtype is torch.bool
    assert dtorch.zeros(size=(2, 1)).shape == (2, 1)
    assert dtorch.zeros(()).shape == ()
    assert (
        dtorch.ones(3, dtype=torch.complex64, device_mesh=MESHES["two"], placements=["P"]).sum().item() == 3
    )


def test_a_generator_is_used_and_advances_once():
    ours = torch.Generator().manual_seed(5)
    plain = torch.Generator().manual_seed(5)
    for _ in range(2):
        x = dtorch.randn(5, generator=ours, device_mesh=MESHES["two"], placements=[Shard(0)])
        assert torch.equal(x.to_torch(), torch.randn(5, generator=plain))
    assert torch.equal(ours.get_state(), plain.get_state())


def test_axis_order_is_outermost_first():
    mesh = MESHES["grid"]
    inner_first = dtorch.arange(12, device_mesh=mesh, placements=[Shard(0)] * 2, axis_order=("tp", "dp"))
    assert inner_first.to_local((1, 0)).tolist() == [2, 3]
    assert inner_first.tolist() == list(range(12))
    mesh_order = inner_first.redistribute(placements=[Shard(0)] * 2)
    assert mesh_order.to_local((1, 0)).tolist() == [6, 7]
    back = mesh_order.redistribute(placements=[Shard(0)] * 2, axis_order=(1, 0))
    assert back.dist_layout is inner_first.dist_layout
    assert back.redistribute(placements=inner_first.placements).dist_layout is inner_first.dist_layout


@pytest.mark.parametrize(
    "data",
    [
        1,
        2.5,
        True,
        3 + 1j,
        [1, 2],
        [[1.0, 2], [3, 4]],
        (True, False),
        [],
        range(3),
        np.arange(3, dtype=np.int16),
        np.float64(1.5),
        [np.float32(1.5), 2],
        torch.tensor([1, 2], dtype=torch.uint8),
        [torch.tensor(1.0), 2],
    ],
    ids=repr,
)
def test_values_have_torchs_dtype(data):
    plain = data.clone() if isinstance(data, torch.Tensor) else torch.tensor(data)
    for ours in (
        dtorch.Tensor(data, device_mesh=MESHES["two"]),
        dtorch.tensor(data, device_mesh=MESHES["two"]),
    ):
        same(ours, plain)
        assert ours.is_leaf


def test_values_are_copied():
    plain, array = torch.zeros(3), np.zeros(3)
    ours = [dtorch.Tensor(plain), dtorch.Tensor(array), dtorch.from_torch(plain), dtorch.from_numpy(array)]
    again = dtorch.Tensor(ours[0])
    plain += 1
    array += 1
    ours[0].add_(1)
    assert [x.tolist() for x in ours[1:]] == [[0.0] * 3] * 3
    assert again.tolist() == [0.0] * 3
    assert ours[1].dtype is torch.float64


def test_a_tensor_of_a_distributed_tensor_keeps_its_home():
    x = dtorch.arange(4, device_mesh=MESHES["two"], placements=[Shard(0)])
    assert dtorch.Tensor(x).placements == [Shard(0)]
    assert dtorch.Tensor(x, device_mesh=MESHES["grid"]).placements == [Replicate()] * 2
    assert dtorch.tensor([x[1], x[3]]).tolist() == [1, 3]
    assert dtorch.tensor(x, dtype=torch.float64).dtype is torch.float64


def test_a_tensor_with_history_becomes_a_leaf():
    w = torch.ones(2, requires_grad=True)
    x = dtorch.Tensor(w * 2, device_mesh=MESHES["two"])
    assert x.is_leaf
    assert not x.requires_grad


@pytest.mark.parametrize("stride", [(1, 5), (0, 1), (6, 2)])
def test_any_strides(stride):
    full = torch.as_strided(torch.arange(40.0), (5, 3), stride)
    ours = dtorch.Tensor(full, device_mesh=MESHES["two"], placements=[Shard(0)])
    same(ours, full.clone())
    same(ours * 2, full.clone() * 2)


def test_conjugate_and_negative_bits_are_resolved():
    x = torch.tensor([1 + 2j, 3 - 1j])
    same(dtorch.Tensor(x.conj(), device_mesh=MESHES["two"]), x.conj().resolve_conj())
    assert dtorch.Tensor(x.conj().imag, device_mesh=MESHES["two"]).tolist() == [-2.0, 1.0]


def test_partial_holds_the_value_on_the_first_device():
    x = dtorch.Tensor([1.0, 2.0], device_mesh=MESHES["two"], placements=[Partial()])
    assert x.to_local(0).tolist() == [1, 2]
    assert x.to_local(1).tolist() == [0, 0]


# -- from local parts


@ways
def test_from_local_is_the_inverse_of_to_local(mesh, placements):
    there = MESHES[mesh]
    x = dtorch.randn(5, 4, device_mesh=there, placements=placements, dtype=torch.float64)
    parts = [x.to_local(position) for position in range(there.size)]
    again = dtorch.from_local(parts, there, placements)
    assert again.dist_layout is x.dist_layout
    assert torch.equal(again.to_torch(), x.to_torch())
    by_layout = dtorch.from_local(parts, there, x.dist_layout)
    assert torch.equal(by_layout.to_torch(), x.to_torch())
    for coord, part in zip(there.coords, parts):
        assert torch.equal(again.to_local(coord), part)


def test_from_local_takes_uneven_and_empty_parts():
    mesh = dtorch.init_device_mesh("cpu", 4)
    parts = [torch.full((n, 2), float(i)) for i, n in enumerate((3, 3, 3, 1))]
    x = dtorch.from_local(parts, mesh, [Shard(0)])
    assert x.shape == (10, 2)
    assert torch.equal(x.to_torch(), torch.cat(parts))
    y = dtorch.from_local([torch.ones(2), torch.ones(2), torch.ones(1), torch.ones(0)], mesh, [Shard(0)])
    assert y.tolist() == [1.0] * 5


def test_from_local_copies_and_takes_the_first_replica():
    parts = [torch.ones(2), torch.zeros(2)]
    x = dtorch.from_local(parts, MESHES["two"], [Replicate()], requires_grad=True)
    parts[0] += 1
    assert x.tolist() == [1.0, 1.0]
    assert x.requires_grad
    assert dtorch.from_local(parts, MESHES["two"]).placements == [Replicate()]


@pytest.mark.parametrize(
    ("shapes", "placements", "text"),
    [
        ([(2, 2), (2, 3), (2, 4), (2, 5)], [Shard(1)], r"into \[2, 4\], \[2, 4\], \[2, 4\], \[2, 2\]"),
        ([(2,), (2,), (2,), (3,)], [Replicate()], r"part at \(3,\) is \[3\].* makes it \[2\]"),
        ([(2,), (2,), (2,)], [Replicate()], r"3 parts for .*4 devices; give one for each"),
        ([(2,), (2, 1), (2,), (2,)], [Replicate()], "different numbers of dims"),
        ([(2,)] * 4, [Shard(1)], r"Shard\(1\) on mesh axis 0: the tensor has 1 dims"),
        ([(2,)] * 4, [Shard(0), Shard(0)], "2 placements"),
        ([()] * 4, [Shard(0)], "a scalar has none to cut"),
    ],
)
def test_from_local_checks_sizes(shapes, placements, text):
    mesh = dtorch.init_device_mesh("cpu", 4)
    with pytest.raises(ValueError, match=text):
        dtorch.from_local([torch.zeros(s) for s in shapes], mesh, placements)


def test_from_local_checks_kinds():
    with pytest.raises(TypeError, match="list of plain torch tensors"):
        dtorch.from_local(torch.zeros(2, 2), MESHES["two"])
    with pytest.raises(TypeError, match="several dtypes"):
        dtorch.from_local([torch.zeros(2), torch.zeros(2, dtype=torch.int8)], MESHES["two"])


# -- where


def test_default_mesh():
    assert dtorch.zeros(2).device_mesh == DeviceMesh("cpu")
    assert dtorch.zeros(2, device="cpu").device_mesh == DeviceMesh("cpu")
    graph = dtorch.Graph()
    graph.default_device_mesh = MESHES["two"]
    x = dtorch.zeros(2, graph=graph)
    assert x.device_mesh == MESHES["two"]
    assert x.graph == graph
    assert (x + 1).graph == graph
    assert dtorch.zeros(2).graph == dtorch.default_graph
    assert dtorch.get_default_device_mesh(graph=graph) == MESHES["two"]
    assert dtorch.get_default_device_mesh(device="cpu:1", graph=graph) == DeviceMesh("cpu:1")
    graph.default_dtype = torch.float64
    assert dtorch.zeros(2, graph=graph).dtype is torch.float64
    assert dtorch.tensor([1.0], graph=graph).dtype is torch.float64
    assert dtorch.tensor([1], graph=graph).dtype is torch.int64
    assert torch.get_default_dtype() is torch.float32


def mistakes():
    two = MESHES["two"]
    yield lambda: dtorch.Tensor(2, 3), TypeError, r"takes values, not sizes.*dtorch\.empty\(2, 3"
    yield lambda: dtorch.Tensor([2], [3]), TypeError, "dtorch.empty"
    yield lambda: dtorch.Tensor(2, two, None, None, False, 3), TypeError, "dtorch.empty"
    yield lambda: dtorch.zeros(2, device="cpu", device_mesh=two), ValueError, "give one of them, not both"
    yield lambda: dtorch.tensor([2], device="cpu", device_mesh=two), ValueError, "give one of them, not both"
    yield lambda: dtorch.zeros(2, device_mesh="cpu"), ValueError, r"must be a dtorch\.DeviceMesh, got 'cpu'"
    yield lambda: dtorch.zeros(2, device_mesh=two, placements=[]), ValueError, "0 placements"
    yield lambda: dtorch.zeros(2, device_mesh=two, placements=[Shard(1)]), ValueError, "the tensor has 1 dims"
    yield lambda: dtorch.zeros(2, device_mesh=two, placements=["X"]), ValueError, "'X' is no placement"
    yield lambda: dtorch.zeros(2, layout=torch.sparse_coo), RuntimeError, "distributed tensors are strided"
    yield lambda: dtorch.zeros(2, out=torch.zeros(2)), RuntimeError, r"zeros\(out=\.\.\.\)"
    yield lambda: dtorch.from_torch([1]), TypeError, "takes a torch tensor, got list"
    yield lambda: dtorch.from_numpy([1]), TypeError, "takes a numpy array, got list"
    yield lambda: dtorch.Tensor(torch.zeros(2, device="meta")), RuntimeError, "meta tensor has no value"
    yield lambda: dtorch.Tensor(torch.eye(2).to_sparse()), RuntimeError, "cannot be distributed"
    yield lambda: dtorch.zeros(2, dtype=torch.int8, requires_grad=True), RuntimeError, "floating point"
    cuda = dtorch.init_device_mesh("cuda", (99,))
    yield lambda: dtorch.zeros(2, device_mesh=cuda), RuntimeError, "needs cuda devices"
    yield lambda: dtorch.randn(2, device_mesh=cuda), RuntimeError, "needs cuda devices"
    yield lambda: dtorch.Tensor([2], device_mesh=cuda), RuntimeError, "needs cuda devices"
    yield lambda: dtorch.zeros(2, device_mesh=two).redistribute(cuda), RuntimeError, "needs cuda devices"
    parts = [torch.zeros(2)] * 99
    yield lambda: dtorch.from_local(parts, cuda), RuntimeError, "needs cuda devices"


@pytest.mark.parametrize(("call", "kind", "text"), list(mistakes()))
def test_mistakes_are_named(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


# -- names


@pytest.mark.parametrize(
    "name", ["add", "float32", "matmul", "no_grad", "inference_mode", "manual_seed", "eye", "optim"]
)
def test_torchs_names_are_torchs(name):
    assert getattr(dtorch, name) is getattr(torch, name)


def test_modules_of_torch():
    import dtorch.nn as nn
    from dtorch.nn import Linear, functional
    from dtorch.nn.functional import conv2d

    assert nn.Module is torch.nn.Module
    assert Linear is torch.nn.Linear
    assert functional.relu is torch.nn.functional.relu
    assert conv2d is torch.nn.functional.conv2d
    assert dtorch.autograd.grad is torch.autograd.grad
    assert dtorch.ops.aten is torch.ops.aten
    assert "relu" in dir(functional)
    assert "add" in dir(dtorch)
    with pytest.raises(AttributeError, match="neither dtorch nor torch has 'nonsense'"):
        dtorch.nonsense  # noqa: B018


def test_distribute_tensor_is_what_a_dtensor_user_types():
    mesh = MESHES["two"]
    weight = torch.nn.Parameter(torch.arange(6.0))
    x = dtorch.distribute_tensor(weight, mesh, [Shard(0)])
    assert (x.placements, x.requires_grad, x.is_leaf) == ([Shard(0)], True, True)
    assert torch.equal(x.to_torch(), weight)
    assert dtorch.distribute_tensor(torch.ones(2), mesh).placements == [Replicate()]
    again = dtorch.distribute_tensor(x, mesh, [Replicate()])
    again.sum().backward()
    assert (again.placements, x.grad.tolist()) == ([Replicate()], [1.0] * 6)
    with pytest.raises(dtorch.UnsupportedError, match="no gradient goes back"):
        dtorch.distribute_tensor(weight * 2, mesh)
    with pytest.raises(TypeError, match="takes a torch tensor"):
        dtorch.distribute_tensor([1.0], mesh)
