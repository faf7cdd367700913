"""Samples of operators that look things up: indexing, gather, scatter, embedding, sort."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from dtorch.testing.samples import Sample, Values


def _writes(r: Values) -> Any:
    x = r.constant(6, 5)
    x[r.ints(6, 3)] = r.constant(5)
    x[r.mask(6, 5)] = 0.5
    x[:, torch.tensor([3, 0])] += 1
    x.index_add_(0, r.ints(6, 4), r.constant(4, 5), alpha=2)
    x.index_copy_(1, torch.tensor([4, 1]), r.constant(6, 2))
    x.index_fill_(0, torch.tensor([2]), 3.0)
    x.scatter_(1, r.ints(5, 6, 2), r.constant(6, 2)).scatter_add_(0, r.ints(6, 3, 5), r.constant(3, 5))
    x.index_put_((r.ints(6, 4),), r.constant(4, 5), accumulate=True)
    return x.scatter_(1, r.ints(5, 6, 1), 2.5)


def _distinct(stop: int, *shape: int) -> torch.Tensor:
    """Indices along the last dim, none of them twice in a row."""
    return torch.rand(*shape[:-1], stop, generator=torch.Generator().manual_seed(3)).argsort(-1)[
        ..., : shape[-1]
    ]


SAMPLES: dict[str, Sample] = {
    "index": lambda r: [
        r(6, 5)[r.ints(6, 3)],
        r(6, 5, 4)[:, r.ints(5, 2)],
        r(6, 5)[r.ints(6, 3), r.ints(5, 3)],
        r(6, 5, 4)[r.ints(6, 2, 3)],
        r(6, 5)[r.mask(6)],
        r(6, 5)[:, None, ::2],
        r(6, 5, 4)[r.ints(6, 3), :, r.ints(4, 3)],
        r(6, 5)[-r.ints(6, 3)],
    ],
    "index writes": _writes,
    "index_select": lambda r: [r(6, 5).index_select(0, r.ints(6, 3)), r(6, 5).index_select(1, r.ints(5, 7))],
    "index_put": lambda r: [
        r(6, 5).index_put((torch.tensor([1, 4, 0]),), r(3, 5)),
        r(6, 5).index_put((r.ints(6, 7),), r(5), accumulate=True),
        r(6, 5).index_put((torch.tensor([1, 4]), torch.tensor([0, 3])), r(2)),
    ],
    "index_add": lambda r: [
        r(6, 5).index_add(0, r.ints(6, 4), r(4, 5)),
        r(6, 5).index_add(1, r.ints(5, 3), r(6, 3), alpha=2),
    ],
    "index_copy": lambda r: r(6, 5).index_copy(0, torch.tensor([4, 1, 3]), r(3, 5)),
    "index_fill": lambda r: r(6, 5).index_fill(1, torch.tensor([0, 4]), 2.0),
    "gather": lambda r: [
        r(6, 5).gather(1, r.ints(5, 6, 3)),
        r(6, 5).gather(0, r.ints(6, 3, 5)),
        r(6, 5, 4).gather(1, r.ints(5, 2, 7, 3)),
        torch.take_along_dim(r(6, 5), r.ints(5, 6, 2), 1),
    ],
    "scatter": lambda r: [
        r(6, 5).scatter(1, _distinct(5, 6, 3), r(6, 3)),
        r(6, 5).scatter(1, _distinct(5, 6, 2), 2.0),
        r(6, 5).scatter(0, r.ints(6, 1, 5), r(1, 5)),
        r(6, 5).scatter(1, _distinct(5, 4, 2), r.constant(6, 5)),
    ],
    "scatter_add": lambda r: [
        r(6, 5).scatter_add(1, r.ints(5, 6, 3), r(6, 3)),
        r(6, 5).scatter_add(0, r.ints(6, 3, 4), r.constant(4, 5)),
    ],
    "scatter_reduce": lambda r: [
        r(6, 5).scatter_reduce(1, r.ints(5, 6, 3), r(6, 3), how, include_self=own)
        for how in ("sum", "amax", "mean", "prod")
        for own in (True, False)
    ],
    "take": lambda r: [
        torch.take(r(6, 5), r.ints(30, 4)),
        r.constant(6, 5).put(r.ints(30, 4), r.constant(4)),
    ],
    "masked": lambda r: [
        r(6, 5).masked_select(r.mask(6, 5)),
        r(6, 5).masked_scatter(r.mask(6, 5), r(30)),
        r.mask(6, 5).nonzero(),
    ],
    "select_scatter": lambda r: [
        r(6, 5).select_scatter(r(5), 0, 2),
        r(6, 5).slice_scatter(r(2, 5), 0, 1, 3),
        r(6, 6).diagonal_scatter(r(6)),
    ],
    "embedding": lambda r: [
        F.embedding(r.ints(7, 4, 3), r(7, 5)),
        F.embedding(r.ints(7, 4), r(7, 5), padding_idx=2),
        F.embedding(torch.tensor([1, 3, 1, 5, 3]), r(7, 4), scale_grad_by_freq=True),
        F.embedding(r.ints(7), r(7, 5)),
    ],
    "one_hot": lambda r: F.one_hot(r.ints(6, 4, 3), 6),
    "sort": lambda r: [
        r(4, 5).sort(),
        r(4, 5).sort(0, descending=True),
        r(4, 5).argsort(),
        r(4, 5).topk(2),
        r(6, 5).topk(3, 0, False),
        r(4, 5).kthvalue(2),
        r(4, 5).msort(),
    ],
    "searchsorted": lambda r: [
        torch.searchsorted(r.constant(4, 5).sort().values, r.constant(4, 3)),
        torch.searchsorted(r.constant(7).sort().values, r.constant(4, 3), right=True),
        torch.searchsorted(r.constant(4, 5), r.constant(4, 3), sorter=r.ints(5, 4, 5)),
    ],
    "unique": lambda r: [
        r.ints(4, 7).unique(),
        r.ints(4, 7).bincount(minlength=5),
        r.constant(7).histc(4, -2, 2),
    ],
    "isin": lambda r: torch.isin(r.ints(9, 4, 5), r.ints(9, 3)),
}
