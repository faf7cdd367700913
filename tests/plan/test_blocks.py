"""Kept memory: a block is given again when nothing lies in it, and let go when nobody takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtorch.inductor.listing import PRESENT
from dtorch.plan.blocks import Blocks

SHAPE, STRIDE = (4, 6), (1, 4)


def take(blocks: Blocks, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return blocks.taker(SHAPE, STRIDE, dtype)()


def test_a_tensor_is_as_asked_for() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        found = take(Blocks(), dtype)
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
    blocks = Blocks()
    held = hold(take(blocks).fill_(7.0))
    other = take(blocks).fill_(0.0)
    assert blocks.nbytes == 0
    del other
    assert blocks.nbytes == 96
    del held
    assert blocks.nbytes == 2 * 96


def test_a_free_block_is_given_again() -> None:
    blocks = Blocks()
    address = take(blocks).data_ptr()
    assert take(blocks).data_ptr() == address


def test_a_block_that_was_shared_is_not_given_again() -> None:
    """Another process may have mapped it, and there the value has to stay."""
    blocks = Blocks()
    shared = take(blocks).share_memory_()
    address = shared.data_ptr()
    del shared
    other = take(blocks)
    assert other.data_ptr() != address
    assert blocks.nbytes == 0


def test_what_nobody_takes_is_let_go() -> None:
    blocks = Blocks()
    both = [take(blocks), take(blocks)]
    del both
    for _ in range(4):
        take(blocks)
        blocks.settle()
    assert blocks.nbytes == 96


def test_where_nothing_has_data_none_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PRESENT, "listing", True)
    blocks = Blocks()
    assert take(blocks).stride() == STRIDE
    assert blocks.nbytes == 0
