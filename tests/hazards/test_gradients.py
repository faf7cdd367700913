"""Autograd: placements of gradients, and what recipes are kept under.

a gradient labelled whole while it is a pending sum
    `tests/test_autograd.py::test_norm_weight_of_a_sequence_shard_accumulates_whole_sums`,
    `test_micro_batches`
a transposed weight's gradient reduced twice, or not
    `tests/test_autograd.py::test_a_transposed_weights_gradient_is_reduced_exactly_once`
the recipe forgets a scalar
    `tests/test_recipe_keys.py::test_a_scalar_is_part_of_the_key`
... a flag, shape, requires_grad, sizes, cut dim
    `tests/test_recipe_keys.py`, `test_in_any_order`
list arguments never hit, symbolic sizes leak
    `test_lists_hit`, `tests/test_recipe_keys.py::test_long_lists_are_served_from_the_cache`
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch.graph.graph import Graph
from tests.dist import place, ways
from tests.hazards.cases import mesh_of


@pytest.mark.parametrize("places", ways(2, (2,)), ids="".join)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_micro_batches(norm: str, places: Any) -> None:
    """Accumulated over two, and placed as the leaf says."""
    full, w = torch.randn(2, 5, 6), torch.randn(6)
    plain = w.clone().requires_grad_()
    weight = dtorch.Tensor(w, device_mesh=mesh_of(2), requires_grad=True)

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.layer_norm(x, (6,), weight) if norm == "layer" else F.rms_norm(x, (6,), weight)
        return (y * y.detach().cos()).sum()

    for batch in full:
        loss(batch, plain).backward()
        loss(place(batch, (2,), places), weight).backward()
    assert weight.grad.placements == weight.placements
    parts = [weight.grad.to_local(i) for i in range(2)]
    assert torch.equal(*parts)
    torch.testing.assert_close(weight.grad.to_torch(), plain.grad, rtol=1e-4, atol=1e-5)


CALLS: list[tuple[str, Any]] = [
    ("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])),
    ("layer_norm of all", lambda x: F.layer_norm(x, x.shape)),
    ("sum 0", lambda x: x.sum(0)),
    ("sum 1", lambda x: x.sum(1)),
    ("sum kept", lambda x: x.sum(1, keepdim=True)),
    ("softmax 0", lambda x: x.softmax(0)),
    ("softmax 1", lambda x: x.softmax(1)),
    ("softmax -1", lambda x: x.softmax(-1)),
    ("var", lambda x: x.var(0, correction=0)),
    ("var of a sample", lambda x: x.var(0, correction=1)),
    ("power 2", lambda x: x.abs() ** 2),
    ("power 2.0", lambda x: x.abs() ** 2.0),
    ("power 3", lambda x: x.abs() ** 3),
    ("leaky", lambda x: F.leaky_relu(x, 0.1)),
    ("leakier", lambda x: F.leaky_relu(x, 0.3)),
    ("gelu", lambda x: F.gelu(x)),
    ("gelu tanh", lambda x: F.gelu(x, approximate="tanh")),
    ("clamp", lambda x: x.clamp(-1)),
    ("clamp max", lambda x: x.clamp(max=-1)),
]
SIZES = [(4, 6), (5, 6), (6, 4)]


@pytest.mark.parametrize("backwards", [False, True])
def test_in_any_order(backwards: bool) -> None:
    """Every call, size, cut and requires_grad after every other one."""
    every = list(itertools.product(CALLS, SIZES, ["S0", "S1", "R"], [True, False]))
    for (name, call), size, places, needs in reversed(every) if backwards else every:
        full = torch.arange(float(size[0] * size[1])).sin().view(size).requires_grad_(needs)
        x = place(full, (2,), (places,))
        found, want = call(x), call(full)
        torch.testing.assert_close(
            found.detach().to_torch(), want.detach(), msg=lambda m, n=name: f"{n}: {m}"
        )
        assert found.requires_grad == needs
        if needs:
            found.cos().sum().backward()
            want.cos().sum().backward()
            torch.testing.assert_close(x.grad.to_torch(), full.grad, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("join", [torch.stack, torch.cat])
def test_lists_hit(join: Any) -> None:
    tensors = [place(torch.randn(3, 2), (2,), ("S0",)) for _ in range(8)]
    recipes = Graph.default_graph().constructor._recipes
    join(tensors)
    before = len(recipes)
    for _ in range(100):
        join(tensors)
    assert len(recipes) == before
    join(tensors[:7])
    assert len(recipes) == before + 1
