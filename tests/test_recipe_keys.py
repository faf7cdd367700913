"""A recipe is kept under everything its answer depends on; forgetting one gives another call's result."""

from __future__ import annotations

import pytest
import torch

from dtorch import Graph
from dtorch.testing import assert_tensor_allclose as close
from tests.places import (
    PLACES,
    S0_2,
    Place,
    randn,
    same_gradients,
)


@PLACES
def test_a_scalar_is_part_of_the_key(place: Place) -> None:
    x = randn(5, 3)
    for i in (1, 2, 3, 1.0, True, -0.0, 2):
        leaf, plain = place.put(x, requires_grad=True), x.clone().requires_grad_()
        found, wanted = leaf.mean() * i, plain.mean() * i
        close(found, wanted)
        found.backward()
        wanted.backward()
        close(leaf.grad, plain.grad)


@PLACES
def test_every_flag_is_part_of_the_key(place: Place) -> None:
    """One operator, other arguments: each result is its own, in any order."""
    x = randn(5, 3)
    arguments = [
        (dim, keepdim, grad) for dim in (0, 1, -1, (0, 1)) for keepdim in (False, True) for grad in (0, 1)
    ]
    for dim, keepdim, grad in [*arguments, *reversed(arguments)]:
        leaf, plain = place.put(x, requires_grad=bool(grad)), x.clone().requires_grad_(bool(grad))
        found, wanted = leaf.sum(dim, keepdim), plain.sum(dim, keepdim)
        close(found, wanted)
        assert found.requires_grad == wanted.requires_grad
        if grad:
            found.sin().sum().backward()
            wanted.sin().sum().backward()
            close(leaf.grad, plain.grad)


@PLACES
@pytest.mark.parametrize("shape", [(3,), (5, 3)])
def test_normalized_shape_is_part_of_the_key(place: Place, shape: tuple[int, ...]) -> None:
    same_gradients(place, lambda x: torch.nn.functional.layer_norm(x, shape) ** 3, randn(5, 3))


def test_long_lists_are_served_from_the_cache() -> None:
    tensors = [S0_2.put(randn(5, 3, seed=i), requires_grad=True) for i in range(8)]
    constructor = Graph.default_graph().constructor
    torch.stack(tensors).sum().backward()
    torch.stack(tensors).sum().backward()
    before = len(constructor._recipes)
    for _ in range(5):
        torch.stack(tensors).sum().backward()
    assert len(constructor._recipes) == before
