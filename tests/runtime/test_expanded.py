"""Converting what is expanded: memory holds a value once, before and after."""

from __future__ import annotations

import pytest
import torch

import dtorch
from dtorch import Replicate, Shard
from dtorch.testing import assert_tensor_equal as equal
from tests.dist import place

MESH = dtorch.init_device_mesh("cpu", (3, 2))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_expanded_dims_stay_expanded(dim: int) -> None:
    full = torch.randn(4, 1, 3).expand(4, 5, 3)
    x = dtorch.Tensor(full[:, :1].contiguous(), MESH).expand(4, 5, 3)
    found = x.redistribute(placements=[Shard(dim), Replicate()])
    equal(found, full)
    assert all(found._graph.parts(found._operand)[i].stride(1) == 0 for i in range(2))
    equal(found.redistribute(placements=[Shard(dim), Shard(2)]) * 2, full * 2)


def test_results_are_laid_out_as_on_one_device() -> None:
    """The order of an expanded factor's strides says nothing; a later view needs that of the other factor."""
    x = place(torch.randn(4, 4, 4), (3,), ("S1",)).permute(1, 2, 0)
    scaled = torch.ones((), dtype=x.dtype).expand(4, 4, 4) * x
    one = dtorch.ones((), device_mesh=x.device_mesh).expand(4, 4, 4) * x
    for y in (scaled, one):
        assert y.stride() == x.stride()
        equal(y.permute(2, 0, 1).view(4, 16), x.permute(2, 0, 1).view(4, 16))


def test_a_copied_view_of_what_is_expanded_follows_its_base() -> None:
    full = torch.randn(6, 1)
    x = place(full, (4,), ("S0",))
    view = x.expand(2, -1, -1).chunk(3, 1)[0]
    x.add_(1)
    equal(view, (full + 1).expand(2, -1, -1).chunk(3, 1)[0])


@pytest.mark.filterwarnings("ignore:grad and param do not obey:UserWarning")  # torch's, for its own leaf
@pytest.mark.parametrize("places", ["R", "S0", "S1"])
def test_a_leaf_that_got_another_shape_gets_the_gradients_it_had(places: str) -> None:
    full = torch.randn(2, 3)
    leaves = [full.clone().requires_grad_(), place(full, (4,), (places,)).requires_grad_()]
    for x in leaves:
        y = x.tanh()
        y.sum().backward(retain_graph=True)
        with torch.no_grad():
            x.unsqueeze_(1)
        y.sum().backward()
    assert isinstance(leaves[1].grad, dtorch.Tensor)
    equal(leaves[1].grad, leaves[0].grad)
