"""Creation, filling, copying, random numbers, rearranging, against plain torch."""

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch.graph.graph import Graph
from tests.dist import assert_like_torch, communications, over, place, plain, sampled_ways

DRAW = torch.Generator().manual_seed(0)
A = torch.randn(6, 5, requires_grad=True, generator=DRAW)
X = A.detach()
T = torch.randn(3, 5, 4, generator=DRAW).transpose(0, 2)
H = torch.randn(5, generator=DRAW)
C = torch.randn(2, 7, 5, requires_grad=True, generator=DRAW)


def _copied(x, y):
    x.copy_(y)
    return x


CASES = {
    "zeros_like": (torch.zeros_like, [X]),
    "ones_like": (lambda x: torch.ones_like(x, dtype=torch.int64), [X]),
    "full_like": (lambda x: torch.full_like(x, 3), [T]),
    "new_zeros": (lambda x: (x.new_zeros(6, 5), x.new_zeros(6, 2), x.new_zeros(3)), [X]),
    "new_full": (lambda x: x.new_full((2, 5), 7.0), [X]),
    "new_ones": (lambda x: x.new_ones(6, 3, dtype=torch.bool), [X]),
    "zero_": (lambda x: x.zero_(), [X]),
    "fill_": (lambda x: x.fill_(3), [X]),
    "fill_ tensor": (lambda x: x.fill_(torch.tensor(2.0)), [X]),
    "zeros_like then add": (lambda x: torch.zeros_like(x).add_(1).add_(x), [X]),
    "copy_": (_copied, [X, X + 1]),
    "copy_ broadcast": (_copied, [X, H]),
    "copy_ column": (_copied, [X, X[:, :1].clone()]),
    "copy_ cast": (_copied, [X, X.double() * 3]),
    "copy_ cast down": (_copied, [torch.arange(30).view(6, 5), X * 3]),
    "copy_ up": (_copied, [X, torch.arange(30).view(6, 5)]),
    "copy_ strided": (_copied, [T, T.contiguous() + 1]),
    "triu": (lambda x: x.triu(1), [A]),
    "tril": (lambda x: x.tril(-1), [C]),
    "triu_": (lambda x: x.triu_(), [X]),
    "flip": (lambda x: x.flip(0), [C]),
    "flip none": (lambda x: x.flip([]), [A]),
    "roll": (lambda x: x.roll(2, 1), [C]),
    "roll flat": (lambda x: x.roll(3), [A]),
    "repeat": (lambda x: x.repeat(2, 3), [A]),
    "repeat new": (lambda x: x.repeat(2, 1, 2), [A]),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), [A]),
    "tile": (lambda x: x.tile(2), [A]),
    "pad": (lambda x: F.pad(x, (1, 2)), [C]),
    "pad value": (lambda x: F.pad(x, (0, 0, 1, -1), value=2.0), [C]),
    "clone of a gradient": (lambda x: (x.t().contiguous() * 2).sum(), [A]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 12))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


RANDOM = {
    "normal_": lambda x: x.normal_(1, 2),
    "uniform_": lambda x: x.uniform_(-1, 1),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "bernoulli_ tensor": lambda x: x.bernoulli_(torch.full((6, 5), 0.3)),
    "random_": lambda x: x.random_(3, 9),
    "exponential_": lambda x: x.exponential_(),
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint_like": lambda x: torch.randint_like(x, 2, 50),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid() * 0 + 0.5),
    "dropout": lambda x: F.dropout(x * 0 + 1, 0.4),
    "native_dropout": lambda x: torch.native_dropout(x * 0 + 1, 0.4, True),
    "trunc_normal_": lambda x: torch.nn.init.trunc_normal_(x),
    "kaiming": lambda x: torch.nn.init.kaiming_uniform_(x),
    "orthogonal": lambda x: torch.nn.init.xavier_normal_(x),
    "multinomial": lambda x: torch.multinomial((x * 0 + 1).abs(), 3),
    "column": lambda x: x[:, 1:3].normal_(),
    "transposed": lambda x: x.t().normal_(),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize(("mesh", "places"), [*sampled_ways([X], 6), *sampled_ways([X], 1, [(1,)])])
def test_random_values_are_those_of_one_device(name, mesh, places):
    fn, (where,) = RANDOM[name], places
    torch.manual_seed(3)
    reference = X.clone()
    wanted, after = fn(reference), torch.rand(1)
    torch.manual_seed(3)
    x = place(X, mesh, where)
    got, after_got = fn(x), torch.rand(1)
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]
    for a, b in [*pairs, (x, reference)]:
        # X pending has other values than X by rounding; drawn ones are exact.
        torch.testing.assert_close(plain(a), b, rtol=0, atol=1e-6 if a is x else 0)
    assert torch.equal(after, after_got)


LOCAL = {
    "zeros_like": (torch.zeros_like, [X], ("P",)),
    "new_zeros": (lambda x: x.new_zeros(6, 2), [X], ("S0",)),
    "fill_ pending": (lambda x: x.fill_(3), [X], ("P",)),
    "normal_": (lambda x: x.normal_(), [X], ("S0",)),
    "normal_ pending": (lambda x: x.normal_(), [X], ("P",)),
    "rand_like": (torch.rand_like, [X], ("S1",)),
    "dropout": (lambda x: F.dropout(x, 0.5), [X], ("S0",)),
    "native_dropout": (lambda x: torch.native_dropout(x, 0.5, True), [X], ("S0",)),
    "copy_": (_copied, [X, X + 1], ("S0", "R")),
    "copy_ pending": (_copied, [X, X + 1], ("P", "P")),
    "copy_ into pending": (_copied, [X, X + 1], ("P", "S0")),
    "triu": (lambda x: x.triu(), [A], ("S0",)),
    "tril": (lambda x: x.tril(), [A], ("S1",)),
    "flip": (lambda x: x.flip(0), [C], ("S1",)),
    "repeat": (lambda x: x.repeat(3, 2), [A], ("S0",)),
    "pad": (lambda x: F.pad(x, (1, 1)), [C], ("S1",)),
    "pad pending": (lambda x: F.pad(x, (1, 1)), [C], ("P",)),
}


@pytest.mark.parametrize(("fn", "tensors", "places"), LOCAL.values(), ids=LOCAL)
def test_stays_local(fn, tensors, places):
    assert communications(fn, tensors, (4,), [(p,) for p in places]) == []


def test_copy_reduces_straight_into_the_cut():
    x, y = place(X, (4,), ["S0"]), place(X, (4,), ["P"])
    with Graph.default_graph().record() as graph:
        x.copy_(y)
    assert [c.kind for c in graph.communications()] == ["reduce_scatter"]


@pytest.mark.parametrize("where", [["S0"], ["S1"], ["R"], ["P"]])
def test_copy_across_meshes(where):
    x, y = place(X, (4,), where), place(X + 1, (2, 2), ["S1", "P"])
    x.copy_(y)
    torch.testing.assert_close(x.to_torch(), X + 1)
    one = dtorch.Tensor(H, dtorch.init_device_mesh("cpu", (1,)))
    x.copy_(one)
    torch.testing.assert_close(x.to_torch(), H.expand(6, 5))


def test_copy_into_a_plain_tensor():
    target = torch.zeros(6, 5)
    target.copy_(place(X, (4,), ["S0"]))
    assert torch.equal(target, X)


def test_likeness_of_a_pending_sum_is_no_sum():
    assert torch.zeros_like(place(X, (4,), ["P"])).placements == (dtorch.Replicate(),)
    assert torch.empty_like(place(X, (4,), ["P"])).placements == (dtorch.Partial(),)
