"""Mixed types, coverage, errors, printing.

plain and distributed operands refuse to mix
    `test_mixing`, `test_plain_targets`, `tests/test_errors.py`
equality and assert helpers crash
    `test_equality`, `tests/test_tensor.py::test_comparisons_take_plain_partners`
an operator without a rule is refused
    `test_as_torch`, every operator of torch's database: `tests/coverage/`; the notice:
    `test_the_general_path_is_seen`
the wrong layer reports; odd custom operators
    `test_shapes_that_only_values_tell`, `test_custom_operators`, `tests/test_errors.py`
print() fails, is too long, or gathers all
    `tests/test_printing.py`, `test_printing`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Replicate, Shard
from dtorch.graph.graph import Graph
from tests.dist import assert_like_torch, place
from tests.hazards.cases import kinds_sent, mesh_of, pending, under


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


MIXES: dict[str, Callable[[Any, Any], Any]] = {
    "d + plain": lambda d, p: d + p,
    "plain + d": lambda d, p: p + d,
    "plain @ d": lambda d, p: p @ d.t(),
    "d @ plain": lambda d, p: d @ p.t(),
    "where(plain, d, 0)": lambda d, p: torch.where(p > 0, d, 0.0),
    "d[plain ids]": lambda d, p: d[torch.tensor([3, 0, 0])],
    "d[plain mask]": lambda d, p: d[p[:, 0] > 0],
    "cat": lambda d, p: torch.cat([d, p]),
    "lora": lambda d, p: torch.nn.functional.linear(d, p) + d @ p.t(),
    "d.data[:] = plain": lambda d, p: d.data.__setitem__(slice(None), p) or d,
    "d.copy_(plain)": lambda d, p: d.copy_(p),
    "d += plain": lambda d, p: d.add_(p),
    "d[1:] = plain": lambda d, p: d.__setitem__(slice(1, None), p[1:]) or d,
    "masked": lambda d, p: d.masked_fill(p > 0, -torch.inf),
    "lerp": lambda d, p: torch.lerp(p, d, 0.25),
    "a number of one element": lambda d, p: d * p[0, 0],
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("places", ["R", "S0", "S1", "P"])
def test_mixing(name: str, places: str) -> None:
    """A plain operand counts as whole on the mesh of the other; it may change afterwards."""
    full, other = torch.randn(4, 3), torch.randn(4, 3)
    d, kept = place(full, (2,), (places,)), other.clone()
    found = MIXES[name](d, other)
    other.zero_()
    assert isinstance(found, dtorch.Tensor)
    torch.testing.assert_close(found.to_torch(), MIXES[name](full, kept))


def test_gradients_of_both() -> None:
    p, q = grad(4, 3), grad(4, 3)
    d = place(q, (2,), ("S0",))
    (d * p).sum().backward()
    assert type(p.grad) is torch.Tensor
    assert isinstance(d.grad, dtorch.Tensor)
    assert torch.equal(p.grad, q.detach())
    assert torch.equal(d.grad.to_torch(), p.detach())


def test_plain_targets() -> None:
    plain, d = torch.ones(4), place(torch.ones(4), (2,), ("S0",))
    with pytest.raises(dtorch.UnsupportedError, match="would write a distributed result into a plain tensor"):
        plain += d
    plain.copy_(d * 3)
    plain[1:3] = d[:2]
    assert plain.tolist() == [3, 1, 1, 3]


def test_equality() -> None:
    d, zero = place(torch.arange(4.0), (2,), ("S0",)), torch.tensor(0.0)
    assert not torch.equal(d, zero)
    assert not torch.equal(zero, d)
    assert torch.equal(d, torch.arange(4.0))
    assert torch.allclose(d, torch.arange(4.0) + 1e-9)
    assert not torch.allclose(d, zero)
    torch.testing.assert_close(d, torch.arange(4.0))
    summed = pending([0.0, 1, 1, 1], [0.0, 0, 1, 2])
    torch.testing.assert_close(summed, dtorch.Tensor(torch.arange(4.0), device_mesh=mesh_of(2)))
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(d, torch.ones(4))


CASES: dict[str, Any] = {
    "select": (lambda x: x.select(1, 1), [grad(4, 3)]),
    "<<": (lambda x: x << 2, [torch.arange(12).view(4, 3)]),
    "masked_fill_": (lambda x: x.masked_fill_(x > 0, 2), [torch.randn(4, 3)]),
    "detach_": (lambda x: (x * 2).detach_() + 1, [torch.randn(4, 3)]),
    "diagonal": (lambda x: x.diagonal(1), [grad(4, 3)]),
    "unbind": (lambda x: x.unbind(1), [grad(4, 3)]),
    "roll": (lambda x: x.roll(2, 0), [grad(4, 3)]),
    "flip": (lambda x: x.flip(0, 1), [grad(4, 3)]),
    "fft": (lambda x: torch.view_as_real(torch.fft.rfft(x)), [grad(4, 6)]),
    "cdist": (torch.cdist, [torch.randn(4, 3), torch.randn(5, 3)]),
    "kron": (torch.kron, [grad(2, 3), grad(2, 2)]),
    "svdvals": (torch.linalg.svdvals, [torch.randn(4, 3)]),
    "solve": (torch.linalg.solve, [torch.randn(3, 3) + 3 * torch.eye(3), grad(3, 2)]),
    "renorm": (lambda x: x.renorm(2, 0, 1.0), [grad(4, 3)]),
    "unflatten": (lambda x: x.unflatten(0, (2, 2)), [grad(4, 3)]),
    "block_diag": (lambda a, b: torch.block_diag(a, b), [grad(2, 3), grad(1, 2)]),
    "nanmedian": (lambda x: x.nanmedian(), [torch.randn(4, 3)]),
    "promotion": (lambda a, b: a + b, [torch.arange(3), grad(4, 3)]),
    "bool and int": (lambda a, b: a * b, [torch.arange(3), torch.randn(4, 3) > 0]),
    "half and float": (lambda a, b: a + b, [torch.randint(-9, 9, (4, 3)).half() / 8, torch.randn(3)]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), under(CASES, 4))
def test_as_torch(fn: Any, tensors: Any, mesh: Any, places: Any) -> None:
    assert_like_torch(fn, tensors, mesh, places)


def test_the_general_path_is_seen() -> None:
    """What has no rule is run whole; the record says what was gathered for which operator."""
    x = place(torch.randn(4, 6), (2,), ("S0",))
    with Graph.default_graph().record() as graph:
        torch.linalg.svdvals(x)
    assert {c.kind for c in graph.communications()} == {"all_gather"}
    converts = [node for node in graph.nodes if node.operator.type == "Convert"]
    assert converts
    assert all(node.operator.implicit for node in converts)


DATA = {
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "mask": lambda x: x[x > 0],
    "argwhere": lambda x: torch.argwhere(x),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("places", ["R", "S0", "S1", "P"])
def test_shapes_that_only_values_tell(name: str, places: str) -> None:
    full = torch.tensor([[0.0, 2, 0], [3, 0, 1], [0, 0, 2]])
    found = DATA[name](place(full, (2,), (places,)))
    assert torch.equal(found.to_torch(), DATA[name](full))


def test_one_message_for_shapes_that_do_not_fit() -> None:
    a, b = place(torch.randn(4, 5), (2,), ("R",)), place(torch.randn(5, 8), (2,), ("S0",))
    assert (a @ b).shape == (4, 8)
    with pytest.raises(RuntimeError) as caught:
        b @ a
    text = str(caught.value)
    assert "5x8 and 4x5" in text
    assert "[5, 8] x [4, 5]" in text
    assert "[Shard(0)], [Replicate()]" in text
    assert f"{__file__}:" in text


LIBRARY = torch.library.Library("dtorch_hazards", "FRAGMENT")
LIBRARY.define("store(Tensor x, Tensor(a!) out, *, Tensor w, float scale) -> ()")


@torch.library.impl(LIBRARY, "store", "CompositeExplicitAutograd")
def _store(x: torch.Tensor, out: torch.Tensor, *, w: torch.Tensor, scale: float) -> None:
    out.copy_(x * w * scale)


STORED: list[torch.Tensor] = []


@torch.library.custom_op("dtorch_hazards::note", mutates_args=())
def _note(x: torch.Tensor) -> None:
    STORED.append(x.clone())


@torch.library.custom_op("dtorch_hazards::pair", mutates_args=())
def _pair(xs: list[torch.Tensor], k: int) -> list[torch.Tensor]:
    return [x * k for x in xs]


@_pair.register_fake
def _(xs: list[torch.Tensor], k: int) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in xs]


@pytest.mark.parametrize("places", ["R", "S0", "S1", "P"])
@pytest.mark.parametrize("target", ["R", "S0", "P"])
def test_custom_operators(places: str, target: str) -> None:
    full, w = torch.randn(4, 3), torch.randn(4, 3)
    x, out = place(full, (2,), (places,)), place(torch.zeros(4, 3), (2,), (target,))
    for _ in range(3):
        assert torch.ops.dtorch_hazards.store(x, out, w=w, scale=2.0) is None
        torch.testing.assert_close(out.to_torch(), full * w * 2)
        out.zero_()
    one, two = torch.ops.dtorch_hazards.pair([x, out], 3)
    torch.testing.assert_close(one.to_torch(), full * 3)
    assert not two.to_torch().any()


@pytest.mark.parametrize("places", ["R", "S0", "P"])
def test_what_neither_gives_nor_writes_runs_all_the_same(places: str) -> None:
    full = torch.randn(4, 3)
    STORED.clear()
    for count in range(1, 4):
        torch.ops.dtorch_hazards.note(place(full, (2,), (places,)))
        Graph.default_graph().sync()
        assert len(STORED) == count
        torch.testing.assert_close(STORED[-1], full)


@pytest.mark.parametrize(
    "x",
    [
        dtorch.Tensor(torch.randn(5, 3), device_mesh=mesh_of(4), placements=[Shard(0)]),
        pending([1.0, 2], [3.0, -1]),
        dtorch.Tensor(torch.zeros(0, 3), device_mesh=mesh_of(2), placements=[Shard(0)]),
        dtorch.Tensor(torch.tensor([True, False]), device_mesh=mesh_of(2)),
        dtorch.Tensor(torch.randn(3), device_mesh=mesh_of(2), requires_grad=True),
        dtorch.zeros(3000, 3000, device_mesh=mesh_of(4), placements=[Shard(1)]),
        dtorch.Tensor(torch.tensor(1.5), device_mesh=mesh_of(2)),
    ],
    ids=["uneven", "pending", "empty", "bool", "grad", "huge", "number"],
)
def test_printing(x: dtorch.Tensor) -> None:
    for text in (repr(x), str(x), f"{x!r}"):
        assert str(list(x.shape)) in text or x.dim() == 0
        assert repr(x.placements[0]) in text or f"{x}" != repr(x)
        assert len(text) < 2000
    with Graph.default_graph().record() as graph:
        repr(x)
    assert sum(c.bytes for c in graph.communications()) < 100_000
    assert x.placements != [Replicate()] or not kinds_sent(lambda: repr(x))
