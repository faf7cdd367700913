"""Pending sums, that an operator must reduce first unless it is linear.

a scalar added once per device
    `test_a_number_is_added_once`, `test_as_torch[plus ...]`
non-linear in-place operators per device
    `test_in_place_on_a_pending_sum`, `test_a_view_sees_the_write`
norm of the local norms
    `test_norms`, `tests/test_training.py::test_norms_of_pending_gradients_are_those_of_the_sum`
max, min, clip before the sum
    `test_extremes`, `tests/ops/test_reduce.py::test_extremes_of_a_pending_sum`
a rule that holds only for parts of one sign
    `test_element_wise`, `test_as_torch`; the judge: `tests/ops/test_rules.py`
bucket numbers summed
    `test_buckets`
a cast forces the reduction in low precision
    `test_a_widening_cast_stays_pending`
`copy_` between pending sums reduces both; einsum's backward
    `test_copy_of_one_into_another`, `test_as_torch[einsum]`
the bias added once per device
    `test_as_torch[linear, addmm, baddbmm]`
a narrowing cast, a rounding division per device
    `test_narrowing_reduces_first`, `test_as_torch[rounding ...]`
constants once per device
    `test_constants`, `test_as_torch[masked ...]`
running statistics written unseen
    `tests/test_hidden_writes.py` (found by comparing inputs before and after)
surroundings of a later time
    `test_surroundings_of_a_later_time`, `test_asked_for_on_another_thread`,
    `tests/test_surroundings.py`
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import dtorch
from dtorch import Partial, Replicate, Shard
from tests.dist import assert_like_torch, plain
from tests.hazards.cases import kinds_sent, mesh_of, pending, under


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


NUMBERS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "s + 10": (lambda s: s + 10, 55),
    "s + tensor(10)": (lambda s: s + torch.tensor(10.0), 55),
    "10 + s": (lambda s: 10 + s, 55),
    "s - 10": (lambda s: s - 10, 35),
    "10 - s": (lambda s: 10 - s, -35),
    "s.add_(10)": (lambda s: s.add_(10), 55),
    "s.sub_(10)": (lambda s: s.sub_(10), 35),
}


@pytest.mark.parametrize(("fn", "result"), NUMBERS.values(), ids=NUMBERS)
def test_a_number_is_added_once(fn: Callable[[Any], Any], result: float) -> None:
    assert fn(pending(10.0, 35.0)).item() == result  # the sums of 0..4 and 5..9
    x = dtorch.Tensor(torch.arange(10.0).view(10, 1), device_mesh=mesh_of(2), placements=[Shard(0)])
    assert fn(x.sum()).item() == result


@pytest.mark.parametrize(
    ("write", "result"),
    [
        (lambda x: x.clamp_(max=6), 6),
        (lambda x: x.relu_(), 12),
        (lambda x: x.pow_(2), 144),
        (lambda x: x.sqrt_(), 12**0.5),
        (lambda x: x.fill_(3), 3),
        (lambda x: x.add_(1), 13),
        (lambda x: x.mul_(x), 144),
        (lambda x: x.bernoulli_(1.0), 1),
    ],
)
def test_in_place_on_a_pending_sum(write: Callable[[Any], Any], result: float) -> None:
    x = pending([5.0], [7.0])
    view, alias = x.view(1, 1), x.detach()
    assert write(x) is x
    assert [t.item() for t in (x, view, alias)] == pytest.approx([result] * 3)


def test_a_view_sees_the_write() -> None:
    x = pending([1.0, -4.0], [2.0, 1.0])
    x[1:].relu_()
    assert x.tolist() == [3, 0]


def test_norms() -> None:
    x = pending([1.0, 3.0], [2.0, 1.0])
    assert x.norm().item() == torch.linalg.vector_norm(x).item() == 5
    assert [n.item() for n in torch._foreach_norm([x, x])] == [5, 5]
    leaf = dtorch.Tensor(torch.zeros(2), device_mesh=mesh_of(2), requires_grad=True)
    with dtorch.no_sync():
        leaf.backward(x)
    assert leaf.grad.placements == [Partial()]
    assert torch.nn.utils.clip_grad_norm_([leaf], 1.0).item() == 5
    torch.testing.assert_close(leaf.grad.to_torch(), torch.tensor([0.6, 0.8]))


def test_extremes() -> None:
    x = pending([1.0, 5.0], [4.0, 0.0])
    assert [f().item() for f in (x.max, x.min, x.argmax, x.prod, x.var)] == [5, 5, 0, 25, 0]
    assert x.clamp(max=4).tolist() == [4, 4]


ELEMENT_WISE: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "abs": (torch.abs, [2, 2]),
    "relu": (torch.relu, [2, 0]),
    "sign": (torch.sign, [1, -1]),
    "square": (torch.square, [4, 4]),
    "x * x": (lambda x: x * x, [4, 4]),
    "1 / x": (lambda x: 1 / x, [0.5, -0.5]),
    "x > 0": (lambda x: x > 0, [True, False]),
    "x == 2": (lambda x: x == 2, [True, False]),
    "where": (lambda x: torch.where(x > 0, x, 7.0), [2, 7]),
    "where of bools": (lambda x: torch.where(x.bool(), 1.0, 0.0), [1, 1]),
    "exp": (lambda x: x.exp().log().round(), [2, -2]),
    "neg": (torch.neg, [-2, 2]),
}


@pytest.mark.parametrize(("fn", "result"), ELEMENT_WISE.values(), ids=ELEMENT_WISE)
def test_element_wise(fn: Callable[[Any], Any], result: list[Any]) -> None:
    assert fn(pending([3.0, -3.0], [-1.0, 1.0])).tolist() == result


def test_buckets() -> None:
    boundaries = torch.tensor([1.5])
    assert torch.bucketize(pending([1.0], [1.0]), boundaries).tolist() == [1]
    assert torch.searchsorted(boundaries, pending([1.0], [1.0])).tolist() == [1]
    assert torch.bucketize(torch.tensor([2.0]), pending([1.0, 1.0], [0.0, 0.5])).tolist() == [2]


@pytest.mark.parametrize("last", [1 / 3, 100.0])
def test_a_widening_cast_stays_pending(last: float) -> None:
    parts = [torch.tensor([value] * 8).bfloat16() for value in (*[1 / 3] * 7, last)]
    x = pending(*parts, dtype=torch.bfloat16).requires_grad_()
    wide = x.float()
    assert wide.placements == [Partial()]
    exact = sum(part.float() for part in parts)
    assert last < 1 or not torch.equal(exact, exact.bfloat16().float())  # a sum in bfloat16 rounds
    for placement in (Replicate(), Shard(0)):
        assert torch.equal(wide.redistribute(placements=[placement]).to_torch(), exact)
    wide.sum().backward()
    assert x.grad.dtype == torch.bfloat16
    assert x.grad.tolist() == [1] * 8


@pytest.mark.parametrize(
    ("cast", "result"),
    [
        (lambda x: x.bfloat16(), torch.tensor([256.0 + 256.0, 3.0]).bfloat16()),
        (lambda x: x.half(), torch.tensor([512.0, 3.0]).half()),
        (lambda x: x.int(), torch.tensor([512, 3], dtype=torch.int32)),
        (lambda x: x.bool(), torch.tensor([True, True])),
        (lambda x: torch.div(x, 2, rounding_mode="floor"), torch.tensor([256.0, 1.0])),
        (lambda x: torch.div(x, 2, rounding_mode="trunc"), torch.tensor([256.0, 1.0])),
        (lambda x: x // 2, torch.tensor([256.0, 1.0])),
        (lambda x: x.round(), torch.tensor([512.0, 3.0])),
    ],
)
def test_narrowing_reduces_first(cast: Callable[[Any], Any], result: torch.Tensor) -> None:
    """The parts alone would round to something else, and 0.75 four times to 0 or 4."""
    found = cast(pending(*[[128.0, 0.75]] * 4))
    assert found.dtype == result.dtype
    assert torch.equal(found.to_torch(), result)


def test_copy_of_one_into_another() -> None:
    a, b = pending([1.0, 2.0], [3.0, 4.0]), pending([5.0, -6.0], [7.0, 8.0])
    view = a.view(2, 1)
    assert not kinds_sent(lambda: a.copy_(b))
    assert a.tolist() == [12, 2]
    assert view.tolist() == [[12], [2]]
    assert b.placements == [Partial()]
    b.zero_()
    assert a.tolist() == [12, 2]


@pytest.mark.parametrize(
    ("make", "result"),
    [
        (torch.zeros_like, [0, 0]),
        (torch.ones_like, [1, 1]),
        (lambda x: torch.full_like(x, 3), [3, 3]),
        (lambda x: x.new_ones(2), [1, 1]),
        (lambda x: x.new_full((2,), 4.0), [4, 4]),
        (lambda x: x * 0, [0, 0]),
        (lambda x: x.masked_fill(torch.tensor([True, False]), 0), [0, 3]),
        (lambda x: x.masked_fill(torch.tensor([True, False]), 1), [1, 3]),
        (lambda x: x.masked_fill_(torch.tensor([True, False]), 1), [1, 3]),
        (lambda x: x.index_fill(0, torch.tensor([1]), 5), [3, 5]),
        (lambda x: F.pad(x, (0, 1), value=9.0), [3, 3, 9]),
        (lambda x: torch.empty_like(x).copy_(x), [3, 3]),
    ],
)
def test_constants(make: Callable[[Any], Any], result: list[float]) -> None:
    assert make(pending([1.0, 4.0], [2.0, -1.0])).tolist() == result


CASES = {
    "einsum": (lambda x, w: torch.einsum("bld,dnh->blnh", x, w), [grad(2, 3, 4), grad(4, 2, 3)]),
    "linear": (F.linear, [grad(2, 8), grad(4, 8), grad(4)]),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=3, alpha=2), [grad(5), grad(2, 6), grad(6, 5)]),
    "baddbmm": (
        lambda b, x, w: torch.baddbmm(b, x, w, beta=3, alpha=2),
        [grad(2, 3, 5), grad(2, 3, 4), grad(2, 4, 5)],
    ),
    "addmv": (lambda b, x, v: torch.addmv(b, x, v, beta=3, alpha=2), [grad(5), grad(5, 4), grad(4)]),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=2), [grad(3, 5), grad(3, 5), grad(5)]),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), [grad(3, 5), grad(3, 5)]),
    "plus alpha": (lambda a, b: torch.add(a, b, alpha=3) - 2 * b, [grad(3, 5), grad(5)]),
    "plus a number": (lambda a: 2 - (a + 10) * 3, [grad(3, 5)]),
    "rounding division": (lambda a: torch.div(a, 2, rounding_mode="floor"), [torch.randn(3, 5) * 9]),
    "masked by 0": (lambda a, m: a.masked_fill(m, 0), [grad(3, 5), torch.rand(3, 5) > 0.5]),
    "masked by 1": (lambda a, m: a.masked_fill(m, 1), [grad(3, 5), torch.rand(5) > 0.5]),
    "condition": (lambda c, a: torch.where(c > 0, a, -a), [torch.randn(3, 5), grad(3, 5)]),
    "in place": (lambda a: a.relu_().add_(1).mul_(a), [torch.randn(3, 5)]),
    "absolute": (lambda a: a.abs().exp(), [grad(3, 5)]),
    "norm": (lambda a: torch.linalg.vector_norm(a, dim=1), [grad(3, 5)]),
    "copies": (lambda a, b: a.copy_(b), [torch.randn(3, 5), torch.randn(3, 5)]),
}


@pytest.mark.parametrize(("fn", "tensors", "mesh", "places"), under(CASES))
def test_as_torch(fn: Any, tensors: Any, mesh: Any, places: Any) -> None:
    assert_like_torch(fn, tensors, mesh, places)


class _Seen(TorchDispatchMode):
    """Counts what it sees of plain tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


LATER: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "meta": lambda: torch.device("meta"),
    "a user's mode": _Seen,
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
}


@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("places", [Replicate(), Shard(0), Shard(1), Partial()], ids=str)
def test_surroundings_of_a_later_time(later: str, places: Any) -> None:
    """What was recorded runs as at the time of recording, whenever its value is asked for."""
    full = torch.randn(5, 5)
    want = ((full @ full).exp() / full.softmax(1)).sum(0)
    for _ in range(3):  # interpreted, then by a plan
        x = dtorch.Tensor(full, device_mesh=mesh_of(2), placements=[places])
        y = ((x @ x).exp() / x.softmax(1)).sum(0)
        with LATER[later]():
            y.to_local(0)
        found = y.to_torch()
        assert found.dtype == want.dtype
        assert not found.is_inference()
        torch.testing.assert_close(found, want)


def _on_another_thread(x: torch.Tensor) -> list[torch.Tensor]:
    """Recorded here; differentiated and asked for there, where autocast is on."""
    y = (x @ x).tanh()
    found: list[torch.Tensor] = []

    def ask() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            found.append(plain(y))
            y.sum().backward()
            found.append(plain(x.grad))  # type: ignore[arg-type]

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found


@pytest.mark.parametrize("places", [Replicate(), Shard(0), Partial()], ids=str)
def test_asked_for_on_another_thread(places: Any) -> None:
    full = torch.randn(5, 5)
    x = dtorch.Tensor(full, device_mesh=mesh_of(2), placements=[places], requires_grad=True)
    values, gradients = zip(
        _on_another_thread(x), _on_another_thread(full.clone().requires_grad_()), strict=True
    )
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients, rtol=2e-2, atol=2e-2)  # torch's backward is under autocast there
