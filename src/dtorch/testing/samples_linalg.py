"""Samples of operators on matrices and planes, batches of them: factorisations, transforms, padding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from dtorch.testing.samples import Sample, Values


def _definite(r: Values) -> torch.Tensor:
    x = r(4, 3, 3)
    return x @ x.mT + torch.eye(3, dtype=x.dtype)


def _factors(r: Values) -> Any:
    lu, pivots, _ = torch.linalg.lu_factor_ex(r(4, 3, 3))
    ld, places, _ = torch.linalg.ldl_factor_ex(_definite(r).detach())
    return [
        torch.linalg.lu(r(4, 5, 3)),
        torch.lu_unpack(lu, pivots),
        torch.linalg.lu_solve(lu, pivots, r(4, 3, 2)),
        torch.linalg.ldl_solve(ld, places, r.constant(4, 3, 2)),
        torch.linalg.qr(r(4, 5, 3)),
        torch.linalg.qr(r.constant(4, 5, 3), mode="r"),
        torch.linalg.householder_product(r(4, 5, 3), r(4, 3)),
        torch.ormqr(r.constant(4, 5, 3), r.constant(4, 3), r.constant(4, 5, 2)),
        torch.geqrf(r.constant(4, 5, 3)),
    ]


def _values(r: Values) -> Any:
    x = _definite(r)
    return [
        torch.linalg.eigh(x),
        torch.linalg.eigvalsh(x),
        torch.linalg.svdvals(r(4, 5, 3)),
        torch.linalg.svd(r(4, 5, 3), full_matrices=False).S,
        torch.linalg.eigvals(r.constant(4, 3, 3)).abs(),
        torch.linalg.eig(r.constant(4, 3, 3)).eigenvalues.abs(),
    ]


def _padding(mode: str) -> Sample:
    return lambda r: [
        F.pad(r(4, 3, 5), (1, 2), mode),
        F.pad(r(4, 3, 5, 6), (1, 2, 2, 1), mode),
        F.pad(r(2, 3, 5, 6, 7), (1, 2, 2, 1, 1, 1), mode),
    ]


SAMPLES: dict[str, Sample] = {
    "cholesky": lambda r: [
        torch.linalg.cholesky_ex(_definite(r)).L,
        torch.cholesky(_definite(r)),
        torch.cholesky_inverse(torch.linalg.cholesky_ex(_definite(r)).L),
        torch.cholesky_solve(r(4, 3, 2), torch.linalg.cholesky_ex(_definite(r)).L),
    ],
    "inverse": lambda r: [torch.linalg.inv_ex(r(4, 3, 3)).inverse, torch.matrix_exp(r(4, 3, 3))],
    "solve": lambda r: [
        torch.linalg.solve_ex(r(4, 3, 3), r(4, 3, 2)).result,
        torch.linalg.solve_ex(r(4, 3, 3), r(3, 2)).result,
        torch.linalg.solve_ex(r(4, 3, 3), r(4, 3)).result,
        torch.linalg.solve_triangular(r(4, 3, 3).triu(), r(4, 3, 2), upper=True),
        torch.linalg.solve_triangular(r(4, 3, 3).tril(), r(4, 2, 3), upper=False, left=False),
    ],
    "det": lambda r: [torch.linalg.det(r(4, 3, 3)), torch.linalg.slogdet(r(4, 3, 3)).logabsdet],
    "factors": _factors,
    "eigenvalues": _values,
    "fft": lambda r: [
        torch.view_as_real(torch.fft.fft(r(4, 5))),
        torch.view_as_real(torch.fft.rfft2(r(4, 5, 6))),
        torch.fft.irfft(torch.complex(r(4, 5), r(4, 5)), n=7),
        torch.view_as_real(torch.fft.ifft(torch.complex(r(4, 5), r(4, 5)), dim=0)),
    ],
    "polar": lambda r: torch.view_as_real(torch.polar(r(4, 5), r(4, 5))),
    "reflection": _padding("reflect"),
    "replication": _padding("replicate"),
    "max_unpool": lambda r: [
        F.max_unpool2d(
            r(4, 3, 2, 3), torch.tensor([0, 3, 5, 13, 14, 17]).view(2, 3).repeat(4, 3, 1, 1), [2, 2]
        ),
        F.max_unpool3d(
            r(2, 3, 2, 2, 2),
            torch.tensor([0, 2, 8, 11, 34, 38, 41, 63]).view(2, 2, 2).expand(2, 3, 2, 2, 2).clone(),
            [2, 2, 2],
        ),
    ],
    "fractional_max_pool": lambda r: [
        F.fractional_max_pool2d(r(4, 3, 7, 8), 2, (3, 4), _random_samples=r.positive(4, 3, 2).detach()),
        F.fractional_max_pool3d(r(2, 3, 5, 6, 7), 2, (2, 3, 4), _random_samples=r.positive(2, 3, 3).detach()),
    ],
    "pool 3d": lambda r: [
        F.avg_pool3d(r(2, 3, 4, 5, 6), 2),
        F.adaptive_avg_pool3d(r(2, 3, 4, 5, 6), (2, 3, 4)),
        F.adaptive_max_pool3d(r(2, 3, 4, 5, 6), (2, 3, 4)),
    ],
    "interpolate more": lambda r: [
        F.interpolate(r(4, 3, 5), size=8, mode="nearest-exact"),
        F.interpolate(r(4, 3, 5, 6), size=(7, 3), mode="nearest-exact"),
        F.interpolate(r(2, 3, 4, 5, 6), size=(5, 7, 3), mode="nearest-exact"),
        F.interpolate(r(2, 3, 4, 5, 6), size=(5, 7, 3), mode="nearest"),
        F.interpolate(r(2, 3, 4, 5, 6), size=(5, 7, 3), mode="trilinear"),
        F.interpolate(r(4, 3, 5, 6), size=(7, 3), mode="bilinear", antialias=True),
        F.interpolate(r(4, 3, 5, 6), size=(7, 3), mode="bicubic", antialias=True),
        F.grid_sample(r(2, 3, 4, 5, 6), r(2, 7, 8, 9, 3), align_corners=False),
    ],
}
