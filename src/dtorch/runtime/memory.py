"""What the devices of this process hold.

CUDA devices are asked. Virtual cpu devices share one memory, and its allocator keeps no count: what one of
them holds is counted, each storage behind its parts once, also where it shares it with replicas. Their peak
is the most that any count has seen.
"""

from __future__ import annotations

import gc

import torch

from dtorch.graph.memory_stats import DeviceMemory, MemoryStats
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import Operand

_SEEN: dict[int, int] = {}
"""Most bytes that a count has found on each virtual cpu device."""


def memory_stats(mesh: DeviceMesh, reset_peak: bool) -> MemoryStats:
    """What each device of a mesh holds; with `reset_peak` peaks count from here on."""
    count = _cuda if mesh.device_type == "cuda" else _cpu
    return MemoryStats(count(mesh, reset_peak))


def _cuda(mesh: DeviceMesh, reset_peak: bool) -> dict[int, DeviceMemory]:
    found = {}
    for position, number in enumerate(mesh.device_ids):
        device = mesh.torch_device(position)
        found[number] = DeviceMemory(
            torch.cuda.memory_allocated(device),
            torch.cuda.memory_reserved(device),
            torch.cuda.max_memory_allocated(device),
            torch.cuda.max_memory_reserved(device),
        )
        if reset_peak:
            torch.cuda.reset_peak_memory_stats(device)
    return found


def _cpu(mesh: DeviceMesh, reset_peak: bool) -> dict[int, DeviceMemory]:
    held: dict[int, dict[int, int]] = {number: {} for number in mesh.device_ids}
    for operand in gc.get_objects():
        parts = getattr(operand, "parts", None) if type(operand) is Operand else None  # some are half made
        if type(parts) is list:
            there = operand.spec.mesh
            if there.device_type == "cpu" and there.description is None:
                for number, part in zip(there.device_ids, parts, strict=True):
                    if number in held and isinstance(part, torch.Tensor):
                        storage = part.untyped_storage()
                        held[number][storage.data_ptr()] = storage.nbytes()
    found = {}
    for number, storages in held.items():
        now = sum(storages.values())
        most = max(now, _SEEN.get(number, 0))
        found[number] = DeviceMemory(now, now, most, most)
        _SEEN[number] = now if reset_peak else most
    return found


def empty_cache() -> None:
    """Give memory that no tensor uses back to the devices; the CPU keeps none."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
