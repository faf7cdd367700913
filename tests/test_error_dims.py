"""A dim or index out of range is refused as torch refuses it, whether or not the dim that is meant is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.places import MATRIX_PLACES, Place, randn

NAMES = [
    "softmax", "log_softmax", "logsumexp", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp",
    "sort", "argsort", "argmax", "argmin", "max", "min", "median", "mode", "sum", "mean", "amax",
    "amin", "all", "any", "prod", "var", "std", "unbind", "flip", "aminmax", "unsqueeze", "squeeze",
]  # fmt: skip

_ZERO = torch.zeros(1, 1, dtype=torch.long)
_FIRST = torch.tensor([0])

CALLS: dict[str, Callable[[Any, int], Any]] = {
    **{name: lambda x, d, name=name: getattr(torch, name)(x, d) for name in NAMES},
    "topk": lambda x, d: x.topk(1, d),
    "kthvalue": lambda x, d: x.kthvalue(1, d),
    "gather": lambda x, d: x.gather(d, _ZERO),
    "scatter": lambda x, d: x.scatter(d, _ZERO, 1.0),
    "index_select": lambda x, d: x.index_select(d, _FIRST),
    "index_add": lambda x, d: x.index_add(d, _FIRST, x[:1]),
    "index_fill": lambda x, d: x.index_fill(d, _FIRST, 1.0),
    "cat": lambda x, d: torch.cat([x, x], d),
    "stack": lambda x, d: torch.stack([x, x], d),
    "split": lambda x, d: x.split(1, d),
    "chunk": lambda x, d: x.chunk(2, d),
    "narrow": lambda x, d: x.narrow(d, 0, 1),
    "select": lambda x, d: x.select(d, 0),
    "select_scatter": lambda x, d: torch.select_scatter(x, x[0], d, 0),
    "slice_scatter": lambda x, d: torch.slice_scatter(x, x[:1], d, 0, 1),
    "roll": lambda x, d: x.roll(1, d),
    "transpose": lambda x, d: x.transpose(0, d),
    "permute": lambda x, d: x.permute(0, d),
    "vector_norm": lambda x, d: torch.linalg.vector_norm(x, 2, d),
    "flatten": lambda x, d: x.flatten(0, d),
    "unfold": lambda x, d: x.unfold(d, 1, 1),
    "softmax to another dtype": lambda x, d: torch.softmax(x, d, dtype=torch.float64),
    "cosine_similarity": lambda x, d: F.cosine_similarity(x, x, d),
    "layer_norm": lambda x, d: F.layer_norm(x, (d,)),
    "take_along_dim": lambda x, d: torch.take_along_dim(x, _ZERO, d),
}


@pytest.mark.parametrize("place", MATRIX_PLACES[1:], ids=str)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dim", [2, -3, 7])
def test_dims_out_of_range(place: Place, name: str, dim: int) -> None:
    x = randn(5, 4)
    try:
        CALLS[name](x, dim)
    except Exception as error:
        with pytest.raises(type(error)):
            CALLS[name](place.put(x), dim)
    else:
        CALLS[name](place.put(x), dim)  # unsqueeze and stack have one dim more
