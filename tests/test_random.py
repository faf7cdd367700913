"""Random numbers are those of one device: the same bits on every mesh and layout, from torch's own stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dtorch
from dtorch import Partial, Replicate, Shard
from dtorch.testing import assert_tensor_allclose as close
from dtorch.testing import assert_tensor_equal as equal
from tests.places import MATRIX_PLACES, ONE, PLACES, R2, S0_2, S0_4, S1_2, SPREAD, Place, randn

SHAPE = (6, 5)

Fresh = Callable[[Any], torch.Tensor]


def state() -> bytes:
    return bytes(torch.get_rng_state().tolist())


def same_draws(place: Place, draw: Callable[[Callable[..., Any]], Any], seed: int = 7) -> None:
    """`draw` gets what makes a tensor of a plain one; bits and the generator's state after it must agree."""
    torch.manual_seed(seed)
    wanted = draw(lambda t: t.clone())
    after = state()
    torch.manual_seed(seed)
    found = draw(place.put)
    assert state() == after
    wanted, found = (x if isinstance(x, tuple) else (x,) for x in (wanted, found))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert isinstance(a, dtorch.Tensor)
        equal(a, b)


# -- operators on distributed tensors -----------------------------------------------------------------------

_ZEROS = torch.zeros(SHAPE)
_WEIGHTS = randn(*SHAPE).abs()
_INTS = torch.zeros(SHAPE, dtype=torch.int64)
_BIG = torch.zeros(37, 11)  # normal numbers are drawn in blocks of 16, and otherwise below that size

DRAWS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "normal_": lambda m: m(_ZEROS).normal_(),
    "normal_, many": lambda m: m(_BIG).normal_(1.0, 3.0),
    "uniform_": lambda m: m(_ZEROS).uniform_(-1, 3),
    "random_": lambda m: m(_INTS).random_(0, 100),
    "exponential_": lambda m: m(_ZEROS).exponential_(),
    "bernoulli_": lambda m: m(_ZEROS).bernoulli_(0.3),
    "bernoulli": lambda m: torch.bernoulli(m(_WEIGHTS.clamp(max=1))),
    "geometric_": lambda m: m(_ZEROS).geometric_(0.4),
    "cauchy_": lambda m: m(_ZEROS).cauchy_(),
    "log_normal_": lambda m: m(_ZEROS).log_normal_(),
    "rand_like": lambda m: torch.rand_like(m(_ZEROS)),
    "randn_like": lambda m: torch.randn_like(m(_BIG)),
    "randn_like, wider": lambda m: torch.randn_like(m(_ZEROS), dtype=torch.float64),
    "randint_like": lambda m: torch.randint_like(m(_ZEROS), 3, 50),
    "dropout": lambda m: F.dropout(m(_WEIGHTS), 0.4),
    "dropout_": lambda m: F.dropout(m(_WEIGHTS), 0.4, inplace=True),
    "feature dropout": lambda m: F.dropout1d(m(randn(3, 6, 5)), 0.4),
    "alpha dropout": lambda m: F.alpha_dropout(m(_WEIGHTS), 0.4),
    "multinomial": lambda m: torch.multinomial(m(_WEIGHTS), 3),
    "multinomial, again and again": lambda m: torch.multinomial(m(_WEIGHTS), 9, replacement=True),
    "poisson": lambda m: torch.poisson(m(_WEIGHTS)),
    "normal of means": lambda m: torch.normal(m(_ZEROS), 2.0),
    "normal of both": lambda m: torch.normal(m(_ZEROS), m(_WEIGHTS)),
    "rrelu": lambda m: F.rrelu(m(randn(*SHAPE)), training=True),
    "gumbel softmax, hard": lambda m: F.gumbel_softmax(m(randn(*SHAPE)), hard=True).argmax(-1),
    "a transposed target": lambda m: m(_ZEROS).t().normal_(),
    "a slice of the sharded dim": lambda m: m(_ZEROS)[1:4].uniform_(),
    "the base of a written slice": lambda m: _into_slice(m(_ZEROS)),
    "several in a row": lambda m: (
        m(_ZEROS).normal_(),
        torch.rand_like(m(_ZEROS)),
        F.dropout(m(_WEIGHTS), 0.5),
    ),
    "one element": lambda m: m(torch.zeros(1, 1)).normal_(),
    "half": lambda m: m(_ZEROS.bfloat16()).normal_(),
}


def _into_slice(x: torch.Tensor) -> torch.Tensor:
    x[1:4].normal_()
    x[:, 2].uniform_()
    x.view(-1)[17:].exponential_()
    return x


@PLACES
@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_torchs_on_every_layout(place: Place, name: str) -> None:
    same_draws(place, DRAWS[name])


@SPREAD
def test_a_pending_target_is_written_whole(place: Place) -> None:
    def draw(make: Callable[..., Any]) -> torch.Tensor:
        x = make(_WEIGHTS)
        if isinstance(x, dtorch.Tensor):
            x = x.redistribute(placements=[Partial()] * len(place.mesh_shape))
        return x.normal_()

    same_draws(place, draw)


@PLACES
def test_dropout_is_the_same_in_backward(place: Place) -> None:
    x, plain = place.put(_WEIGHTS, requires_grad=True), _WEIGHTS.clone().requires_grad_()
    for leaf in (plain, x):
        torch.manual_seed(3)
        F.dropout(leaf * 2, 0.4).pow(2).sum().backward()
    close(x.grad, plain.grad)


@PLACES
@pytest.mark.parametrize("causal", [False, True])
def test_attention_dropout(place: Place, causal: bool) -> None:
    """On whole queries torch's own kernel draws; the generator advances alike on every layout."""
    q, k, v = (randn(2, 3, 6, 4, seed=i) for i in range(3))
    results = []
    for make in (lambda t: t, place.put):
        torch.manual_seed(5)
        y = F.scaled_dot_product_attention(make(q), make(k), make(v), dropout_p=0.4, is_causal=causal)
        results.append((y, state()))
    close(results[1][0], results[0][0])
    assert results[1][1] == results[0][1]


# -- creation -----------------------------------------------------------------------------------------------

CREATE: dict[str, Callable[..., Any]] = {
    "rand": lambda m, **k: m.rand(*SHAPE, **k),
    "randn": lambda m, **k: m.randn(*SHAPE, **k),
    "randn, many": lambda m, **k: m.randn(37, 11, **k),
    "randn, double": lambda m, **k: m.randn(*SHAPE, dtype=torch.float64, **k),
    "randint": lambda m, **k: m.randint(3, 90, SHAPE, **k),
}


@PLACES
@pytest.mark.parametrize("name", CREATE)
@pytest.mark.parametrize("explicit", [False, True])
def test_created_values_are_torchs(place: Place, name: str, explicit: bool) -> None:
    def options() -> dict[str, Any]:
        return {"generator": torch.Generator().manual_seed(11)} if explicit else {}

    torch.manual_seed(4)
    wanted, after = CREATE[name](torch, **options()), state()
    torch.manual_seed(4)
    found = CREATE[name](dtorch, device_mesh=place.mesh, placements=place.placements, **options())
    equal(found, wanted)
    assert found.placements == place.placements
    assert state() == after


def test_replicas_are_equal() -> None:
    torch.manual_seed(0)
    x = dtorch.randn(2, 3, device_mesh=R2.mesh)
    x.normal_()
    equal(x.to_local(0), x.to_local(1))


def test_randperm_mixes_in() -> None:
    torch.manual_seed(9)
    wanted = randn(*SHAPE)[torch.randperm(6)]
    torch.manual_seed(9)
    equal(S0_4.put(randn(*SHAPE))[torch.randperm(6)], wanted)


# -- generators ---------------------------------------------------------------------------------------------

WITH_GENERATOR: dict[str, Callable[[Any, torch.Generator], Any]] = {
    "normal_": lambda x, g: x.normal_(generator=g),
    "uniform_": lambda x, g: x.uniform_(generator=g),
    "random_": lambda x, g: x.random_(0, 9, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x, generator=g),
    "multinomial": lambda x, g: torch.multinomial(x, 2, generator=g),
    "exponential_": lambda x, g: x.exponential_(generator=g),
    "trunc_normal_": lambda x, g: nn.init.trunc_normal_(x, generator=g),
}


@PLACES
@pytest.mark.parametrize("name", WITH_GENERATOR)
def test_an_explicit_generator_advances_alone(place: Place, name: str) -> None:
    draw = WITH_GENERATOR[name]
    value, before = torch.full(SHAPE, 0.4), state()
    mine, theirs = torch.Generator().manual_seed(21), torch.Generator().manual_seed(21)
    for _ in range(3):
        equal(draw(place.put(value), mine), draw(value.clone(), theirs))
    assert mine.get_state().equal(theirs.get_state())
    assert state() == before


def test_another_generator_of_the_same_call_is_another_draw() -> None:
    """Also one that is born where the last one died, and one seeded anew."""
    x = S0_2.put(_ZEROS)
    for seed in (1, 2, 1, 3):
        generator = torch.Generator().manual_seed(seed)
        wanted = torch.zeros(SHAPE).normal_(generator=torch.Generator().manual_seed(seed))
        equal(x.normal_(generator=generator), wanted)
        del generator
    generator = torch.Generator()
    for seed in (1, 2, 1):
        generator.manual_seed(seed)
        equal(x.uniform_(generator=generator), _ZEROS.clone().uniform_(generator=generator.manual_seed(seed)))


@SPREAD
def test_seeds_and_states_repeat_values(place: Place) -> None:
    x = place.put(_ZEROS)
    torch.manual_seed(1)
    first = x.normal_().to_torch()
    before = torch.get_rng_state()
    second = x.normal_().to_torch()
    torch.set_rng_state(before)
    equal(x.normal_(), second)
    torch.manual_seed(1)
    equal(x.normal_(), first)
    with torch.random.fork_rng():
        x.normal_()
    equal(x.normal_(), second)


# -- initialisation -----------------------------------------------------------------------------------------

INIT: dict[str, Callable[[Any], Any]] = {
    "uniform_": lambda w: nn.init.uniform_(w, -2, 2),
    "normal_": lambda w: nn.init.normal_(w, 1, 2),
    "trunc_normal_": lambda w: nn.init.trunc_normal_(w, std=0.5, a=-0.4, b=0.6),
    "xavier_uniform_": nn.init.xavier_uniform_,
    "xavier_normal_": nn.init.xavier_normal_,
    "kaiming_uniform_": nn.init.kaiming_uniform_,
    "kaiming_normal_": lambda w: nn.init.kaiming_normal_(w, mode="fan_out"),
    "constant_": lambda w: nn.init.constant_(w, 0.3),
    "ones_": nn.init.ones_,
    "zeros_": nn.init.zeros_,
    "eye_": nn.init.eye_,
    "sparse_": lambda w: nn.init.sparse_(w, 0.3),
}


@PLACES
@pytest.mark.parametrize("name", INIT)
def test_init_functions(place: Place, name: str) -> None:
    def draw(make: Callable[..., Any]) -> torch.Tensor:
        weight = nn.Parameter(make(torch.empty(SHAPE).fill_(9)))
        assert INIT[name](weight) is weight
        return weight

    same_draws(place, draw)


@PLACES
def test_orthogonal_init_draws_alike(place: Place) -> None:
    results = []
    for make in (lambda t: t, place.put):
        torch.manual_seed(2)
        results.append((nn.init.orthogonal_(make(torch.empty(SHAPE).fill_(9))), state()))
    close(results[1][0], results[0][0])
    assert results[1][1] == results[0][1]


@SPREAD
def test_reset_parameters_of_a_module(place: Place) -> None:
    torch.manual_seed(8)
    wanted = nn.Linear(5, 6)
    module = dtorch.parallelize(nn.Linear(5, 6), place.mesh, {"weight": list(place.placements)})
    torch.manual_seed(8)
    module.reset_parameters()
    equal(module.weight, wanted.weight)
    equal(module.bias, wanted.bias)


@pytest.mark.parametrize("place", [ONE, R2, S0_2, S1_2, S0_4], ids=str)
def test_a_training_step_with_dropout_is_the_same_on_every_mesh(place: Place) -> None:
    losses = []
    for spread in (False, True):
        torch.manual_seed(13)
        model: nn.Module = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.3), nn.ReLU(), nn.Linear(7, 2))
        x = randn(*SHAPE)
        if spread:
            model = dtorch.parallelize(model, place.mesh, {"0.weight": list(place.placements)})
            x = place.put(x)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    for a, b in zip(losses[3:], losses[:3], strict=True):
        close(a, b)


def test_the_places_tried_are_those_of_the_promise() -> None:
    tried = {str(place) for place in MATRIX_PLACES}
    assert {"R[1]", "R[2]", "S0[2]", "S1[2]", "S0[4]"} <= tried
    assert S0_4.put(_ZEROS).placements == [Shard(0)]
    assert R2.put(_ZEROS).placements == [Replicate()]
