"""A model that is called with other sizes: planned in a stage's first round, and no more where they grow."""

from __future__ import annotations

import copy

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Replicate
from dtorch.graph import constructor
from dtorch.testing import assert_tensor_equal as equal

pytestmark = pytest.mark.recorded
MESH = DeviceMesh("cpu", [0, 1])
VALUES = torch.arange(12.0).reshape(4, 3) - 5.5


class Layers(torch.nn.Module):
    """Three layers, and something that only few rows come through."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(3, 3) for _ in range(3))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            y = y + torch.relu(y @ weight) * 0.5
        return y if len(y) > 2 else self.few(y)

    def few(self, y: torch.Tensor) -> torch.Tensor:
        return (y - 1.0).tanh()


@pytest.fixture
def layers() -> tuple[Layers, torch.nn.Module]:
    """A model, and the same on two devices; no call of it has been made."""
    constructor.GraphConstructor.forget()
    torch.manual_seed(0)
    plain = Layers()
    return plain, dtorch.parallelize(copy.deepcopy(plain), MESH, {})


def test_the_second_stage_of_a_model_is_planned_in_its_first_round(
    layers: tuple[Layers, torch.nn.Module],
) -> None:
    plain, model = layers
    made = []
    with torch.no_grad():
        for rows in (4, 2, 2, 2, 2):
            x = dtorch.Tensor(VALUES[:rows], MESH, [Replicate()])
            equal(model(x).to_torch(), plain(VALUES[:rows]))
            made.append(dtorch.plan_stats().made)
    assert made[1] == made[0] + 1
    assert made[1:] == [made[1]] * 4


def test_a_model_whose_sizes_grow_is_planned_twice_at_most(layers: tuple[Layers, torch.nn.Module]) -> None:
    plain, model = layers
    made = []
    with torch.no_grad():
        for rows in range(3, 12):
            full = VALUES.repeat(3, 1)[:rows]
            equal(model(dtorch.Tensor(full, MESH, [Replicate()])).to_torch(), plain(full))
            made.append(dtorch.plan_stats().made)
    assert made[-1] - made[0] <= 2
    assert made[2:] == [made[2]] * 7
