"""Devices by their data sheets: peaks, bandwidth, capacity, links; and meshes of devices that are not here.

    dtorch.devices()["h100-sxm"].peak(torch.bfloat16)      989.4e12 FLOP/s
    dtorch.described_mesh("h100-sxm", (2, 8), axis_links=("ib-ndr", "nvlink"))

Units are SI: FLOP/s, bytes, bytes/s; 1 TB/s is 1e12. Peaks are dense, without structured sparsity: headlines
are often twice that. Links count one direction: NVLink's 900 GB/s of an H100 is 450 GB/s each way.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from dtorch.errors import DeviceError, MeshError
from dtorch.mesh import DeviceMesh, init_device_mesh
from dtorch.mesh_description import Description
from dtorch.perf.calibration import Calibration

_CHANNEL = {
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
_EIGHT_BITS = "float8"


@dataclass(frozen=True, slots=True)
class Link:
    """What joins devices.

    Attributes:
        name: "nvlink", "ib-ndr", ...
        bandwidth: bytes/s that one device receives, while it sends as much.
        source, date: where the figure is from.
    """

    name: str
    bandwidth: float
    source: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device.

    Attributes:
        name: by which it is asked for.
        fp32, tf32, bf16, fp16, fp8: dense peaks in FLOP/s; None where the device lacks the type.
        bandwidth: of its memory, bytes/s.
        capacity: of its memory, bytes.
        link: to its like, with which an axis of a mesh is joined unless another link is named.
        l2: bytes of the last cache before memory; None where it is not known.
        achievable_matmul: FLOP/s of large bf16 products that have been measured; None where none is known.
        source, date: of the data sheet.
    """

    name: str
    fp32: float | None
    tf32: float | None
    bf16: float | None
    fp16: float | None
    fp8: float | None
    bandwidth: float
    capacity: float
    link: Link
    l2: float | None = None
    achievable_matmul: float | None = None
    source: str = ""
    date: str = ""

    @property
    def peaks(self) -> dict[str, float]:
        """Peak FLOP/s by name of the type, those that the device has."""
        names = ("fp32", "tf32", "bf16", "fp16", "fp8")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def peak_name(self, dtype: torch.dtype, imprecise: bool = False) -> str:
        """Which peak bounds arithmetic on a dtype.

        Args:
            dtype: of the operands. What has no peak of its own is bounded by the next wider one: 8-bit
                numbers by bf16 on a device without fp8; float64 and integers by fp32, which is too good for
                float64.
            imprecise: whether float32 products may be made with tf32 (torch's float32_matmul_precision).
        """
        name = _CHANNEL.get(dtype, "fp8" if _EIGHT_BITS in str(dtype) else "fp32")
        if name == "fp32" and imprecise and dtype is torch.float32:
            name = "tf32"
        wider = {"fp8": "bf16", "fp16": "fp32", "bf16": "fp32", "tf32": "fp32"}
        while name not in self.peaks and name in wider:
            name = wider[name]
        return name

    def peak(self, dtype: torch.dtype, imprecise: bool = False) -> float:
        """Peak FLOP/s of arithmetic on a dtype; see `peak_name`.

        Raises:
            DeviceError: the device's description names no peak that could bound it.
        """
        name = self.peak_name(dtype, imprecise)
        if name not in self.peaks:
            raise DeviceError(f"{self.name} has no {name} peak, which would bound {dtype}; give one")
        return self.peaks[name]


_NVLINK3 = Link("nvlink", 300e9, "NVIDIA A100 data sheet: 600 GB/s, both directions", "2021-06")
_NVLINK4 = Link("nvlink", 450e9, "NVIDIA H100 data sheet: 900 GB/s, both directions", "2023-03")
_NVLINK5 = Link("nvlink", 900e9, "NVIDIA DGX B200 data sheet: 1.8 TB/s, both directions", "2024-03")
_FABRIC = Link("infinity-fabric", 448e9, "AMD MI300X data sheet: 7 links of 64 GB/s each way", "2023-12")
_PCIE4 = Link("pcie4-x16", 31.5e9, "PCI Express 4.0: 16 lanes of 16 GT/s, 128b/130b", "2017-10")
_PCIE5 = Link("pcie5-x16", 63e9, "PCI Express 5.0: 16 lanes of 32 GT/s, 128b/130b", "2019-05")

NETWORKS: Mapping[str, Link] = {
    link.name: link
    for link in (
        Link("ib-ndr", 50e9, "InfiniBand NDR: 400 Gb/s a port, one port a device", "2021-10"),
        Link("ib-hdr", 25e9, "InfiniBand HDR: 200 Gb/s a port, one port a device", "2018-11"),
        _PCIE5,
        _PCIE4,
    )
}
"""What may join devices beside their own link."""

_DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device(
            "a100-sxm-80gb", 19.5e12, 156e12, 312e12, 312e12, None, 2039e9, 80e9, _NVLINK3, 40e6, 271.2e12,
            "NVIDIA A100 data sheet", "2021-06",
        ),
        Device(
            "a100-sxm-40gb", 19.5e12, 156e12, 312e12, 312e12, None, 1555e9, 40e9, _NVLINK3, 40e6, None,
            "NVIDIA A100 data sheet", "2021-06",
        ),
        Device(
            "h100-sxm", 67e12, 494.7e12, 989.4e12, 989.4e12, 1978.9e12, 3350e9, 80e9, _NVLINK4, 50e6,
            794.5e12, "NVIDIA H100 data sheet", "2023-03",
        ),
        Device(
            "h100-pcie", 51e12, 378e12, 756e12, 756e12, 1513e12, 2000e9, 80e9, _PCIE5, None, None,
            "NVIDIA H100 PCIe product brief", "2022-11",
        ),
        Device(
            "h200-sxm", 67e12, 494.7e12, 989.4e12, 989.4e12, 1978.9e12, 4800e9, 141e9, _NVLINK4, 50e6,
            794.5e12, "NVIDIA H200 data sheet", "2023-11",
        ),
        Device(
            "b200-sxm", 80e12, 1125e12, 2250e12, 2250e12, 4500e12, 8000e9, 180e9, _NVLINK5, 126e6, 1745e12,
            "NVIDIA DGX B200 data sheet", "2024-03",
        ),
        Device(
            "l4", 30.3e12, 60e12, 121e12, 121e12, 242.5e12, 300e9, 24e9, _PCIE4, None, None,
            "NVIDIA L4 data sheet", "2023-03",
        ),
        Device(
            "l40s", 91.6e12, 183e12, 362e12, 362e12, 733e12, 864e9, 48e9, _PCIE4, None, None,
            "NVIDIA L40S data sheet", "2023-08",
        ),
        # fp16 with sums in fp32, as torch makes them; with sums in fp16 it would be 330.3e12.
        Device(
            "rtx-4090", 82.6e12, 82.6e12, 165.2e12, 165.2e12, 330.3e12, 1008e9, 24e9, _PCIE4, None, None,
            "NVIDIA Ada GPU architecture paper", "2022-09",
        ),
        Device(
            "mi300x", 163.4e12, 653.7e12, 1307.4e12, 1307.4e12, 2614.9e12, 5300e9, 192e9, _FABRIC, None,
            668.4e12, "AMD Instinct MI300X data sheet", "2023-12",
        ),
    )
}  # fmt: skip


def config_folder() -> Path:
    """Where a user's own devices and measurements are kept."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "dtorch"


THIS_MACHINE = "this-machine"
"""The name of this machine's processor, once it is calibrated."""
CALIBRATED = {THIS_MACHINE: "cpu", "this-gpu": "cuda"}
"""Devices that are measured, not described: their names, and torch's for them."""


def calibration_path(name: str = THIS_MACHINE) -> Path:
    """Where `dtorch calibrate` saves a measured device, and prices look."""
    return config_folder() / f"{name}.json"


def _measured(name: str) -> Device:
    found = Calibration.load(calibration_path(name))
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    peaks = {names[dtype]: peak for dtype, peak in found.peaks.items() if dtype in names}
    return Device(
        name,
        **{kind: peaks.get(kind) for kind in ("fp32", "tf32", "bf16", "fp16", "fp8")},
        bandwidth=found.off_chip,
        capacity=float(found.machine.memory_bytes),
        link=Link("memory", found.off_chip, "copies between virtual devices", found.machine.date),
        l2=float(found.cache_bytes) or None,
        source=f"measured: {found.machine.processor}, {found.machine.threads} threads",
        date=found.machine.date,
    )


def devices(path: str | os.PathLike[str] | None = None) -> dict[str, Device]:
    """All devices that are known, by name.

    Args:
        path: a TOML file of further devices; None is devices.toml in the user's configuration folder, if it
            is there. Of two devices of one name the user's counts.

    Raises:
        DeviceError: the file says something that is no device.
    """
    own = config_folder() / "devices.toml" if path is None else Path(path)
    measured = {name: _measured(name) for name in CALIBRATED if calibration_path(name).is_file()}
    known = {**_DEVICES, **measured}
    return known if path is None and not own.is_file() else {**known, **read_devices(own)}


KINDS = {cls.__name__: cls for cls in (Device, Link)}
"""What files may describe devices by."""


def find_device(name: str | Device) -> Device:
    """The device of a name.

    Raises:
        DeviceError: there is none; the text names those that are near.
    """
    if isinstance(name, Device):
        return name
    known = devices()
    if name not in known:
        if name in CALIBRATED:
            how = "dtorch calibrate" if name == THIS_MACHINE else "dtorch calibrate --gpu"
            raise DeviceError(f"{name} has not been measured yet: run `{how}` once")
        raise DeviceError(f"no device {name!r}{_near(name, known)}")
    return known[name]


def find_link(name: str | Link, device: Device) -> Link:
    """The link of a name, the device's own or a network.

    Raises:
        DeviceError: there is none; the text names those that are near.
    """
    if isinstance(name, Link):
        return name
    known = {**NETWORKS, device.link.name: device.link}
    if name not in known:
        raise DeviceError(f"no link {name!r} for {device.name}{_near(name, known)}")
    return known[name]


def _near(name: Any, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.4)
    return f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(names)}"


def described_mesh(
    device: str | Device,
    mesh_shape: int | Sequence[int] | None = None,
    *,
    axis_links: Sequence[str | Link] | str | Link | None = None,
    mesh_dim_names: Sequence[str] | None = None,
) -> DeviceMesh:
    """A mesh of devices that need not be here: what is done on it is recorded and priced, never computed.

    Tensors on it show torch device "cpu" and have no storage. The description is part of the mesh's value.

    Args:
        device: a name of `dtorch.devices()`, or a `Device`.
        mesh_shape: devices along each axis; an int is one axis; None is one device without axes.
        axis_links: what joins the devices along each axis: "nvlink" (the device's own link, whatever its
            name), "ib-ndr", "pcie5-x16" ..., or a `Link`. None joins all axes by the device's own link.
        mesh_dim_names: one name per axis, or None.

    Raises:
        DeviceError: an unknown device or link, or not one link per axis.
        MeshError: as `init_device_mesh`.
    """
    kind = find_device(device)
    if mesh_shape is None:
        if axis_links is not None or mesh_dim_names is not None:
            raise MeshError(
                "described_mesh(): one device without axes has neither links nor names; give a shape"
            )
        return DeviceMesh("cpu").described(Description(kind))
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names)
    if axis_links is None:
        links: Sequence[str | Link] = [kind.link] * mesh.ndim
    else:
        links = [axis_links] if isinstance(axis_links, (str, Link)) else list(axis_links)
    if len(links) != mesh.ndim:
        raise DeviceError(
            f"axis_links={[str(getattr(link, 'name', link)) for link in links]} names {len(links)} links, "
            f"the mesh has {mesh.ndim} axes: one link per axis"
        )
    return mesh.described(Description(kind, tuple(find_link(link, kind) for link in links)))


# -- a user's own devices -----------------------------------------------------------------------------------

_NUMBERS = ("fp32", "tf32", "bf16", "fp16", "fp8", "bandwidth", "capacity", "l2", "achievable_matmul")
_KEYS = {field.name for field in fields(Device)} - {"name"}


def read_devices(path: str | os.PathLike[str]) -> dict[str, Device]:
    """The devices of a TOML file: a table for each, in SI units.

        [my-card]
        bf16 = 100e12
        bandwidth = 900e9
        capacity = 24e9
        link = 31.5e9        # bytes/s; or the name of a network
        source = "measured"

    Raises:
        DeviceError: the file is not there, is no TOML, or a table is no device.
    """
    file = Path(path)
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DeviceError(f"{file}: {error}") from error
    return {name: _from_table(name, table, file) for name, table in tables.items()}


def _from_table(name: str, table: Any, file: Path) -> Device:
    where = f"{file}, [{name}]"
    if not isinstance(table, dict):
        raise DeviceError(f"{where}: a device is a table of figures")
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise DeviceError(f"{where}: unknown {unknown[0]!r}{_near(unknown[0], sorted(_KEYS))}")
    missing = [key for key in ("bandwidth", "capacity") if key not in table]
    if missing or not any(key in table for key in _NUMBERS[:5]):
        raise DeviceError(f"{where}: {', '.join(missing) or 'a peak (fp32, bf16 ...)'} is missing")
    values: dict[str, Any] = {key: _figure(table, key, where) for key in _NUMBERS}
    link = table.get("link", "pcie4-x16")
    if isinstance(link, str):
        if link not in NETWORKS:
            raise DeviceError(f"{where}: no link {link!r}{_near(link, NETWORKS)}")
        joined = NETWORKS[link]
    else:
        joined = Link("link", _figure(table, "link", where) or 0.0, str(file))
    return Device(
        name, link=joined, source=str(table.get("source", file)), date=str(table.get("date", "")), **values
    )


def _figure(table: Mapping[str, Any], key: str, where: str) -> float | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise DeviceError(f"{where}: {key} = {value!r} is no number above 0")
    return float(value)
