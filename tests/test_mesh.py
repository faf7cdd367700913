"""Device meshes: what they may be made from, their parts, their devices, and as values."""

import copy
import pickle

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dtorch.errors import AxisError, DeviceError, MeshError, PlacementError
from dtorch.mesh import DeviceMesh, init_device_mesh

# ids 0..11 in row-major order; device (p, d, t) has id 6 p + 3 d + t
CUBE = init_device_mesh("cpu", (2, 2, 3), ("pp", "dp", "tp"))
UNNAMED = init_device_mesh("cpu", (2, 3))


class RefuseDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} reached the mode")


class RefuseFunction(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} reached the mode")


def gpus(monkeypatch, count):
    """Let torch see that many GPUs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


# -- made from


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


def test_coords_are_row_major():
    assert UNNAMED.coords == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    assert DeviceMesh("cpu").coords == ((),)


def test_mesh_tensor_is_an_independent_int64_copy():
    mesh = DeviceMesh("cpu", [2, 0])
    mesh.mesh.zero_()
    assert mesh.mesh.dtype is torch.int64
    assert mesh.mesh.tolist() == [2, 0]


@pytest.mark.parametrize("mode", [RefuseDispatch, RefuseFunction])
def test_mesh_tensor_escapes_modes(mode):
    with mode():
        ids = UNNAMED.mesh
    assert ids.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_mesh_tensor_is_on_cpu_under_another_default_device():
    with torch.device("meta"):
        ids = UNNAMED.mesh
    assert ids.device.type == "cpu"


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


# -- axes


@pytest.mark.parametrize(("asked", "axis"), [("pp", 0), ("tp", 2), (0, 0), (2, 2), (-1, 2), (-3, 0)])
def test_axis(asked, axis):
    assert CUBE.axis(asked) == axis


@pytest.mark.parametrize("asked", ["sp", "", 3, -4, True, None, 1.0])
def test_axis_that_is_not_there(asked):
    with pytest.raises(AxisError) as caught:
        CUBE.axis(asked)
    expected = f"{CUBE!r} has no axis {asked!r}; its axes are ['pp', 'dp', 'tp']"
    assert str(caught.value) == expected
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, PlacementError)


@pytest.mark.parametrize(
    ("mesh", "text"),
    [(UNNAMED, r"its axes are \[0, 1\]$"), (DeviceMesh("cpu"), "it is one device and has no axes")],
)
def test_axis_error_names_what_there_is(mesh, text):
    with pytest.raises(AxisError, match=text):
        mesh.axis("tp")


def test_dim_names():
    assert CUBE.dim_names == CUBE.mesh_dim_names == ("pp", "dp", "tp")
    assert UNNAMED.mesh_dim_names is None
    assert [CUBE.has_dim_name(name) for name in ("tp", "sp")] == [True, False]
    assert not UNNAMED.has_dim_name("tp")


def test_dim_name_index():
    assert CUBE.dim_name_index("dp", -1) == CUBE.dim_name_index("dp") == 1
    assert CUBE.dim_name_index("sp", -1) == -1
    assert UNNAMED.dim_name_index("dp", None) is None
    with pytest.raises(AxisError, match="has no axis 'sp'"):
        CUBE.dim_name_index("sp")


@pytest.mark.parametrize(
    ("mesh", "names", "expected"),
    [
        (CUBE, {"pp", "dp", "tp", "sp"}, True),
        (CUBE, ["tp", "pp", "dp"], True),
        (CUBE, {"pp", "dp"}, False),
        (CUBE, (), False),
        (init_device_mesh("cpu", 2, ("tp",)), "tp", True),
        (init_device_mesh("cpu", 2, ("t",)), "tp", False),
        (UNNAMED, {"pp", "dp"}, False),
        (DeviceMesh("cpu"), (), True),
    ],
)
def test_check_all_dim_names_in_set(mesh, names, expected):
    assert mesh.check_all_dim_names_in_set(names) is expected


# -- parts


@pytest.mark.parametrize(
    ("dims", "ids"),
    [
        ("pp", [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]),
        (0, [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]),
        ("dp", [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]),
        ("tp", [[[0, 3], [6, 9]], [[1, 4], [7, 10]], [[2, 5], [8, 11]]]),
        (-1, [[[0, 3], [6, 9]], [[1, 4], [7, 10]], [[2, 5], [8, 11]]]),
        # the last named is the outermost: pp runs faster than tp
        (("pp", "tp"), [[0, 3], [6, 9], [1, 4], [7, 10], [2, 5], [8, 11]]),
        (["tp", "pp"], [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]),
        (("tp", 0), [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]]),
        (("sp", "dp", "nowhere"), [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]),
        (("tp", "dp", "pp"), [*range(12)]),
        (("pp", "dp", "tp"), [0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11]),
    ],
)
def test_unbind(dims, ids):
    parts = CUBE.unbind(dims)
    assert [part.mesh.tolist() for part in parts] == ids
    assert all(part.device_type == "cpu" for part in parts)


def test_unbind_keeps_the_other_names():
    assert [part.dim_names for part in CUBE.unbind("dp")] == [("pp", "tp")] * 2
    assert UNNAMED.unbind(1)[0].dim_names is None
    assert UNNAMED.unbind(1)[0].shape == (2,)


@pytest.mark.parametrize(
    ("mesh", "dims"),
    [(CUBE, "sp"), (CUBE, ("sp", "cp")), (CUBE, ()), (UNNAMED, "dp"), (DeviceMesh("cuda:1"), "dp")],
)
def test_unbind_of_nothing_is_itself(mesh, dims):
    (part,) = mesh.unbind(dims)
    assert part is mesh


def test_unbind_of_all_axes_gives_single_devices():
    parts = DeviceMesh("cuda", [[4, 2]], ("dp", "tp")).unbind(("dp", "tp"))
    assert parts == [DeviceMesh("cuda:4"), DeviceMesh("cuda:2")]
    assert not parts[0].is_distributed


@pytest.mark.parametrize("dims", [("tp", "tp"), ("tp", 2), (-1, 2)])
def test_unbind_names_an_axis_twice(dims):
    with pytest.raises(MeshError, match="names one axis twice"):
        CUBE.unbind(dims)


def test_unbind_index_out_of_range():
    with pytest.raises(AxisError, match="has no axis 3"):
        CUBE.unbind(("tp", 3))


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ("tp", [0, 1, 2]),
        ("pp", [0, 6]),
        (("dp",), [0, 3]),
        (("dp", "tp"), [[0, 1, 2], [3, 4, 5]]),
        (("tp", "pp"), [[0, 6], [1, 7], [2, 8]]),
    ],
)
def test_getitem(names, ids):
    expected = (names,) if isinstance(names, str) else names
    assert CUBE[names] == DeviceMesh("cpu", ids, expected)


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        ("sp", KeyError, r"has no axis 'sp'; its axes are \['pp', 'dp', 'tp'\]"),
        (("tp", "sp"), PlacementError, "has no axis 'sp'"),
        (("tp", "tp"), MeshError, "names one axis twice"),
        ((), MeshError, r"mesh\[\(\)\]: write names of axes, as mesh\['tp'\]"),
        (0, MeshError, r"mesh\[0\]: write names of axes, as mesh\['tp'\]; unbind takes indices"),
        (("tp", 0), MeshError, "write names of axes"),
    ],
)
def test_bad_getitem(names, error, text):
    with pytest.raises(error, match=text):
        CUBE[names]


# -- devices


@pytest.mark.parametrize("position", [0, 5, (1, 2), [0, 0]])
def test_cpu_positions_are_the_cpu(position):
    assert UNNAMED.torch_device(position) == torch.device("cpu")


@pytest.mark.parametrize(("position", "id"), [(0, 7), (2, 5), ((0, 1), 3), ([1, 1], 1), (torch.tensor(1), 3)])
def test_cuda_positions(position, id):
    mesh = DeviceMesh("cuda", [[7, 3], [5, 1]])
    assert mesh.torch_device(position) == torch.device("cuda", id)


@pytest.mark.parametrize("shape", [(2, 3), (4,), (2, 1, 3)])
def test_position_of_each_coordinate(shape):
    mesh = init_device_mesh("cpu", shape)
    assert [mesh.position(coord) for coord in mesh.coords] == list(range(mesh.size))


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (6, "has no position 6; positions are 0 to 5"),
        (-1, "has no position -1"),
        ((2, 0), r"has no coordinate \(2, 0\); its shape is \(2, 3\)"),
        ((0, -1), r"has no coordinate \(0, -1\)"),
        ((0,), r"has no coordinate \(0,\)"),
        ((0, 0, 0), r"has no coordinate \(0, 0, 0\)"),
    ],
)
def test_positions_that_are_not_there(position, text):
    with pytest.raises(AxisError, match=text):
        UNNAMED.torch_device(position)


def test_simulated_gpus_are_the_first(monkeypatch):
    monkeypatch.setenv("DTORCH_DTENSOR_IN_SAME_DEVICE", "1")
    mesh = DeviceMesh("cuda", [7, 3])
    assert [mesh.torch_device(i) for i in range(2)] == [torch.device("cuda", 0)] * 2
    assert mesh.device_ids == (7, 3)


@pytest.mark.parametrize(
    ("mesh", "simulated", "shares"),
    [
        (UNNAMED, "0", True),
        (DeviceMesh("cuda", [0, 1]), "0", False),
        (DeviceMesh("cuda", [0, 1]), "1", True),
        (DeviceMesh("cuda", [3]), "0", True),
        (DeviceMesh("cuda"), "0", True),
    ],
)
def test_shares_storage(monkeypatch, mesh, simulated, shares):
    monkeypatch.setenv("DTORCH_DTENSOR_IN_SAME_DEVICE", simulated)
    assert mesh.shares_storage is shares


def test_first_device_and_to_device():
    assert DeviceMesh("cuda", [3, 1]).first_device() == torch.device("cuda", 3)
    assert DeviceMesh("cuda", [[3]]).to_device() == torch.device("cuda", 3)
    assert DeviceMesh("cuda:2").to_device() == torch.device("cuda", 2)
    assert DeviceMesh("cpu").to_device() == torch.device("cpu")


def test_to_device_of_several():
    with pytest.raises(DeviceError, match=r"is 6 devices, not one; first_device\(\) gives the first"):
        UNNAMED.to_device()


def test_virtual_cpu_devices_are_always_there():
    mesh = DeviceMesh("cpu", [0, 900])
    mesh.check_available()
    assert mesh.missing_devices() == ()


@pytest.mark.parametrize(
    ("present", "simulated", "missing"),
    [(0, "0", (0, 9, 1)), (2, "0", (9,)), (10, "0", ()), (1, "1", (9,)), (0, "1", (0, 9, 1))],
)
def test_missing_gpus(monkeypatch, present, simulated, missing):
    gpus(monkeypatch, present)
    monkeypatch.setenv("DTORCH_DTENSOR_IN_SAME_DEVICE", simulated)
    assert DeviceMesh("cuda", [0, 9, 1]).missing_devices() == missing


def test_check_available(monkeypatch):
    gpus(monkeypatch, 2)
    DeviceMesh("cuda", [0, 1]).check_available()
    with pytest.raises(
        DeviceError, match=r"needs cuda devices \[2, 3\], and 2 GPUs are here; use a cpu mesh, or DTO"
    ):
        init_device_mesh("cuda", 4).check_available()


# -- as a value


def test_equal_by_value():
    same = DeviceMesh("cpu", torch.arange(12).view(2, 2, 3), ["pp", "dp", "tp"])
    assert same == CUBE
    assert hash(same) == hash(CUBE)
    assert {CUBE: "found"}[same] == "found"


@pytest.mark.parametrize(
    "other",
    [
        DeviceMesh("cuda", [[0, 1, 2], [3, 4, 5]]),
        DeviceMesh("cpu", [[0, 1, 2], [3, 5, 4]]),
        DeviceMesh("cpu", [[0, 1], [2, 3], [4, 5]]),
        DeviceMesh("cpu", range(6)),
        init_device_mesh("cpu", (2, 3), ("dp", "tp")),
        "DeviceMesh",
        None,
    ],
)
def test_unequal(other):
    assert other != UNNAMED


@pytest.mark.parametrize("mesh", [CUBE, UNNAMED, DeviceMesh("cuda:3"), DeviceMesh("cpu", [5, 2])])
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda mesh: pickle.loads(pickle.dumps(mesh))],
    ids=["copy", "deep", "pickle"],
)
def test_copies_are_equal(mesh, again):
    other = again(mesh)
    assert other == mesh
    assert hash(other) == hash(mesh)
    assert (other.coords, other.ndim, other.size) == (mesh.coords, mesh.ndim, mesh.size)


@pytest.mark.parametrize("name", ["shape", "device_ids", "new"])
def test_frozen(name):
    with pytest.raises(AttributeError, match="cannot be changed; make a new mesh"):
        setattr(UNNAMED, name, (6,))


def test_nothing_can_be_deleted():
    with pytest.raises(AttributeError, match="cannot be changed"):
        del UNNAMED.shape


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (CUBE, "DeviceMesh((pp=2, dp=2, tp=3), 'cpu', stride=(6, 3, 1))"),
        (UNNAMED, "DeviceMesh((2, 3), 'cpu', stride=(3, 1))"),
        (init_device_mesh("cuda", 4), "DeviceMesh((4,), 'cuda', stride=(1,))"),
        (CUBE["pp"], "DeviceMesh((pp=2), 'cpu', ids=[0, 6])"),
        (DeviceMesh("cpu"), "DeviceMesh('cpu')"),
        (DeviceMesh("cuda"), "DeviceMesh('cuda')"),
        (DeviceMesh("cuda:3"), "DeviceMesh('cuda:3')"),
    ],
)
def test_repr(mesh, text):
    assert repr(mesh) == text
