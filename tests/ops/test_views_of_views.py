"""Views of views by strides and by dtype: they start where torch's do, whatever is cut."""

import itertools
from collections.abc import Callable

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Replicate, Shard

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strides": lambda t: t.as_strided((2, 2), (1, 2)),
    "strides and start": lambda t: t.as_strided((2, 2), (1, 2), 3),
    "integers": lambda t: t.view(torch.int16)[..., 2:],
    "select": lambda t: t.select(0, 1),
    "narrow": lambda t: t.narrow(-1, 1, 2),
    "step": lambda t: t[1::2],
    "diagonal": lambda t: t.diagonal(1),
    "unfold": lambda t: t.unfold(0, 2, 1),
}
BASE = torch.arange(120.0).reshape(6, 20)


def _viewed(x: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
    for name in names:
        x = VIEWS[name](x)
    return x


def _chains() -> list[tuple[tuple[str, ...], torch.Tensor]]:
    """Those of three that torch accepts, and what they give."""
    found = []
    for names in itertools.product(VIEWS, repeat=3):
        try:
            found.append((names, _viewed(BASE.clone(), names)))
        except (RuntimeError, IndexError):
            continue
    return found


@pytest.mark.parametrize("placement", [None, Replicate(), Shard(0), Shard(1)], ids=str)
def test_chains_of_views(placement: dtorch.Placement | None) -> None:
    mesh, placements = (DeviceMesh("cpu", [0, 1]), [placement]) if placement else (DeviceMesh("cpu"), None)
    whole = placement is None or placement.is_replicate()
    wrong = []
    for names, expected in _chains():
        got = _viewed(dtorch.Tensor(BASE, device_mesh=mesh, placements=placements), names)
        same = got.dtype == expected.dtype and torch.equal(got.to_torch(), expected)
        if whole:
            same = same and got.storage_offset() == expected.storage_offset()
            same = same and got.stride() == expected.stride()
        if not same:
            wrong.append(names)
    assert not wrong
