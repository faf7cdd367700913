"""Operators whose shape or way depends on values: right, on every placement, and the program goes on.

What is pending runs first; the result is a distributed tensor that later operators, writes and backward take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch.testing import assert_tensor_allclose as close
from tests.dist import place

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
COUNTS = torch.tensor([2, 0, 1, 3, 1])
PLACES = [
    ((1,), ("R",)),
    ((4,), ("R",)),
    ((4,), ("S0",)),
    ((4,), ("S1",)),
    ((4,), ("P",)),
    ((2, 2), ("S0", "S1")),
    ((2, 2), ("S0", "S0")),
    ((3, 2), ("S1", "P")),
]
EVERYWHERE = pytest.mark.parametrize(("mesh", "places"), PLACES, ids=str)


def halved(x: torch.Tensor) -> torch.Tensor:
    """As often as its values say."""
    turns = 0
    while bool(x.abs().max() > 0.3):
        x, turns = x * 0.5, turns + 1
    return x + turns


def collatz(n: torch.Tensor) -> int:
    """A chain of which every link is decided by the one before."""
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def rows_written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[y > 0.5] = -1.0
    y[y.sum(1) < 0] += 2.0
    y[(y > 1.0).nonzero(as_tuple=True)] *= y.new_tensor(0.5)
    return y


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nonzero": lambda x: (x > 0).nonzero().double().mean(0),
    "nonzero as a tuple": lambda x: x[(x > 0).nonzero(as_tuple=True)] * 2,
    "argwhere": lambda x: x[torch.argwhere(x.sum(1) > 0).flatten()].sum(0),
    "where of one": lambda x: x[torch.where(x > 0.2)].sum() + x,
    "nonzero of a fixed size": lambda x: torch.nonzero_static(x > 0, size=7, fill_value=-1) * 2,
    "masked_select": lambda x: x.masked_select(x < 0.1).cumsum(0),
    "boolean index": lambda x: x[x > 0].softmax(0),
    "boolean index of rows": lambda x: x[x.sum(1) > 0] @ x.t(),
    "boolean index of columns": lambda x: x[:, x[0] > 0].sum(1) + x[:, 0],
    "boolean index and a range": lambda x: x[x[:, 0] > 0, 1:3].mT @ x[x[:, 0] > 0],
    "plain mask": lambda x: x[torch.tensor([True, False, True, True, False])] * 2,
    "unique": lambda x: (x * 2).round().unique().cos(),
    "unique inverse": lambda x: torch.unique((x * 2).round(), return_inverse=True, return_counts=True),
    "unique rows": lambda x: torch.unique((x > 0).double(), dim=0).sum(1),
    "unique consecutive": lambda x: torch.unique_consecutive((x > 0).long()).double(),
    "item": lambda x: x * x.sum().item() + x[0, 0].item(),
    "if": lambda x: x.exp() if x.mean() > 0 else x.sin(),
    "while": halved,
    "any, all": lambda x: x + float((x > 0).any() and not (x > 0).all()),
    "index of the largest": lambda x: x[x.sum(1).argmax()] + x[int(x[:, 0].argmin())],
    "range": lambda x: sum((x * i for i in range(int((x > 0).sum()))), x),
    "slices by value": lambda x: x[: int((x[:, 0] > 0).sum())].sum(0) + x[-1],
    "split by values": lambda x: torch.cat([p.sum(0, keepdim=True) for p in x.split([2, 3])[::-1]]),
    "sorted and cut": lambda x: x.flatten().sort().values[: int((x > 0).sum())].sum(),
    "tolist": lambda x: x + max(x.flatten().tolist()),
    "writes": rows_written,
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x[x < 0].repeat(20)),
    "histogram": lambda x: torch.histc(x, 4, -2, 2) + torch.bincount((x > 0).flatten().long(), minlength=4),
}


@EVERYWHERE
@pytest.mark.parametrize("name", READS)
def test_as_plain_torch(name: str, mesh: Any, places: Any) -> None:
    x = place(X.double(), mesh, places)
    before = x * 3 - 1  # pending while the value is asked for
    found, wanted = READS[name](x), READS[name](X.double())
    for ours, theirs in zip(*((y if isinstance(y, tuple) else (y,)) for y in (found, wanted)), strict=True):
        assert isinstance(ours, dtorch.Tensor)
        close(ours, theirs)
        close(ours + 1, theirs + 1)
    close(before, X.double() * 3 - 1)


GRADIENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "boolean index": lambda x: x[x > 0].tanh().sum() + x.sum(),
    "masked_select": lambda x: (x.masked_select(x > 0) * 3).cos().mean(),
    "rows of nonzero": lambda x: x[(x.detach().sum(1) > 0).nonzero().flatten()].square().sum(),
    "repeats": lambda x: (x.repeat_interleave(COUNTS, 0) * torch.arange(1.0, 8)[:, None].double()).sum(),
    "written by mask": lambda x: (x * 1).masked_fill_(x > 0, 0.0).cos().sum(),
    "index_put by mask": lambda x: rows_written(x).sin().sum(),
    "if": lambda x: (x.exp() if x.detach().mean() > 0 else x.sin()).sum(),
    "unique's inverse": lambda x: x.flatten()[
        torch.unique((x.detach() * 2).round(), return_inverse=True)[1]
    ].sum(),
}


@EVERYWHERE
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, mesh: Any, places: Any) -> None:
    x, plain = place(X.double(), mesh, places).requires_grad_(), X.double().requires_grad_()
    for leaf in (x, plain):
        GRADIENTS[name](leaf).backward()
    close(x.grad, plain.grad)
    assert isinstance(x.grad, dtorch.Tensor)


@EVERYWHERE
@pytest.mark.parametrize("dim", [0, None])
@pytest.mark.parametrize("given", ["distributed", "plain"])
def test_repeats_that_are_a_tensor(given: str, dim: int | None, mesh: Any, places: Any) -> None:
    counts = COUNTS if dim == 0 else torch.arange(20) % 3
    x = place(X, mesh, places)
    repeats = counts if given == "plain" else place(counts, mesh, ("R",) * len(mesh))
    close(x.repeat_interleave(repeats, dim) * 2, X.repeat_interleave(counts, dim) * 2)
    close(torch.repeat_interleave(place(COUNTS, mesh, ("R",) * len(mesh))), torch.repeat_interleave(COUNTS))


@EVERYWHERE
def test_split_by_a_tensor(mesh: Any, places: Any) -> None:
    """torch reads a tensor of places at its memory address, so it wants a plain one, or a list."""
    x = place(X, mesh, places)
    cuts = torch.tensor([1, 3])
    for ours, theirs in zip(x.tensor_split(cuts), X.tensor_split(cuts), strict=True):
        close(ours * 2, theirs * 2)
    ends = place(cuts, mesh, ("R",) * len(mesh))
    with pytest.raises(RuntimeError, match="its data is not allocated yet"):
        x.tensor_split(ends)
    for ours, theirs in zip(x.tensor_split(ends.tolist()), X.tensor_split([1, 3]), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("places", ["R", "P"])
def test_a_chain_of_decisions(places: str) -> None:
    assert collatz(place(torch.tensor(27), (4,), (places,))) == 111


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_in_modes(mode: Any) -> None:
    x = place(X, (4,), ("S0",))
    with mode():
        close(x[x > 0].sum() + (x > 0).nonzero().sum(), X[X > 0].sum() + (X > 0).nonzero().sum())
        close(halved(x), halved(X))


def test_values_of_the_moment_count() -> None:
    """The same line again, with other values, gives another shape."""
    x = place(X, (4,), ("S0",))
    shapes = []
    for threshold in (0.0, 0.5, 10.0):
        found = x[x > threshold]
        close(found, X[threshold < X])
        shapes.append(found.shape[0])
    assert len(set(shapes)) == 3
    x.neg_()
    close(x[x > 0], (-X)[-X > 0])
