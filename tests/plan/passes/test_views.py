"""A view of a view is a view of what that one views."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dtorch
from tests.plan.passes.test_rewrites import S0, S1, Function, R, on, rewrites


def test_a_view_that_only_a_view_reads_is_left_out(graph: dtorch.Graph) -> None:
    assert rewrites(lambda x: (x + 1).view(-1).view(2, 6).view(4, 3) * 2, graph).count("views") == 2


def test_products_give_their_results_as_views(graph: dtorch.Graph) -> None:
    def heads(x: Any) -> Any:
        weight = torch.ones(4, 6)
        return torch.nn.functional.linear(x.view(1, 2, 6), weight).view(1, 2, 2, 2).transpose(1, 2) * 2

    assert "views" in rewrites(heads, graph, R)


def write_into_the_outer_view(x: Any) -> Any:
    y = x + 1
    y.view(-1).view(2, 6).neg_()
    return y


def write_between_the_views(x: Any) -> Any:
    y = x + 1
    inner = y.view(-1)
    y.neg_()
    return inner.view(2, 6) * 2


@pytest.mark.parametrize("function", [write_into_the_outer_view, write_between_the_views])
@pytest.mark.parametrize("placement", [R, S0, S1])
def test_what_is_written_shows_in_both_views(function: Function, placement: Any, graph: dtorch.Graph) -> None:
    rewrites(function, graph, placement)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((inner := (x + 1).view(-1)), inner.view(2, 6)),
        lambda x: (inner := (x + 1).view(-1)).view(2, 6) * inner.sum(),
    ],
    ids=["kept", "read by two"],
)
def test_a_view_that_others_see_stays(function: Function, graph: dtorch.Graph) -> None:
    assert "views" not in rewrites(function, graph)


@pytest.mark.parametrize("shape", [(4, 3), (1, 12), (12, 1, 1), (0, 3), (5, 0)])
@pytest.mark.parametrize("placement", [R, S0])
def test_views_of_single_and_of_no_elements(
    shape: tuple[int, ...], placement: Any, graph: dtorch.Graph
) -> None:
    full = torch.arange(float(torch.Size(shape).numel())).view(shape)

    def function(x: Any) -> Any:
        return (x + 1).view(1, *shape).view(*shape, 1).view(shape) * 2

    for _ in range(3):
        x = on(graph, placement, full)
        found = function(x).to_torch()
        assert torch.equal(found, function(full))
        assert found.stride() == function(full).stride()
