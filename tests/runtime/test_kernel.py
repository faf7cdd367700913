"""Kernels: which one serves a shard, what an empty shard gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from dtorch.testing import assert_tensor_allclose as close
from tests.dist import place


@pytest.mark.parametrize(
    "pad",
    [
        lambda x: F.pad(x, (0, 2, 0, 1), "reflect"),
        lambda x: F.pad(x, (0, 2, 0, 1), "replicate"),
        lambda x: F.pad(x, (0, 2, 0, 1)),
    ],
)
@pytest.mark.parametrize("batch", [0, 2])
def test_kernels_that_refuse_empty_shards_are_not_asked(
    pad: Callable[[torch.Tensor], torch.Tensor], batch: int
) -> None:
    full = torch.randn(batch, 3, 3, 3)
    x = place(full, (4,), ("S1",)).requires_grad_()
    y = pad(x)
    close(y, pad(full))
    assert [tuple(y.to_local(i).shape) for i in (0, 3)] == [(batch, 1, 4, 5), (batch, 0, 4, 5)]
    y.sum().backward()
    plain = full.clone().requires_grad_()
    pad(plain).sum().backward()
    close(x.grad, plain.grad)


def test_what_is_written_keeps_its_empty_shards() -> None:
    full = torch.randn(3, 2)
    x = place(full, (4,), ("S0",))
    view = x[:, 0]
    assert x.add_(1) is x
    close(view, full[:, 0] + 1)
