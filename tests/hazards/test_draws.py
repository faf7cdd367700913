"""Random numbers.

values depend on placement and device count
    `tests/test_random.py::test_draws_are_torchs_on_every_layout`, `..._created_values_are_torchs`,
    `..._init_functions`, `test_one_stream`
a replicated randn differs per device
    `tests/test_random.py::test_replicas_are_equal`, `test_one_stream`
the generator does not advance; a copy ignores `manual_seed`
    `tests/test_random.py::test_seeds_and_states_repeat_values`, `test_the_generator_advances_once`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from tests.dist import ways
from tests.hazards.cases import mesh_of

SIZE = (6, 5)
DRAWS: dict[str, Callable[[Any], Any]] = {
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 0, 9),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
    "dropout": lambda x: F.dropout(torch.ones_like(x), 0.4),
    "normal_": lambda x: x.normal_(1, 2),
    "uniform_": lambda x: x.uniform_(-1, 1),
    "trunc_normal_": lambda x: torch.nn.init.trunc_normal_(x, std=0.5),
    "exponential_": lambda x: x.exponential_(2),
    "a slice": lambda x: x[1:4, ::2].normal_(),
    "multinomial": lambda x: torch.multinomial(torch.ones_like(x), 3),
}
MESHES = [((1,), ("R",)), *[((n,), w) for n in (2, 4) for w in ways(2, (n,))], ((2, 2), ("S0", "S1"))]


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize(("mesh", "places"), MESHES, ids=str)
def test_one_stream(name: str, mesh: Any, places: Any) -> None:
    """Bit for bit torch's, whatever the layout; and the next draw too."""
    torch.manual_seed(0)
    want = [DRAWS[name](torch.zeros(SIZE)), torch.rand(3)]
    x = dtorch.zeros(*SIZE, device_mesh=mesh_of(*mesh), placements=places)
    torch.manual_seed(0)
    found = DRAWS[name](x)
    after = torch.rand(3)
    assert torch.equal(found.to_torch(), want[0])
    assert torch.equal(after, want[1])
    if found.dist_layout.is_replicate:
        assert all(torch.equal(found.to_local(i), want[0]) for i in range(found.device_mesh.size))


@pytest.mark.parametrize("places", ["R", "S0", "S1", "P"])
def test_the_generator_advances_once(places: str) -> None:
    generator, plain = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    x = dtorch.zeros(*SIZE, device_mesh=mesh_of(2), placements=[places])
    untouched = torch.get_rng_state()
    first, second = x.normal_(generator=generator).to_torch(), x.normal_(generator=generator).to_torch()
    assert torch.equal(first, torch.zeros(SIZE).normal_(generator=plain))
    assert torch.equal(second, torch.zeros(SIZE).normal_(generator=plain))
    assert torch.equal(generator.get_state(), plain.get_state())
    assert torch.equal(torch.get_rng_state(), untouched)
    generator.manual_seed(3)
    assert torch.equal(x.normal_(generator=generator).to_torch(), first)
    state = torch.get_rng_state()
    again = [x.uniform_().to_torch(), (torch.set_rng_state(state), x.uniform_().to_torch())[1]]
    assert torch.equal(*again)
