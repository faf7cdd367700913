"""Device meshes: their axes, parts and devices, and as values."""

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


# -- what it is


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
