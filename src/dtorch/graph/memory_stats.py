"""What devices hold, in bytes, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dtorch.errors import DeviceError


class DeviceMemory(NamedTuple):
    """What one device holds, in bytes.

    Attributes:
        memory_allocated: of tensors.
        memory_reserved: taken from the device, cached memory included.
        max_memory_allocated, max_memory_reserved: the most that either has been since the last reset.
    """

    memory_allocated: int
    memory_reserved: int
    max_memory_allocated: int
    max_memory_reserved: int


class MemoryStats:
    """What the devices of a mesh hold; iterating gives (device id, `DeviceMemory`) in mesh order."""

    def __init__(self, devices: Mapping[int, DeviceMemory]) -> None:
        self._devices = dict(devices)

    def find(self, device_id: int) -> DeviceMemory:
        """What the device of this id holds.

        Raises:
            DeviceError: the mesh has no such device.
        """
        if device_id not in self._devices:
            raise DeviceError(f"no device {device_id} in these statistics, they are of {list(self._devices)}")
        return self._devices[device_id]

    def __iter__(self) -> Iterator[tuple[int, DeviceMemory]]:
        return iter(self._devices.items())

    def __len__(self) -> int:
        return len(self._devices)

    def __repr__(self) -> str:
        lines = [f"  {number}: {', '.join(f'{k} {v}' for k, v in m._asdict().items())}" for number, m in self]
        return "\n".join(["MemoryStats in bytes", *lines])
