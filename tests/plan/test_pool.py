"""Kept memory: a block is given again when nothing lies in it, and let go when nobody takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtorch.inductor.listing import PRESENT
from dtorch.plan.pool import Pool

SHAPE, STRIDE = (4, 6), (1, 4)


def take(pool: Pool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return pool.taker(SHAPE, STRIDE, dtype)()


def test_a_tensor_is_as_asked_for() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        found = take(Pool(), dtype)
        assert (found.shape, found.stride(), found.dtype) == (SHAPE, STRIDE, dtype)
        assert found.untyped_storage().nbytes() == 24 * dtype.itemsize
        assert found._version == torch.empty(0).set_(torch.empty(1)).detach()._version


@pytest.mark.parametrize(
    "hold",
    [
        lambda t: t,
        lambda t: t.t()[1:],
        lambda t: t.untyped_storage(),
        lambda t: t.numpy(),
        lambda t: t.detach(),
    ],
    ids=["tensor", "view", "storage", "array", "alias"],
)
def test_what_is_held_is_not_given_again(hold: Any) -> None:
    pool = Pool()
    held = hold(take(pool).fill_(7.0))
    other = take(pool).fill_(0.0)
    assert pool.nbytes == 0
    del other
    assert pool.nbytes == 96
    del held
    assert pool.nbytes == 2 * 96


def test_a_free_block_is_given_again() -> None:
    pool = Pool()
    address = take(pool).data_ptr()
    assert take(pool).data_ptr() == address


def test_a_block_that_was_shared_is_not_given_again() -> None:
    """Another process may have mapped it, and there the value has to stay."""
    pool = Pool()
    shared = take(pool).share_memory_()
    address = shared.data_ptr()
    del shared
    other = take(pool)
    assert other.data_ptr() != address
    assert pool.nbytes == 0


def test_what_nobody_takes_is_let_go() -> None:
    pool = Pool()
    both = [take(pool), take(pool)]
    del both
    for _ in range(4):
        take(pool)
        pool.settle()
    assert pool.nbytes == 96


def test_where_nothing_has_data_none_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PRESENT, "listing", True)
    pool = Pool()
    assert take(pool).stride() == STRIDE
    assert pool.nbytes == 0
