"""A recipe is kept under everything its answer depends on; forgetting one gives another call's result."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch

import dtorch
from dtorch import Graph
from dtorch.op.call import OutputMeta
from dtorch.operators import OpParam, PlacementSignature, add_operator
from dtorch.testing import assert_tensor_allclose as close
from tests.op_life import LifeClip
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


DRAWS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "normal_": lambda x, g: x.clone().normal_(1, 2, generator=g),
    "uniform_": lambda x, g: x.clone().uniform_(generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x.sigmoid(), generator=g),
    "bernoulli_": lambda x, g: x.clone().bernoulli_(0.4, generator=g),
    "random_": lambda x, g: x.clone().random_(0, 9, generator=g),
    "multinomial": lambda x, g: torch.multinomial(x.abs(), 2, generator=g),
    "normal of a tensor": lambda x, g: torch.normal(x, 2.0, generator=g),
}


@PLACES
@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_is_an_input_and_no_part_of_the_key(place: Place, name: str) -> None:
    """Each call draws from the generator it is given; generators are neither told apart nor kept alive."""
    full = randn(5, 3)
    x, draw = place.put(full), DRAWS[name]
    recipes = Graph.default_graph().constructor._recipes
    for _ in range(2):  # the second call finds x converted already
        draw(x, torch.Generator())
    before = len(recipes)
    for seed in range(3):
        mine, torchs = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        for _ in range(2):
            assert torch.equal(draw(x, mine).to_torch(), draw(full, torchs))
        seen = weakref.ref(mine)
        del mine
        assert seen() is None
    assert len(recipes) == before


class KeyedScaleParam(OpParam, frozen=True):
    """Factors, and a note that no rule reads."""

    by: Any
    note: Any = None


class KeyedScale(LifeClip):
    """x times a number, minus an optional y."""

    param: KeyedScaleParam  # type: ignore[assignment]
    inferred: ClassVar[int] = 0

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """Counted."""
        type(self).inferred += 1
        return super().infer_output_meta_info()

    def get_placement_signature(self) -> PlacementSignature:
        """Rows cut alike, y or no y."""
        builder = PlacementSignature.builder(2, 1)
        return builder.add_input("S0").add_optional_input("S0").add_output("S0").build().finish()

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Any) -> None:
        """Of the local parts; 1 / factor tells 0.0 from -0.0."""
        x, y = inputs
        by = self.param.by
        outputs[:] = [x * (1 / by if by else math.copysign(2, by)) - (0 if y is None else y)]


FACTORS = (1, 2, 2.0, 0.0, -0.0, True, 2)


@pytest.mark.parametrize("with_y", [False, True])
def test_typed_parameters_are_part_of_the_key(with_y: bool) -> None:
    full, other = randn(5, 3), randn(5, 3, seed=1)
    x, y = S0_2.put(full), S0_2.put(other)
    for factor in FACTORS:
        found = add_operator(KeyedScaleParam(factor), x, y if with_y else None)
        by = 1 / factor if factor else math.copysign(2, factor)
        close(found, full * by - (other if with_y else 0))


def test_typed_parameters_are_inferred_once() -> None:
    x = S0_2.put(randn(5, 3))
    add_operator(KeyedScaleParam(3.0), x, None)
    before = KeyedScale.inferred
    for _ in range(3):
        add_operator(KeyedScaleParam(3.0), x, None)
    assert KeyedScale.inferred == before
    with dtorch.strict():  # surroundings count
        add_operator(KeyedScaleParam(3.0), x, None)
    assert KeyedScale.inferred > before


@pytest.mark.parametrize("note", [torch.ones(2), torch.Generator(), {1, 2}, [torch.ones(1)]])
def test_what_is_no_plain_value_is_remembered_nowhere(note: Any) -> None:
    full = randn(5, 3)
    x = S0_2.put(full)
    add_operator(KeyedScaleParam(2.0), x, None)
    recipes = Graph.default_graph().constructor._recipes
    before = len(recipes)
    close(add_operator(KeyedScaleParam(2.0, note), x, None), full / 2)
    assert len(recipes) == before
