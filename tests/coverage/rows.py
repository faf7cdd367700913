"""Whether outputs that came out whole could have stayed cut: the call is tried on the shards themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.signature import Role
from dtorch.testing.local import UNCHECKED, is_safe, layout_of, region, wrong_value
from tests.coverage.database import Form

MAX_NUMEL = 4096
"""Elements of the inputs, all together, up to which a case is small enough to try."""


def could_stay_cut(
    form: Form, sample: Any, layouts: Sequence[Layout], mesh: DeviceMesh, expected: Sequence[Any]
) -> bool:
    """Whether plain calls on the shards give shards of the outputs, at least one of them cut.

    Cases that tell nothing count as no: pending sums among the inputs, cut dims of size 1, kernels that trust
    the sizes they are given on shards that do not belong together, outputs of which many values are alike.
    """
    given = [
        x for x in tree_flatten((sample.input, sample.args, sample.kwargs))[0] if isinstance(x, torch.Tensor)
    ]
    if sum(x.numel() for x in given) > MAX_NUMEL or any(layout.partial for layout in layouts):
        return False
    if any(layout.shape[d] == 1 for layout in layouts for d in range(layout.ndim) if layout.axes_of(d)):
        return False
    if not all(_tells(y) for y in expected) or not is_safe(form.call.name, given, layouts, mesh):
        return False
    if UNCHECKED.search(form.call.name):
        return in_a_child(lambda: _stays_cut(form, sample, layouts, mesh, expected))
    return _stays_cut(form, sample, layouts, mesh, expected)


def in_a_child(function: Callable[[], bool]) -> bool:
    """What a function says in a process of its own; no, where that dies: some kernels trust what they get."""
    child = os.fork()
    if child == 0:
        answer = 0
        try:
            answer = int(function())
        finally:
            os._exit(answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def _stays_cut(
    form: Form, sample: Any, layouts: Sequence[Layout], mesh: DeviceMesh, expected: Sequence[Any]
) -> bool:
    pieces = []
    for coord in mesh.coords:
        try:
            pieces.append(_on(form, sample, layouts, coord))
        except Exception:
            return False
    if any(len(piece) != len(expected) for piece in pieces):
        return False
    cut = False
    for number, full in enumerate(expected):
        right = [
            layout
            for layout in _candidates(full, mesh)
            if _right([piece[number] for piece in pieces], layout, mesh, full)
        ]
        if not right:
            return False
        # Nothing is nowhere wrong.
        tells = isinstance(full, torch.Tensor) and full.numel() > 1
        cut |= tells and any(layout.cut_axes for layout in right)
    return cut


def _tells(value: Any) -> bool:
    """Whether a wrong layout of an output would show."""
    if not isinstance(value, torch.Tensor) or value.numel() < 2:
        return True
    return len(set(value.detach().flatten().tolist())) * 2 > min(value.numel(), 16)


def _candidates(full: Any, mesh: DeviceMesh) -> list[Layout]:
    if not isinstance(full, torch.Tensor):
        return [layout_of(mesh, (), ("R",) * mesh.ndim)]
    kinds: list[Role] = ["R", "P", *range(full.ndim)]
    if not (full.is_floating_point() or full.is_complex() or full.dtype is torch.int64):
        kinds.remove("P")  # not all kinds of integers can be added up
    return [layout_of(mesh, full.shape, roles) for roles in product(kinds, repeat=mesh.ndim)]


def _right(pieces: list[Any], layout: Layout, mesh: DeviceMesh, full: Any) -> bool:
    try:
        return wrong_value(pieces, layout, mesh, full) is None
    except NotImplementedError:  # torch cannot subtract numbers of this kind
        return False


def _on(form: Form, sample: Any, layouts: Sequence[Layout], coord: tuple[int, ...]) -> list[Any]:
    """What the call gives on the shards of one device."""
    numbers = iter(range(len(layouts)))

    def shard(value: Any) -> Any:
        return (
            region(layouts[next(numbers)], coord, value.detach())
            if isinstance(value, torch.Tensor)
            else value
        )

    with torch.no_grad():
        args, kwargs = tree_map(shard, (sample.input, *sample.args)), tree_map(shard, sample.kwargs)
        return tree_flatten(form.call(*args, **kwargs))[0]
