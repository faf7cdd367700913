"""Samples of operators that arrange: views, joins, repeats, copies."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from dtorch.testing.samples import Sample, Values


def _view_writes(r: Values) -> Any:
    x = r.constant(4, 6, 5)
    x[1:3].add_(1)
    x.select(1, 2).mul_(2)
    x.transpose(0, 2)[1] = 3.0
    x.view(24, 5).neg_()
    return x


def _whole(r: Values) -> Any:
    """Composites arrive whole below inference_mode; views by the strides, and copies."""
    with torch.inference_mode():
        x, y = r.constant(4, 5, 6), r.constant(5, 4, 3)
        return [
            x.reshape(4, 30),
            x.reshape(-1, 6),
            y.permute(1, 0, 2).reshape(4, 15),
            x.mT.reshape(24, 5),
            x.flatten(1),
            x.mT.flatten(),
            x.mT.contiguous(),
            r.constant(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        ]


SAMPLES: dict[str, Sample] = {
    "view": lambda r: [
        r(4, 6, 5).view(24, 5),
        r(4, 6, 5).view(4, 30),
        r(4, 6).view(4, 2, 3),
        r(4, 6, 5).view(-1),
        r(4, 1, 5).view(4, 5),
        r(24).view(4, 6),
        r(4, 6).view(2, 2, 6),
        r(1).view(()),
        r(7, 3).view(7, 1, 3),
    ],
    "reshape": lambda r: [r(4, 6, 5).transpose(0, 1).reshape(24, 5), r(5, 4).t().reshape(-1)],
    "unflatten": lambda r: [r(5, 12).unflatten(1, (3, 4)), r(5, 12).flatten(), r(2, 3, 5).flatten(1)],
    "permute": lambda r: [
        r(4, 6, 5).permute(2, 0, 1),
        r(4, 6).t(),
        r(4, 6, 5).transpose(0, -1),
        r(4, 6, 5).movedim(0, 2),
        r(5).t(),
        r(4, 6).T,
    ],
    "expand": lambda r: [r(4, 1, 5).expand(4, 3, 5), r(5).expand(4, 5), r(1, 5).expand(2, -1), r().expand(3)],
    "squeeze": lambda r: [
        r(4, 1, 5).squeeze(1),
        r(4, 1, 5, 1).squeeze(),
        r(4, 5).squeeze(0),
        r(4, 5).unsqueeze(0),
        r(4, 5).unsqueeze(-1),
        r(4, 1, 5, 1).squeeze((1, 3)),
    ],
    "select": lambda r: [r(4, 6, 5)[1], r(4, 6, 5)[:, -2], r(4, 6, 5).select(2, 3), r(5)[0]],
    "slice": lambda r: [
        r(4, 6, 5)[1:3],
        r(4, 6, 5)[:, ::2],
        r(4, 6, 5)[..., -3:],
        r(7)[:3],
        r(7)[5:2],
        r(4, 6).narrow(1, 2, 3),
        r(4, 6, 5)[:, :, 1:],
        r(7)[1::3],
    ],
    "split": lambda r: [
        r(4, 7).split(3, 1),
        r(6, 5).chunk(3),
        r(7, 4).split([2, 4, 1]),
        r(4, 5).unbind(),
        r(4, 5).unbind(1),
        r(4, 7).tensor_split(3, dim=1),
        r(4, 5).chunk(2, -1),
    ],
    "cat": lambda r: [
        torch.cat([r(4, 5), r(3, 5)]),
        torch.cat([r(4, 5), r(4, 2), r(4, 3)], 1),
        torch.cat([r(5)]),
        torch.stack([r(4, 5), r(4, 5)]),
        torch.stack([r(4, 5), r(4, 5)], -1),
        torch.cat([r(4, 5), r(4, 5)], -1),
        torch.hstack([r(4, 5), r(4, 3)]),
    ],
    "repeat": lambda r: [r(4, 5).repeat(2, 3), r(5).repeat(2, 1), r(4, 5).tile(2), r(4, 5).repeat(1, 1)],
    "repeat_interleave": lambda r: [
        r(4, 5).repeat_interleave(2, 0),
        r(4, 5).repeat_interleave(3, 1),
        r(4, 5).repeat_interleave(2),
        r(4, 5).repeat_interleave(torch.tensor([1, 0, 3, 2]), 0),
    ],
    "pad": lambda r: [
        F.pad(r(4, 5), (1, 2)),
        F.pad(r(4, 5, 6), (0, 1, 2, 0), value=3.0),
        F.pad(r(4, 5, 6), (-1, 2)),
        F.pad(r(4, 5, 6), (1, 2), mode="reflect"),
        F.pad(r(4, 5, 6), (2, 1), mode="replicate"),
    ],
    "flip": lambda r: [r(4, 5).flip(0), r(4, 5, 6).flip(0, 2), r(4, 5).fliplr()],
    "roll": lambda r: [r(4, 5).roll(1, 0), r(4, 5).roll((1, -2), (0, 1)), r(4, 5).roll(3)],
    "diagonal": lambda r: [
        r(4, 5).diagonal(),
        r(4, 5, 6).diagonal(1, 0, 2),
        r(5, 5).diag(),
        r(5).diag(1),
        torch.diag_embed(r(4, 5)),
    ],
    "triangle": lambda r: [r(4, 5).tril(), r(4, 5).triu(1), r(3, 4, 5).tril(-1)],
    "contiguous": lambda r: [
        r(4, 5).t().contiguous(),
        r(4, 5).clone(),
        r(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    ],
    "unfold": lambda r: [r(4, 7).unfold(1, 3, 2), r(7, 4).unfold(0, 2, 3)],
    "like": lambda r: [
        torch.zeros_like(r(4, 5)),
        torch.ones_like(r(4, 5)),
        torch.full_like(r(4, 5), 2.5),
        r(4, 5).new_zeros(3, 5),
        r(4, 5).new_ones(4, 5),
        r(4, 5).new_full((2,), 7.0),
    ],
    "copy": lambda r: [
        r.constant(4, 5).copy_(r(4, 5)),
        r.constant(4, 5).copy_(r(5)),
        r.constant(4, 5).float().copy_(r(4, 5)),
    ],
    "meshgrid": lambda r: [torch.meshgrid(r(4), r(5), indexing="ij"), torch.broadcast_tensors(r(4, 1), r(5))],
    "view writes": _view_writes,
    "as_strided": lambda r: r(4, 5).as_strided((2, 3), (5, 1), 1),
    "atleast": lambda r: [torch.atleast_2d(r(5)), r(2, 3, 5).swapaxes(0, 1), r(4, 5).rot90()],
    "reshape whole": _whole,
    "complex views": lambda r: [torch.view_as_real(torch.view_as_complex(r(4, 5, 2)))],
}
