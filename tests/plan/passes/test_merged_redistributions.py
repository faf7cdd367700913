"""One redistribution gives the bits of the two that it replaces, for all placements for which it may."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from dtorch import DeviceMesh, redistribute
from dtorch.layout import Layout

SHAPE = (5, 3)
MESHES = [DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [0, 1, 2]), DeviceMesh("cpu", [[0, 1], [2, 3]])]


def layouts(mesh: DeviceMesh) -> list[Layout]:
    return [
        Layout.from_placements(mesh.shape, SHAPE, roles)
        for roles in product(("R", "S0", "S1", "P"), repeat=mesh.ndim)
    ]


def parts_of(layout: Layout, mesh: DeviceMesh, dtype: torch.dtype) -> list[torch.Tensor]:
    """Random parts; what two devices hold alike is one tensor."""
    generator = torch.Generator().manual_seed(1)
    made = {
        i: torch.randn(layout.local_shape(mesh.coords[i]), generator=generator).to(dtype)
        for i in sorted(set(layout.distinct()))
    }
    return [made[i] for i in layout.distinct()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mesh", MESHES, ids=["2", "3", "2x2"])
def test_one_for_two(mesh: DeviceMesh, dtype: torch.dtype) -> None:
    every = layouts(mesh)
    for first, middle, last in product(every, repeat=3):
        if middle.partial or last.partial:
            continue
        parts = parts_of(first, mesh, dtype)
        once = redistribute.execute(parts, first, last, mesh)
        twice = redistribute.execute(redistribute.execute(parts, first, middle, mesh), middle, last, mesh)
        for mine, theirs in zip(once, twice, strict=True):
            assert torch.equal(mine.view(torch.int16), theirs.view(torch.int16)), (first, middle, last)
            assert mine.stride() == theirs.stride()
