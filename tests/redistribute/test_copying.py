"""Copies between types of device: what is read at once has arrived."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtorch.redistribute.copying import _sum_into


class Far:
    """Stands for a tensor on a GPU: notes whether who brings it waits."""

    device, is_cuda = torch.device("cuda", 0), True

    def __init__(self, value: float, waits: list[bool]) -> None:
        self.value, self.waits = torch.full((2,), value), waits

    def to(self, device: torch.device, non_blocking: bool) -> torch.Tensor:
        assert device.type == "cpu"
        self.waits.append(not non_blocking)
        return self.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_on_cpu_waits_for_what_comes_from_a_gpu(dtype: torch.dtype) -> None:
    waits: list[bool] = []
    addends: list[Any] = [Far(1.0, waits), torch.full((2,), 2.0), Far(4.0, waits)]
    target = torch.zeros(2, dtype=dtype)
    _sum_into(target, addends)
    assert target.tolist() == [7.0, 7.0]
    assert waits == [True, True]
