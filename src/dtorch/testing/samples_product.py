"""Samples of operators that multiply and contract."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dtorch.testing.samples import Sample

SAMPLES: dict[str, Sample] = {
    "mm": lambda r: [r(4, 5) @ r(5, 7), r(4, 5).t() @ r(4, 7), r(4, 5) @ r(7, 5).t()],
    "bmm": lambda r: [torch.bmm(r(3, 4, 5), r(3, 5, 7)), r(3, 4, 5) @ r(5, 7), r(3, 2, 4, 5) @ r(2, 5, 7)],
    "mv": lambda r: [r(4, 5) @ r(5), r(5) @ r(5, 7), r(3, 4, 5) @ r(5)],
    "dot": lambda r: [r(5) @ r(5), torch.vdot(r(5), r(5)), torch.inner(r(4, 5), r(7, 5))],
    "addmm": lambda r: [
        torch.addmm(r(7), r(4, 5), r(5, 7)),
        torch.addmm(r(4, 7), r(4, 5), r(5, 7), beta=2, alpha=3),
        torch.addmm(r(4, 1), r(4, 5), r(5, 7)),
        torch.addmm(r(7), r(4, 5), r(5, 7), beta=0),
    ],
    "baddbmm": lambda r: [
        torch.baddbmm(r(3, 4, 7), r(3, 4, 5), r(3, 5, 7), beta=0.5, alpha=2),
        torch.baddbmm(r(7), r(3, 4, 5), r(3, 5, 7)),
        torch.addbmm(r(4, 7), r(3, 4, 5), r(3, 5, 7)),
    ],
    "addmv": lambda r: [
        torch.addmv(r(4), r(4, 5), r(5), beta=2),
        torch.addmv(r(1), r(4, 5), r(5)),
        torch.addr(r(4, 5), r(4), r(5)),
    ],
    "outer": lambda r: [torch.outer(r(4), r(5)), torch.kron(r(2, 3), r(4, 5))],
    "linear": lambda r: [
        F.linear(r(4, 5), r(7, 5), r(7)),
        F.linear(r(3, 4, 5), r(7, 5)),
        F.linear(r(3, 4, 5), r(7, 5), r(7)),
        F.linear(r(5), r(7, 5)),
    ],
    "bilinear": lambda r: F.bilinear(r(4, 5), r(4, 3), r(7, 5, 3), r(7)),
    "einsum": lambda r: [
        torch.einsum("bld,dnh->blnh", r(2, 3, 5), r(5, 4, 7)),
        torch.einsum("ij,kj->ik", r(4, 5), r(7, 5)),
        torch.einsum("bi,bj->bij", r(3, 4), r(3, 5)),
        torch.einsum("ii->i", r(5, 5)),
        torch.einsum("ij->", r(4, 5)),
    ],
    "tensordot": lambda r: [
        torch.tensordot(r(3, 4, 5), r(4, 5, 7), 2),
        torch.linalg.multi_dot([r(4, 5), r(5, 3), r(3, 7)]),
    ],
    "cross": lambda r: torch.linalg.cross(r(4, 3), r(4, 3)),
}
