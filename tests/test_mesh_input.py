"""What a device mesh may be made from, and the text of the error for everything else."""

import pytest
import torch

from dtorch.errors import MeshError
from dtorch.mesh import DeviceMesh, init_device_mesh


@pytest.mark.parametrize(
    ("ids", "shape"),
    [
        ([0, 1, 2, 3], (4,)),
        (range(3), (3,)),
        ((5,), (1,)),
        ([[0, 1, 2], [3, 4, 5]], (2, 3)),
        ([range(2), range(2, 4)], (2, 2)),
        ([[[0], [2]], [[4], [6]]], (2, 2, 1)),
        (torch.arange(6).view(3, 2), (3, 2)),
        (torch.arange(4).view(2, 2).t(), (2, 2)),
        ([torch.tensor(2), torch.tensor([0]).sum()], (2,)),
        ([torch.arange(2), torch.arange(2, 4)], (2, 2)),
    ],
)
def test_ids_and_shape(ids, shape):
    mesh = DeviceMesh("cpu", ids)
    expected = torch.stack([torch.as_tensor(row) for row in ids]).flatten().tolist()
    assert mesh.shape == shape
    assert list(mesh.device_ids) == expected
    assert all(type(id) is int for id in mesh.device_ids)
    assert mesh.mesh.tolist() == torch.tensor(expected).view(shape).tolist()
    assert (mesh.ndim, mesh.size) == (len(shape), len(expected))


def test_ids_from_numpy():
    numpy = pytest.importorskip("numpy")
    assert DeviceMesh("cpu", numpy.array([[3, 1], [0, 2]])) == DeviceMesh("cpu", [[3, 1], [0, 2]])


@pytest.mark.parametrize(
    ("device", "kind", "id"),
    [
        ("cpu", "cpu", 0),
        ("cuda", "cuda", 0),
        ("cuda:3", "cuda", 3),
        (torch.device("cuda", 2), "cuda", 2),
        (torch.device("cpu"), "cpu", 0),
    ],
)
def test_one_device_is_not_distributed(device, kind, id):
    mesh = DeviceMesh(device)
    assert not mesh.is_distributed
    assert (mesh.device_type, mesh.device_ids, mesh.shape, mesh.dim_names) == (kind, (id,), (), None)
    assert mesh.mesh.shape == ()
    assert mesh.mesh.item() == id


def test_a_list_of_one_device_is_distributed():
    assert DeviceMesh("cpu", [0]).is_distributed
    assert DeviceMesh("cpu", [0]) != DeviceMesh("cpu")


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], r"mesh=\[\] is empty: axis 0 has no devices"),
        (range(0), "is empty: axis 0"),
        ([[], []], r"mesh=\[\[\], \[\]\] is empty: axis 1 has no devices"),
        (torch.empty(0, dtype=torch.int64), "is empty: axis 0"),
        ([[0, 1], [2]], r"mesh=\[\[0, 1\], \[2\]\] is ragged: axis 1 has rows of 1 and 2$"),
        ([[0, 1], 2], "is ragged: axis 1 has rows of 2, and single ids"),
        ([0, [1, 2]], "is ragged: axis 1 has rows of 2, and single ids"),
        ([[[0], [1]], [[2], 3]], "is ragged: axis 2 has rows of 1, and single ids"),
        ([0, 1, 1, 0], r"mesh=\[0, 1, 1, 0\]: device id [01] stands 2 times, each device may stand once"),
        ([[0, 1], [2, 0]], "device id 0 stands 2 times"),
        ([0, -1], r"mesh=\[0, -1\]: device id -1 is negative"),
        ([0, None], r"mesh=\[0, None\]: a device id must be an int, got None \(NoneType\)"),
        ([0.0, 1.0], r"a device id must be an int, got 0.0 \(float\)"),
        ([False, True], r"a device id must be an int, got False \(bool\)"),
        (["0", "1"], r"a device id must be an int, got '0' \(str\)"),
        (torch.tensor([0.0, 1.0]), r"a device id must be an int, got 0.0 \(float\)"),
        (4, r"mesh=4 is no list of device ids; write \[0\] for device 0 alone, range\(n\) for n devices"),
        (torch.tensor(1), "mesh=1 is no list of device ids"),
        ({0, 1}, "is no list of device ids"),
        ("01", "mesh='01' is no list of device ids"),
    ],
)
def test_bad_ids(ids, text):
    with pytest.raises(MeshError, match=text):
        DeviceMesh("cpu", ids)


def test_error_of_a_large_mesh_is_short():
    with pytest.raises(MeshError, match="device id 7 stands 2 times") as caught:
        DeviceMesh("cpu", [*range(5000), 7])
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("device_type", "text"),
    [
        ("tpu", "unknown device type 'tpu'; known are 'cpu', 'cuda'"),
        ("", "unknown device type ''"),
        ("CPU", "unknown device type 'CPU'"),
        ("cuda:", "unknown device type 'cuda:'"),
        ("cuda:-1", "unknown device type 'cuda:-1'"),
        ("cuda:x", "unknown device type 'cuda:x'"),
        (torch.device("meta"), "unknown device type 'meta'"),
        (None, r"device type must be a string, got None \(NoneType\)"),
        (0, r"device type must be a string, got 0 \(int\)"),
    ],
)
def test_bad_device_type(device_type, text):
    with pytest.raises(MeshError, match=text):
        DeviceMesh(device_type)


def test_a_device_with_an_index_takes_no_ids():
    with pytest.raises(MeshError, match=r"'cuda:1' is one device; with mesh=\[0, 1\] write 'cuda'"):
        DeviceMesh("cuda:1", [0, 1])


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("dp", "tp", "pp"), r"mesh_dim_names=\('dp', 'tp', 'pp'\) has 3 names, the mesh has 2 axes"),
        (("dp",), "has 1 names, the mesh has 2 axes"),
        ((), "has 0 names, the mesh has 2 axes"),
        (("dp", "dp"), r"mesh_dim_names=\('dp', 'dp'\): the name 'dp' stands 2 times"),
        (("dp", 1), "a name must be a non-empty string, got 1"),
        (("dp", ""), "a name must be a non-empty string, got ''"),
        (("dp", None), "a name must be a non-empty string, got None"),
        ("dp", r"mesh_dim_names must be a tuple of names, as \('dp',\)"),
        (3, "mesh_dim_names must be a tuple of names"),
    ],
)
def test_bad_names(names, text):
    with pytest.raises(MeshError, match=text):
        DeviceMesh("cpu", [[0, 1], [2, 3]], names)


def test_one_device_has_no_axis_to_name():
    with pytest.raises(MeshError, match="has 1 names, the mesh has 0 axes"):
        DeviceMesh("cpu", mesh_dim_names=("tp",))


def test_one_device_with_no_names_is_unnamed():
    assert DeviceMesh("cpu", mesh_dim_names=()) == DeviceMesh("cpu")


def test_mesh_error_is_a_value_error():
    with pytest.raises(ValueError, match="negative"):
        DeviceMesh("cpu", [-1])


@pytest.mark.parametrize(
    ("shape", "ids"), [(4, [0, 1, 2, 3]), ([2], [0, 1]), ((2, 1, 2), [[[0, 1]], [[2, 3]]]), ((1,), [0])]
)
def test_init_device_mesh(shape, ids):
    assert init_device_mesh("cpu", shape) == DeviceMesh("cpu", ids)


def test_init_device_mesh_names():
    assert init_device_mesh("cuda", (1, 2), mesh_dim_names=["dp", "tp"]).dim_names == ("dp", "tp")


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((2, 0), r"mesh_shape \(2, 0\): every size must be at least 1, got 0"),
        (-1, "mesh_shape -1: every size must be at least 1, got -1"),
        ((), r"mesh_shape \(\) has no axes; DeviceMesh\('cpu'\) is one device"),
        ((2.0,), r"mesh_shape \(2.0,\): a size must be an int, got 2.0 \(float\)"),
        ((2, True), r"a size must be an int, got True \(bool\)"),
        (True, r"a size must be an int, got True \(bool\)"),
    ],
)
def test_bad_mesh_shape(shape, text):
    with pytest.raises(MeshError, match=text):
        init_device_mesh("cpu", shape)
