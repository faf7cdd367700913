"""New calls that are likely to come again are tried on zeros, and recorded: values and metadata are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dtorch
from dtorch import DeviceMesh, Replicate, Shard
from dtorch.graph import lines, trial
from dtorch.graph.constructor import GraphConstructor
from dtorch.testing import assert_tensor_equal as equal
from tests.plan.test_differential import STEPS, same
from tests.programs import Program
from tests.support import cases

pytestmark = pytest.mark.recorded
MESH = DeviceMesh("cpu", [0, 1])
ROWS = Shard(0)


@pytest.fixture(autouse=True)
def _all_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new call is expected to come again, and every call is new."""
    GraphConstructor.forget()
    monkeypatch.setattr(lines, "returns", lambda *_: True)


def spread(values: torch.Tensor, placement: Any = ROWS) -> dtorch.Tensor:
    return dtorch.Tensor(values, MESH, [placement])


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def waiting(x: torch.Tensor) -> bool:
    return x._operand.parts is None  # type: ignore[attr-defined]


def test_new_calls_wait() -> None:
    x = spread(values(4, 3))
    y = x + 1.0
    z = (y.t() @ x).relu()
    assert waiting(y)
    assert waiting(z)
    assert len(x.graph.constructor.pending.nodes) >= 4
    torch.testing.assert_close(z.to_torch(), ((values(4, 3) + 1.0).t() @ values(4, 3)).relu())


CALLS: dict[str, Callable[[Any], Any]] = {
    "strides that torch infers wrongly": lambda x: torch.fft.fft2(x.unflatten(0, (2, 2)), dim=(0, 2)).real,
    "a sort": lambda x: x.sort(0)[0],
    "attention": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 3, 2).transpose(1, 2)] * 3),
    "a write": lambda x: x.clone().add_(x).mul_(2.0),
    "a write through a view": lambda x: (y := x.clone(), y[1:3].zero_())[0],
    "a matrix that must not be zero": lambda x: torch.linalg.inv(x.t() @ x + torch.eye(3)),
    "an index": lambda x: x[torch.tensor([3, 0])],
    "a pending sum": lambda x: x.sum(0) * 2.0,
    "several results": lambda x: torch.cat(x.split(2, 0)[::-1]),
    "nothing in it": lambda x: x[:0] * 2.0,
}


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_tried_is_what_runs(name: str, placement: Any) -> None:
    full = values(4, 3)
    found = CALLS[name](spread(full, placement) * 1.0)
    expected = CALLS[name](full * 1.0)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if placement == Replicate():
        assert found.stride() == expected.stride()
    torch.testing.assert_close(found.to_torch(), expected)


def test_a_trial_writes_nothing() -> None:
    torch.manual_seed(0)
    plain = torch.nn.BatchNorm1d(3)
    ours = dtorch.parallelize(torch.nn.BatchNorm1d(3), MESH, {})
    x = values(4, 3)
    for length in (4, 2, 3):
        torch.testing.assert_close(ours(spread(x[:length]) * 1.0).to_torch(), plain(x[:length] * 1.0))
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name).to_torch(), buffer)


def test_what_fails_is_told_where_it_is_read() -> None:
    x = spread(values(4, 3), Replicate())
    index = spread(torch.tensor([0, 7]), Replicate()) * 1
    found = F.embedding(index, x)
    with pytest.raises(IndexError, match=r"test_trial\.py"):
        found.to_torch()


def test_numbers_are_drawn_once() -> None:
    x = spread(values(4, 3)) * 1.0
    torch.manual_seed(5)
    found = [F.dropout(x, 0.5), torch.rand_like(x), torch.bernoulli(x.sigmoid()), torch.rand_like(x)]
    full = values(4, 3) * 1.0
    torch.manual_seed(5)
    wanted = [F.dropout(full, 0.5), torch.rand_like(full), torch.bernoulli(full.sigmoid())]
    wanted.append(torch.rand_like(full))
    for a, b in zip(found, wanted, strict=True):
        equal(a.to_torch(), b)


_ran: list[int] = []


@torch.library.custom_op("dtorch_trial::noting", mutates_args=())
def noting(x: torch.Tensor) -> torch.Tensor:
    _ran.append(x.numel())
    return x.clone()


noting.register_fake(torch.empty_like)


def test_operators_of_users_are_not_tried() -> None:
    _ran.clear()
    x = spread(values(4, 3), Replicate()) * 1.0
    equal(noting(x).to_torch(), values(4, 3))
    assert _ran == [12]


def test_what_is_large_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MAX_TRIAL_BYTES", 40)
    assert not waiting(spread(values(4, 3)) * 1.0)  # an output of 48 bytes
    assert waiting(spread(values(2, 3)) * 1.0)


@pytest.mark.parametrize("seed", range(cases(20)))
def test_random_programs(seed: int) -> None:
    expected = Program(seed, eager=True).run(STEPS)
    for flushes in (None, seed):
        GraphConstructor.forget()
        program = Program(seed, eager=False, flushes=flushes)
        same(program.run(STEPS), expected, program)
