"""Slices, selections, squeezes, splits and strided views, against plain torch."""

import pytest
import torch

import dtorch
from dtorch.graph.graph import Graph
from tests.dist import assert_like_torch, communications, flat, over, place

DRAW = torch.Generator().manual_seed(0)
A = torch.randn(6, 5, 4, requires_grad=True, generator=DRAW)
ONE = torch.randn(1, 5, 1, requires_grad=True, generator=DRAW)
B = torch.randn(8, 6, requires_grad=True, generator=DRAW)


def inplace(write):
    """As a function of a leaf: written through a copy of it, so that autograd allows it."""

    def run(x):
        y = x * 1
        write(y)
        return y

    return run


def _zero(y):
    y[:2].zero_()


def _set(y):
    y[1] = 5


def _add(y):
    y[3:6, 0] += 1


def _transposed(y):
    y.t()[1:3].mul_(2)


def _later(y):
    v = y[1:5]
    y.mul_(2)
    v.add_(1)
    y.add_(v.sum())


CASES = {
    "slice": (lambda x: x[1:3], [A]),
    "slice last": (lambda x: x[..., 1:], [A]),
    "slice step": (lambda x: x[1::2, :, ::3], [A]),
    "slice all": (lambda x: x[:, 0:5], [A]),
    "slice none": (lambda x: x[3:3], [A]),
    "select": (lambda x: x[2], [A]),
    "select last": (lambda x: x.select(-1, -1), [A]),
    "narrow": (lambda x: x.narrow(1, 2, 3), [A]),
    "newaxis": (lambda x: x[1, :, None, ::2], [A]),
    "squeeze": (lambda x: x.squeeze(), [ONE]),
    "squeeze dim": (lambda x: x.squeeze(0), [ONE]),
    "squeeze dims": (lambda x: x.squeeze((0, -1)) * 2, [ONE]),
    "squeeze other": (lambda x: x.squeeze(1), [A]),
    "unsqueeze": (lambda x: (x.unsqueeze(0), x.unsqueeze(-1)), [A]),
    "split": (lambda x: x.split(2, 1), [A]),
    "split sizes": (lambda x: x.split([1, 3, 2]), [A]),
    "chunk": (lambda x: x.chunk(3), [A]),
    "chunk last": (lambda x: x.chunk(3, -1), [A]),
    "tensor_split": (lambda x: x.tensor_split(4, 1), [A]),
    "unbind": (lambda x: x.unbind(1), [A]),
    "diagonal": (lambda x: x.diagonal(1, 0, 2), [A]),
    "diagonal negative": (lambda x: x.diagonal(-1), [B]),
    "unfold": (lambda x: x.unfold(1, 3, 2), [A]),
    "unfold of a number": (lambda x: x.sum().unfold(0, 1, 1), [A]),
    "movedim": (lambda x: x.movedim(0, 2)[1], [A]),
    "as_strided": (lambda x: (x * 1).as_strided((3, 2), (2, 1), 3), [B]),
    "as_strided of a slice": (lambda x: (x * 1)[2:].as_strided((3, 2), (2, 1)), [B]),
    "expand": (lambda x: x.expand(4, 5, 3), [ONE]),
    "reshape": (lambda x: x.transpose(0, 1).reshape(30, 4), [A]),
    "contiguous": (lambda x: x.permute(2, 0, 1).contiguous(), [A]),
    "write slice": (inplace(_zero), [B]),
    "write select": (inplace(_set), [B]),
    "write both": (inplace(_add), [B]),
    "write transposed": (inplace(_transposed), [B]),
    "write base, then view": (inplace(_later), [B]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES))
def test_like_torch(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(CASES, 3))
def test_like_torch_under_inference_mode(fn, tensors, mesh, places):
    tensors = [t.detach() for t in tensors]
    with torch.inference_mode():
        assert_like_torch(fn, tensors, mesh, places)


QKV = ((3, ()), (4, (0,)), (2, ()))

LOCAL = {
    "slice of another dim": (lambda x: x[:, :3], [A], ("S0",)),
    "slice of everything": (lambda x: x[0:6], [A], ("S0",)),
    "select of another dim": (lambda x: x[:, 1], [A], ("S2",)),
    "pending": (lambda x: x[1:3, 0].unsqueeze(0).squeeze(0).unbind(1), [A], ("P",)),
    "size 1": (lambda x: x.squeeze(0).unsqueeze(0), [ONE], ("S0",)),
    "split": (lambda x: x.split(2, 1), [A], ("S0",)),
    "unbind": (lambda x: x.unbind(-1), [A], ("S1",)),
    "diagonal": (lambda x: x.diagonal(0, 0, 1), [A], ("S2",)),
    "unfold": (lambda x: x.unfold(0, 2, 2), [A], ("S1",)),
}


@pytest.mark.parametrize(("fn", "tensors", "places"), LOCAL.values(), ids=LOCAL)
def test_stays_local(fn, tensors, places):
    assert communications(fn, tensors, (4,), [places]) == []


@pytest.mark.parametrize("parts", [lambda x: x.chunk(3, -1), lambda x: x.split(8, 1), lambda x: x[:, 8:16]])
def test_fused_qkv_is_split_locally(parts):
    layout = dtorch.Layout.of((4,), (((2, ()),), QKV))
    x = torch.randn(2, 24, requires_grad=True)
    assert_like_torch(parts, [x], (4,), [layout])
    with Graph.default_graph().record() as graph:
        flat(parts(place(x, (4,), layout)))[0].sum().backward()
    assert [c for c in graph.communications() if not c.in_backward and c.cause != "Reduce"] == []
    assert [c for c in graph.communications() if c.in_backward] == []


def test_slice_of_the_cut_dim_moves_the_axis_and_gathers_nothing():
    x = place(torch.randn(32, 32), (4,), ["S1"])
    with Graph.default_graph().record() as graph:
        y = x[:, :16]
    assert [c.kind for c in graph.communications()] == ["all_to_all"]
    assert y.placements == (dtorch.Shard(0),)


P2 = torch.tensor([1.0, 2.0], requires_grad=True)
E0 = torch.randn(0, 3, requires_grad=True, generator=DRAW)

SMALL = {
    "index of two": (lambda x: x[1], [P2]),
    "negative": (lambda x: x[-1], [P2]),
    "slice of two": (lambda x: x[1:], [P2]),
    "unbind two": (lambda x: x.unbind(), [P2]),
    "view": (lambda x: x.view(1, 2), [P2]),
    "split two": (lambda x: x.split(1), [P2]),
    "flip": (lambda x: x.flip(0), [P2]),
    "roll": (lambda x: x.roll(1), [P2]),
    "repeat": (lambda x: x.repeat(3), [P2]),
    "cat": (lambda x: torch.cat([x, x * 2]), [P2]),
    "stack": (lambda x: torch.stack([x, x * 2]), [P2]),
    "pad": (lambda x: torch.nn.functional.pad(x, (1, 1)), [P2]),
    "gather": (lambda x: x.gather(0, torch.tensor([1, 1, 0])), [P2]),
    "index ids": (lambda x: x[torch.tensor([1, 1, 0])], [P2]),
    "index_add": (lambda x: x.index_add(0, torch.tensor([1, 1, 0]), torch.ones(3)), [P2]),
    "squeeze to nothing": (lambda x: x[:1].squeeze(), [P2]),
    "empty slice": (lambda x: x[:, 1:], [E0]),
    "empty split": (lambda x: x.split(2), [E0]),
    "empty cat": (lambda x: torch.cat([x, x, torch.ones(2, 3)]), [E0]),
    "empty embedding": (
        lambda x: torch.nn.functional.embedding(torch.zeros(2, 0, dtype=torch.int64), x),
        [E0],
    ),
    "empty repeat": (lambda x: x.repeat(2, 2), [E0]),
    "repeat 0": (lambda x: x.repeat(0), [P2]),
    "empty tril": (lambda x: x.tril(), [E0]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), over(SMALL, 6))
def test_small_and_empty(fn, tensors, mesh, places):
    assert_like_torch(fn, tensors, mesh, places)


def test_writing_through_a_view_reaches_the_base():
    w = place(torch.ones(8, 9), (2,), ["S0"])
    w.view(4, 2, 9).mul_(torch.arange(4.0).view(4, 1, 1))
    assert torch.equal(w.to_torch()[:, 0], torch.tensor([0.0, 0, 1, 1, 2, 2, 3, 3]))


@pytest.mark.parametrize("where", ["S0", "S1", "R", "P"])
def test_writes_through_slices(where):
    x, plain = place(torch.ones(8, 8), (2,), [where]), torch.ones(8, 8)
    for t in (x, plain):
        early = t[:, 2:5]
        t[:2].zero_()
        t[1] = 5
        t[3:6, 0] += 1
        early += 3
        t[2:4, 2:4] = early[:2, :2] * 2
    torch.testing.assert_close(x.to_torch(), plain)


@pytest.mark.parametrize("where", ["S0", "R", "P"])
def test_slices_of_slices_follow_each_other(where):
    x, plain = place(torch.arange(8.0), (4,), [where]), torch.arange(8.0)
    results = []
    for t in (x, plain):
        a = t[1:7]
        b = a[1:4]
        c = t[2:3]
        b.mul_(10)
        c.add_(1)
        t[3] = -1
        results.append([v.to_torch() if isinstance(v, dtorch.Tensor) else v for v in (t, a, b, c)])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("where", ["S0", "S1", "R", "P"])
def test_squeeze_in_place(where):
    x = place(torch.arange(4.0)[None], (2,), [where])
    x.squeeze_(0)
    assert x.shape == (4,)
    torch.testing.assert_close((x + torch.ones(4)).to_torch(), torch.arange(4.0) + 1)
    x.unsqueeze_(1).t_()
    torch.testing.assert_close(x.to_torch(), torch.arange(4.0)[None])


@pytest.mark.parametrize("where", ["S0", "R"])
def test_complex_views(where):
    plain = torch.randn(6, 3, dtype=torch.complex64)
    x = place(plain, (4,), [where])
    real = torch.view_as_real(x)
    assert torch.equal(real.to_torch(), torch.view_as_real(plain))
    assert real.placements == x.placements
    assert torch.equal(torch.view_as_complex(real).to_torch(), plain)
    torch.testing.assert_close((x.conj() * x).real.to_torch(), (plain.conj() * plain).real)
    real[:, 1].zero_()
    assert torch.equal(x.to_torch()[:, 1], torch.zeros(6, dtype=torch.complex64))


COPIES = {
    "transpose": (lambda x: torch.transpose_copy(x, 0, 2), lambda x: x.transpose(0, 2)),
    "permute": (lambda x: torch.permute_copy(x, (1, 0, 2)), lambda x: x.permute(1, 0, 2)),
    "unsqueeze": (lambda x: torch.unsqueeze_copy(x, 1), lambda x: x.unsqueeze(1)),
    "narrow": (lambda x: torch.narrow_copy(x, 1, 1, 3), lambda x: x.narrow(1, 1, 3)),
    "expand": (lambda x: torch.expand_copy(x[:, :1], (6, 5, 4)), lambda x: x[:, :1].expand(6, 5, 4)),
    "split": (lambda x: torch.split_with_sizes_copy(x, [2, 3], 1)[1], lambda x: x.split([2, 3], 1)[1]),
    "unbind": (lambda x: torch.unbind_copy(x, 1)[2], lambda x: x.unbind(1)[2]),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("where", ["S0", "R"])
def test_copies_of_views_lie_as_the_views_do(name, where):
    call, view = COPIES[name]
    x = place(A.detach(), (4,), [where])
    with Graph.default_graph().record() as graph:
        found = call(x)
    assert graph.communications() == []
    wanted = call(A.detach())
    assert found.placements == view(x).placements
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found.to_torch(), wanted)
    found.zero_()
    torch.testing.assert_close(x.to_torch(), A.detach())
