"""Samples of operators that reduce or run along a dim."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dtorch.testing.samples import Sample

_DIMS = ("sum", "mean", "amax", "amin", "var", "std", "norm", "nansum")


def _reduction(name: str) -> Sample:
    def call(x: torch.Tensor, **options: object) -> torch.Tensor:
        return getattr(x, name)(**options)

    return lambda r: [
        call(r(4, 5)),
        call(r(4, 5, 6), dim=1),
        call(r(4, 5, 6), dim=(0, 2), keepdim=True),
        call(r(4, 5), dim=-1, keepdim=True),
        call(r(7)),
    ]


SAMPLES: dict[str, Sample] = {
    **{name: _reduction(name) for name in _DIMS},
    "sum dtype": lambda r: [
        r.ints(9, 4, 5).sum(),
        r.mask(4, 5).sum(1),
        r(4, 5).float().sum(0, dtype=torch.float64),
        r(4, 5).sum(()),
        r.ints(9, 4, 5).double().mean(0),
        r().sum(),
    ],
    "prod": lambda r: [r(4, 5).prod(), r(4, 5).prod(1), r(4, 5).prod(0, keepdim=True)],
    "any": lambda r: [
        r.mask(4, 5).any(),
        r.mask(4, 5).all(),
        (r(4, 5) > 1).any(1),
        (r(4, 5) > -1).all(0, keepdim=True),
        r(4, 5).any(),
        (r(4, 5, 6) > 2).any((0, 2)),
        (r(4, 5, 6) > -2).all((0, 1)),
        r.ints(2, 4, 5).any(1),
    ],
    "max": lambda r: [
        r(4, 5).max(),
        r(4, 5).min(),
        r(4, 5).max(1),
        r(4, 5).min(0, keepdim=True),
        r(4, 5).aminmax(dim=1),
        r(4, 5).aminmax(),
        r.ints(9, 4, 5).max(1),
    ],
    "argmax": lambda r: [
        r(4, 5).argmax(),
        r(4, 5).argmin(1),
        r(4, 5).argmax(0, keepdim=True),
        r.ints(3, 4, 5).argmax(1),
        r.ints(3, 4, 5).argmin(),
    ],
    "var correction": lambda r: [
        r(4, 5).var(0, correction=0),
        r(4, 5).std(1, correction=2),
        torch.var_mean(r(4, 5), 1),
        torch.std_mean(r(4, 5)),
        torch.var_mean(r(4, 5, 6), (0, 2), keepdim=True),
    ],
    "norms": lambda r: [
        torch.linalg.vector_norm(r(4, 5)),
        torch.linalg.vector_norm(r(4, 5), 1, 0),
        torch.linalg.vector_norm(r(4, 5), float("inf")),
        torch.linalg.vector_norm(r(4, 5), 3, 1, True),
        torch.linalg.vector_norm(r(4, 5), 0),
        r(4, 5).norm(dim=1),
        torch.linalg.vector_norm(r(4, 5), float("-inf"), 1),
        torch.dist(r(4, 5), r(4, 5)),
        torch.linalg.matrix_norm(r(4, 5)),
        F.normalize(r(4, 5)),
        F.cosine_similarity(r(4, 5), r(4, 5)),
        F.pairwise_distance(r(4, 5), r(4, 5)),
        torch.cdist(r(4, 5), r(3, 5)),
    ],
    "foreach": lambda r: [
        torch._foreach_norm([r.constant(4, 5), r.constant(3)]),
        torch._foreach_add([r.constant(4, 5), r.constant(3)], 2.0),
        torch._foreach_mul([r.constant(4, 5), r.constant(3)], [r.constant(4, 5), r.constant(3)]),
    ],
    "logsumexp": lambda r: [
        r(4, 5).logsumexp(1),
        r(4, 5, 6).logsumexp((0, 2)),
        r(4, 5).logsumexp(0, keepdim=True),
    ],
    "softmax": lambda r: [
        r(4, 5).softmax(1),
        r(4, 5).softmax(0),
        r(4, 5, 6).softmax(1),
        r(4, 5).log_softmax(-1),
        r(4, 5).log_softmax(0),
        F.softmin(r(4, 5), 1),
        r(4, 5).float().softmax(-1, dtype=torch.float64),
    ],
    "cumulative": lambda r: [
        r(4, 5).cumsum(1),
        r(4, 5).cumsum(0),
        r(4, 5).cumprod(1),
        r(4, 5).cummax(0),
        r(4, 5).cummin(1),
        r(4, 5).logcumsumexp(1),
        r(4, 5).diff(),
        torch.trapezoid(r(4, 5)),
    ],
    "median": lambda r: [
        r(4, 5).median(),
        r(4, 5).median(1),
        r(4, 5).mode(0),
        r(4, 5).nanmedian(1),
        r(4, 5).quantile(0.3, 1),
    ],
    "count": lambda r: [
        r.ints(2, 4, 5).count_nonzero(),
        r.ints(2, 4, 5).count_nonzero(1),
        torch.equal(r(4, 5), r(4, 5)),
        r(5, 5).trace(),
    ],
    "renorm": lambda r: r(4, 5).renorm(2, 0, 0.5),
    "cov": lambda r: [torch.cov(r(4, 5)), torch.corrcoef(r(4, 5))],
}
