"""Devices by their data sheets, meshes of devices that are not here, a user's own devices."""

import copy
import pickle

import pytest
import torch

import dtorch
from dtorch import DeviceError, MeshError, Replicate, Shard
from dtorch.perf.device import NETWORKS, Device, Link, find_device

# Dense vendor peaks in TFLOP/s (fp32, tf32, bf16, fp16, fp8), memory in GB, bandwidth and own link in GB/s.
FIGURES = {
    "a100-sxm-80gb": (19.5, 156, 312, 312, None, 80, 2039, 300),
    "a100-sxm-40gb": (19.5, 156, 312, 312, None, 40, 1555, 300),
    "h100-sxm": (67, 494.7, 989.4, 989.4, 1978.9, 80, 3350, 450),
    "h100-pcie": (51, 378, 756, 756, 1513, 80, 2000, None),
    "h200-sxm": (67, 494.7, 989.4, 989.4, 1978.9, 141, 4800, 450),
    "b200-sxm": (80, 1125, 2250, 2250, 4500, 180, 8000, 900),
    "l4": (30.3, 60, 121, 121, 242.5, 24, 300, None),
    "l40s": (91.6, 183, 362, 362, 733, 48, 864, None),
    "rtx-4090": (82.6, 82.6, 165.2, 165.2, 330.3, 24, 1008, None),
    "mi300x": (163.4, 653.7, 1307.4, 1307.4, 2614.9, 192, 5300, 448),
}
NAMES = sorted(FIGURES)
DATA_CENTRE = [name for name in NAMES if name != "rtx-4090"]


def test_the_table_has_these_devices() -> None:
    assert sorted(dtorch.devices()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_figures(name: str) -> None:
    device = dtorch.devices()[name]
    *peaks, capacity, bandwidth, link = FIGURES[name]
    given = (device.fp32, device.tf32, device.bf16, device.fp16, device.fp8)
    assert given == tuple(None if peak is None else pytest.approx(peak * 1e12) for peak in peaks)
    assert device.capacity == capacity * 1e9
    assert device.bandwidth == bandwidth * 1e9
    if link is None:
        assert device.link.name.startswith("pcie")
    else:
        assert device.link.bandwidth == link * 1e9


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_source_and_date(name: str) -> None:
    device = dtorch.devices()[name]
    assert device.source
    assert device.date
    assert device.link.source
    assert device.link.date


@pytest.mark.parametrize("name", DATA_CENTRE)
def test_peaks_halve_with_twice_the_bits(name: str) -> None:
    """3 % slack: L4 and L40S are rounded."""
    device = dtorch.devices()[name]
    assert device.bf16 / device.tf32 == pytest.approx(2, rel=0.03)
    if device.fp8 is not None:
        assert device.fp8 / device.bf16 == pytest.approx(2, rel=0.03)


def test_headlines_are_not_taken_for_dense_peaks() -> None:
    h100 = find_device("h100-sxm")
    assert h100.peak(torch.bfloat16) < 1000e12  # 1979 is with structured sparsity
    assert h100.link.bandwidth == 450e9  # 900 is both directions


@pytest.mark.parametrize(
    ("name", "figure"), [("ib-ndr", 50), ("ib-hdr", 25), ("pcie5-x16", 63), ("pcie4-x16", 31.5)]
)
def test_networks(name: str, figure: float) -> None:
    assert NETWORKS[name].bandwidth == figure * 1e9


@pytest.mark.parametrize(
    ("name", "dtype", "imprecise", "channel"),
    [
        ("h100-sxm", torch.bfloat16, False, "bf16"),
        ("h100-sxm", torch.float16, False, "fp16"),
        ("h100-sxm", torch.float32, False, "fp32"),
        ("h100-sxm", torch.float32, True, "tf32"),
        ("h100-sxm", torch.bfloat16, True, "bf16"),
        ("h100-sxm", torch.float8_e4m3fn, False, "fp8"),
        ("a100-sxm-80gb", torch.float8_e4m3fn, False, "bf16"),
        ("a100-sxm-80gb", torch.float64, False, "fp32"),
        ("a100-sxm-80gb", torch.int64, False, "fp32"),
    ],
)
def test_which_peak_bounds_a_dtype(name: str, dtype: torch.dtype, imprecise: bool, channel: str) -> None:
    device = find_device(name)
    assert device.peak_name(dtype, imprecise) == channel
    assert device.peak(dtype, imprecise) == device.peaks[channel]


def test_unknown_names_raise_and_name_the_near_ones() -> None:
    with pytest.raises(DeviceError, match=r"no device 'h100'; did you mean .*h100-sxm"):
        dtorch.described_mesh("h100", (8,))
    with pytest.raises(DeviceError, match="no device 'zzz'; there are a100-sxm-80gb"):
        dtorch.described_mesh("zzz", (8,))
    with pytest.raises(DeviceError, match="no link 'ib-nrd' for h100-sxm; did you mean ib-ndr"):
        dtorch.described_mesh("h100-sxm", (2,), axis_links=("ib-nrd",))
    with pytest.raises(DeviceError, match="no link 'nvlink' for l4"):
        dtorch.described_mesh("l4", (2,), axis_links=("nvlink",))


def test_one_link_per_axis() -> None:
    with pytest.raises(DeviceError, match=r"names 1 links, the mesh has 2 axes"):
        dtorch.described_mesh("h100-sxm", (2, 8), axis_links=("nvlink",))
    with pytest.raises(MeshError, match="one device without axes"):
        dtorch.described_mesh("h100-sxm", axis_links=("nvlink",))


def mesh_of(device: str = "h100-sxm", links: tuple[str, str] = ("ib-ndr", "nvlink")) -> dtorch.DeviceMesh:
    return dtorch.described_mesh(device, (2, 8), axis_links=links, mesh_dim_names=("dp", "tp"))


def test_the_description_is_part_of_the_value() -> None:
    mesh = mesh_of()
    assert mesh == mesh_of()
    assert hash(mesh) == hash(mesh_of())
    assert mesh != mesh_of("h200-sxm")
    assert mesh != mesh_of(links=("ib-hdr", "nvlink"))
    assert mesh != dtorch.init_device_mesh("cpu", (2, 8), ("dp", "tp"))
    assert pickle.loads(pickle.dumps(mesh)) == mesh
    assert copy.deepcopy(mesh) == mesh
    assert repr(mesh) == "DeviceMesh((dp=2, tp=8), 'h100-sxm', stride=(8, 1))"


def test_parts_of_a_described_mesh_keep_their_links() -> None:
    mesh = mesh_of()
    assert [link.name for link in mesh["tp"].description.links] == ["nvlink"]
    assert [link.name for link in mesh.unbind("tp")[3].description.links] == ["ib-ndr"]
    assert mesh.unbind((0, 1))[0].description.links == ()
    assert dtorch.described_mesh("l4").description.device.name == "l4"


def test_tensors_show_cpu_and_hold_nothing() -> None:
    x = dtorch.randn(1 << 20, 1 << 20, device_mesh=mesh_of(), placements=[Shard(0), Replicate()])
    assert x.device == torch.device("cpu")
    assert (x @ x.t()).placements == [Shard(0), Replicate()]
    assert repr(x).startswith("Tensor(..., shape=[1048576, 1048576]")


MY_CARD = """
[my-card]
bf16 = 100e12
bandwidth = 900e9
capacity = 24e9
link = 20e9
source = "measured"
date = "2025-01"

[l4]
fp32 = 1e12
bandwidth = 1e11
capacity = 1e9
link = "ib-hdr"
"""


def test_a_users_own_devices(tmp_path, monkeypatch) -> None:
    (tmp_path / "dtorch").mkdir()
    (tmp_path / "dtorch" / "devices.toml").write_text(MY_CARD)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    card = dtorch.devices()["my-card"]
    assert (card.bf16, card.fp32, card.bandwidth, card.link.bandwidth) == (100e12, None, 900e9, 20e9)
    assert (card.source, card.date) == ("measured", "2025-01")
    assert dtorch.devices()["l4"].fp32 == 1e12  # the user's counts
    assert dtorch.devices()["l4"].link.name == "ib-hdr"
    assert dtorch.described_mesh("my-card", (2,)).description.device is not None


def test_devices_of_a_file(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MY_CARD)
    assert dtorch.described_mesh(dtorch.devices(file)["my-card"], (4,)).size == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\nbf16 = 1e12\nbandwidth = 1e9", "capacity is missing"),
        ("[a]\nbandwidth = 1e9\ncapacity = 1e9", "a peak .* is missing"),
        ("[a]\nbf16 = -1\nbandwidth = 1e9\ncapacity = 1e9", "bf16 = -1 is no number above 0"),
        ("[a]\nbf16 = 1e12\nbandwith = 1e9\ncapacity = 1e9", "unknown 'bandwith'; did you mean bandwidth"),
        ('[a]\nbf16 = 1e12\nbandwidth = 1e9\ncapacity = 1e9\nlink = "ib"', "no link 'ib'"),
        ("a = 3", "a device is a table"),
        ("[a", "mine.toml"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(DeviceError, match=message):
        dtorch.devices(file)


def test_a_device_without_a_peak_says_so() -> None:
    device = Device("odd", None, None, 1e12, None, None, 1e9, 1e9, Link("none", 1e9))
    with pytest.raises(DeviceError, match="odd has no fp32 peak"):
        device.peak(torch.float32)
