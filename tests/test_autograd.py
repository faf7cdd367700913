"""Autograd is torch's own, over symbols: values of gradients, where they live, how they are asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Graph, Partial, Replicate, Shard
from dtorch.testing import assert_tensor_allclose as close
from dtorch.testing import assert_tensor_equal as equal
from tests.places import (
    ONE,
    PLACES,
    S0_2,
    S0_4,
    S1_2,
    SPREAD,
    Place,
    both,
    randn,
    same_gradients,
)


def sent(graph_nodes: Any, *, in_backward: bool | None = None) -> list[tuple[str, str]]:
    return [
        (c.kind, c.axes)
        for c in graph_nodes.communications()
        if in_backward is None or c.in_backward == in_backward
    ]


# -- gradients and where they live ---------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w: torch.nn.functional.linear(x, w).tanh(),
    "matmul of a transposed weight": lambda x, w: x @ w.t(),
    "broadcast": lambda x, w: (x[:, None, :] * w[None, :, :]).exp(),
    "mean": lambda x, w: x.mean() * w.mean(1),
    "split and join": lambda x, w: torch.cat([x.split(2)[0], w.chunk(2)[0]]).sin(),
    "indexing": lambda x, w: x[[0, 2, 2]] * w[1:4] ** 2,
    "one input twice": lambda x, w: x * x + x.sum() * w[0],
    "unused elements": lambda x, w: x[0] * w[:, 1].sum(),
}


@PLACES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_torchs_and_live_where_the_leaf_lives(place: Place, name: str) -> None:
    same_gradients(place, FUNCTIONS[name], randn(5, 3), randn(5, 3, seed=1))


@SPREAD
def test_micro_batches_accumulate(place: Place) -> None:
    batches = [randn(n, 4, seed=n) for n in (5, 3, 1)]

    def step(w: torch.Tensor) -> None:
        for x in batches:
            x = place.put(x) if isinstance(w, dtorch.Tensor) else x
            torch.nn.functional.linear(x, w).relu().mean().backward()

    same_gradients(place, step, randn(7, 4))


def test_norm_weight_of_a_sequence_shard_accumulates_whole_sums() -> None:
    """The weight is R, its gradients are pending sums over the axis that cuts the rows."""
    plain, weight = randn(6).requires_grad_(), S0_2.whole(randn(6), requires_grad=True)
    for seed in (1, 2):
        x = randn(5, 6, seed=seed)
        (x * plain).sin().sum().backward()
        (S0_2.put(x) * weight).sin().sum().backward()
        assert weight.grad is not None
        assert weight.grad.placements == (Replicate(),)
        equal(weight.grad.to_local(0), weight.grad.to_local(1))
    close(weight.grad, plain.grad)


def test_no_sync_keeps_pending_sums_and_reduces_once() -> None:
    plain, weight = randn(3, 6).requires_grad_(), S0_2.whole(randn(3, 6), requires_grad=True)
    batches = [randn(5, 6, seed=seed) for seed in (1, 2, 3)]
    for x in batches:
        torch.nn.functional.linear(x, plain).sin().sum().backward()
    graph = Graph.default_graph()
    with graph.record() as nodes:
        with graph.no_sync():
            for x in batches[:2]:
                torch.nn.functional.linear(S0_2.put(x), weight).sin().sum().backward()
                assert weight.grad is not None
                assert weight.grad.placements == (Partial(),)
        assert sent(nodes, in_backward=True) == []
        torch.nn.functional.linear(S0_2.put(batches[2]), weight).sin().sum().backward()
    assert sent(nodes, in_backward=True) == [("all_reduce", "a")]
    assert weight.grad.placements == (Replicate(),)
    close(weight.grad, plain.grad)


@pytest.mark.parametrize(("rows", "devices"), [(8, 2), (7, 2), (5, 4)])
def test_sharded_parameters_get_their_gradient_by_one_reduce_scatter(rows: int, devices: int) -> None:
    """Fully sharded parameters: a weight cut as the batch is, whole while it is used."""
    place = Place((devices,), (Shard(0),))
    x, w = randn(6, 3), randn(rows, 3, seed=1)
    plain, weight = w.clone().requires_grad_(), place.put(w, requires_grad=True)
    with dtorch.record() as nodes:
        whole = weight.redistribute(placements=[Replicate()])
        torch.nn.functional.linear(place.put(x), whole).sin().sum().backward()
    torch.nn.functional.linear(x, plain).sin().sum().backward()
    assert sent(nodes, in_backward=True) == [("reduce_scatter", "a")]
    assert weight.grad is not None
    assert weight.grad.placements == (Shard(0),)
    close(weight.grad, plain.grad)


def test_a_transposed_weights_gradient_is_reduced_exactly_once() -> None:
    x, w = randn(6, 5), randn(3, 5, seed=1)
    weight = S0_2.whole(w, requires_grad=True)
    with dtorch.record() as nodes:
        (S0_2.put(x) @ weight.t()).backward(S0_2.put(torch.ones(6, 3)))
    assert sent(nodes) == [("all_reduce", "a")]
    close(weight.grad, torch.ones(3, 6) @ x)


@SPREAD
def test_plain_leaves_and_plain_results_get_plain_gradients(place: Place) -> None:
    x, w = randn(5, 3), randn(5, 3, seed=1)
    plain, mixed = w.clone().requires_grad_(), w.clone().requires_grad_()
    inner = mixed * 2
    inner.retain_grad()
    ((place.put(x) * inner).sin().sum() + (inner * 3).sum()).backward()
    ((x * (plain * 2)).sin().sum() + (plain * 6).sum()).backward()
    assert type(mixed.grad) is torch.Tensor
    assert type(inner.grad) is torch.Tensor
    close(mixed.grad, plain.grad)


@SPREAD
def test_autograd_grad_of_a_plain_leaf_is_plain(place: Place) -> None:
    x, w = randn(5, 3), randn(5, 3, seed=1).requires_grad_()
    (found,) = torch.autograd.grad((place.put(x) * w).sin().sum(), w)
    assert type(found) is torch.Tensor
    close(found, torch.autograd.grad((x * w).sin().sum(), w)[0])


def test_a_copied_plain_leaf_gets_a_plain_gradient_too() -> None:
    leaf = randn(4).requires_grad_()
    x = S0_2.put(randn(4, seed=1))
    (leaf * x).sum().backward()
    other = copy.deepcopy(leaf)
    other.grad = None
    (other * x).sum().backward()
    assert type(other.grad) is torch.Tensor


@SPREAD
@pytest.mark.parametrize("given", ["plain", "whole", "as the output", "pending"])
def test_the_gradient_that_backward_is_given_may_live_anywhere(place: Place, given: str) -> None:
    x, g = randn(5, 4), randn(5, 4, seed=1)
    leaf = place.put(x, requires_grad=True)
    start: Any = {
        "plain": lambda: g,
        "whole": lambda: place.whole(g),
        "as the output": lambda: place.put(g),
        "pending": lambda: dtorch.Tensor(
            g, device_mesh=place.mesh, placements=[Partial()] * len(place.mesh_shape)
        ),
    }[given]()
    before = getattr(start, "placements", None)
    (leaf * 2 + leaf).backward(start)
    assert isinstance(leaf.grad, dtorch.Tensor)
    assert leaf.grad.placements == leaf.placements
    close(leaf.grad, 3 * g)
    assert getattr(start, "placements", None) == before
    close(start, g)


def test_a_gradient_handed_straight_to_the_leaf_stays_the_users_own() -> None:
    leaf, start = S0_2.put(randn(5, 4), requires_grad=True), S0_2.whole(randn(5, 4, seed=1))
    view = start[1:3]
    leaf.backward(start)
    assert start.placements == (Replicate(),)
    view.zero_()
    assert start.to_torch()[1:3].abs().sum() == 0
    close(leaf.grad, randn(5, 4, seed=1))


def test_two_leaves_of_one_sum_do_not_share_a_gradient() -> None:
    a, b = S0_2.put(randn(5, 4), requires_grad=True), S1_2.put(randn(5, 4), requires_grad=True)
    (a + b).sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    a.grad.mul_(7)
    close(b.grad, torch.ones(5, 4))
    assert (a.grad.placements, b.grad.placements) == ((Shard(0),), (Shard(1),))


def test_requires_grad_set_as_an_attribute_counts_too() -> None:
    leaf = S0_2.put(randn(5, 4))
    leaf.requires_grad = True
    (leaf.redistribute(placements=[Shard(1)]) * 2).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.placements == (Shard(0),)


@PLACES
@pytest.mark.parametrize("target", [[Replicate()], [Shard(0)], [Shard(1)], [Partial()]], ids=str)
def test_gradients_pass_through_redistribute(place: Place, target: list[Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if isinstance(y, dtorch.Tensor):
            y = y.redistribute(placements=target * len(place.mesh_shape))
        return y * y

    same_gradients(place, function, randn(5, 3))


def test_gradients_pass_to_another_mesh_and_back() -> None:
    other = dtorch.DeviceMesh("cpu", [4, 5, 6])

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if isinstance(y, dtorch.Tensor):
            y = y.redistribute(other, [Shard(1)])
            assert y.device_mesh == other
        return y * y

    same_gradients(S0_4, function, randn(5, 3))


@SPREAD
@pytest.mark.parametrize("sync", [True, False])
def test_a_leaf_on_one_device_gets_its_gradient_there(place: Place, sync: bool) -> None:
    leaf, x = ONE.put(randn(5, 4), requires_grad=True), randn(5, 4, seed=1)
    for _ in range(2):
        with nullcontext() if sync else Graph.default_graph().no_sync():
            (leaf * place.put(x)).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.device_mesh == leaf.device_mesh
    close(leaf.grad, 2 * x)


# -- asking for gradients ------------------------------------------------------------------------------------


@PLACES
def test_second_order_gradients(place: Place) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> None:
        y = torch.nn.functional.linear(x, w).tanh().sum()
        gx, gw = torch.autograd.grad(y, (x, w), create_graph=True)
        (gx.pow(2).sum() + (gw * w).sum()).backward()

    same_gradients(place, function, randn(5, 3), randn(4, 3, seed=1))


@PLACES
@pytest.mark.filterwarnings(
    "ignore:Using backward\\(\\) with create_graph=True:UserWarning"
)  # the cycle is cut
def test_second_order_through_the_leafs_own_gradient(place: Place) -> None:
    """The gradient that backward(create_graph=True) leaves is part of the graph."""
    grads = []
    for leaf in (randn(5, 3).requires_grad_(), place.put(randn(5, 3), requires_grad=True)):
        other = randn(3, 3, seed=1)
        if isinstance(leaf, dtorch.Tensor):
            other = place.whole(other)
        ((leaf @ other).t() @ leaf).sin().sum().backward(create_graph=True)
        assert leaf.grad is not None
        (second,) = torch.autograd.grad(leaf.grad.pow(2).sum(), leaf)
        grads.append(second)
        leaf.grad = None
    close(grads[1], grads[0])


@PLACES
def test_autograd_grad(place: Place) -> None:
    (x, w), leaves = both(place, [randn(5, 3), randn(5, 3, seed=1)])
    unused = place.put(randn(5, 3), requires_grad=True)
    wanted = torch.autograd.grad((x * w).sin().sum(), (x, w))
    found = torch.autograd.grad((leaves[0] * leaves[1]).sin().sum(), (*leaves, unused), allow_unused=True)
    close(found[0], wanted[0])
    close(found[1], wanted[1])
    assert found[2] is None
    assert leaves[0].grad is None


@SPREAD
def test_vector_products_with_jacobian_and_hessian(place: Place) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x).sum()

    x, v = randn(5, 3), randn(5, 3, seed=1)
    wanted = torch.autograd.functional.vhp(function, x, v)[1]
    close(torch.autograd.functional.vhp(function, place.put(x), place.put(v))[1], wanted)


@PLACES
def test_retain_graph(place: Place) -> None:
    def function(x: torch.Tensor) -> None:
        y = (x.sin() * x).sum()
        y.backward(retain_graph=True)
        y.backward()

    same_gradients(place, function, randn(5, 3))


def test_a_freed_graph_is_refused_as_in_torch() -> None:
    leaf = S0_2.put(randn(5, 3), requires_grad=True)
    y = leaf.sin().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_saved_tensor_that_was_written_is_refused_as_in_torch() -> None:
    leaf = S0_2.put(randn(5, 3), requires_grad=True)
    y = leaf.exp()
    z = y.sin().sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_writing_a_leaf_is_refused_as_in_torch() -> None:
    leaf = S0_2.put(randn(5, 3), requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        leaf.add_(1)
    with torch.no_grad():
        leaf.add_(1)
    close(leaf, randn(5, 3) + 1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_grad_nothing_requires_grad(mode: Any) -> None:
    leaf = S0_2.put(randn(5, 3), requires_grad=True)
    with mode():
        assert not (leaf * 2).requires_grad
    assert (leaf * 2).requires_grad
    assert not leaf.detach().requires_grad


def test_plain_gradient_given_by_hand_is_added_to():
    mesh = dtorch.init_device_mesh("cpu", (4,))
    w = dtorch.ones(5, 2, device_mesh=mesh, placements=[Shard(0)], requires_grad=True)
    w.grad = torch.ones(5, 2)
    (w * 2).sum().backward()
    assert w.grad.placements == w.placements
    assert w.grad.to_torch().eq(3).all()
