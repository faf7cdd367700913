"""One case: an entry's form on a sample, spread over a mesh one way, compared with plain torch."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

import dtorch
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.placement import Partial, Placement, Replicate, Shard
from dtorch.testing.calls import copy
from dtorch.testing.compare import EXACT
from dtorch.testing.engine import distributed
from tests.coverage import rows
from tests.coverage.database import Form, quiet
from tests.coverage.reference import Reference, Run, as_precise, differ, run

MESHES = {
    "[1]": DeviceMesh("cpu", [0]),
    "[4]": DeviceMesh("cpu", [0, 1, 2, 3]),
    "[2, 2]": DeviceMesh("cpu", [[0, 1], [2, 3]]),
}

CHOICES = ("first", "last", "whole", "mixed")
"""How all tensors of a case are spread: every axis cuts the first dim, the last, none; or by chance."""

SUMS = {torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int64}
"""Dtypes tried as pending sums. In half precision addends eight times as large round past a kink."""


def placements_for(
    tensor: torch.Tensor, mesh: DeviceMesh, choice: str, chance: random.Random
) -> list[Placement]:
    """Placements of one tensor, one for each mesh axis."""
    if mesh.size == 1 or choice == "whole" or (choice != "mixed" and tensor.ndim == 0):
        return [Replicate()] * mesh.ndim
    if choice == "first":
        return [Shard(0)] * mesh.ndim
    if choice == "last":
        return [Shard(tensor.ndim - 1)] * mesh.ndim
    kinds: list[Placement] = [
        Replicate(),
        *([Shard(chance.randrange(tensor.ndim))] * 3 if tensor.ndim else []),
    ]
    if tensor.dtype in SUMS and bool(tensor.isfinite().all()):
        # Pending sums; indices that come as sums are legal too, and rare.
        kinds += [Partial()] if tensor.dtype is not torch.int64 or chance.random() < 0.2 else []
    return [chance.choice(kinds) for _ in range(mesh.ndim)]


@dataclass
class Outcome:
    """What became of one case.

    Attributes:
        placements: of the tensors, as text.
        forward, backward: None where right, else what is wrong; a backward that torch has none of is right.
        has_backward: whether there are gradients to compare.
        cut: whether some tensor is cut.
        whole: whether all outputs are whole, with some tensor cut.
        missed: whether they could have stayed cut.
        sent: kind of exchange -> bytes, forward; and "backward" -> bytes.
    """

    placements: str = ""
    forward: str | None = None
    backward: str | None = None
    has_backward: bool = False
    cut: bool = False
    whole: bool = False
    missed: bool = False
    sent: Counter[str] = field(default_factory=Counter)


def attempt(
    form: Form, sample: Any, wanted: Reference, mesh: DeviceMesh, choice: str, seed: int, look: bool = True
) -> Outcome:
    """Run a case on a mesh, compare everything with plain torch; on one device bit for bit.

    Args:
        form: what to call.
        sample: of the database.
        wanted: what plain torch makes of it.
        mesh: where.
        choice: how the tensors are spread, one of `CHOICES`.
        seed: of a mixed choice and of random numbers.
        look: whether to look for a way in which whole outputs could have stayed cut.
    """
    chance = random.Random(seed)
    layouts: list[Layout] = []

    def leaf(value: torch.Tensor, _: int) -> torch.Tensor:
        full = copy(value)
        placements = placements_for(full, mesh, choice, chance)
        layouts.append(Layout.from_placements(mesh.shape, full.shape, placements))
        return distributed(full, layouts[-1], mesh, None, value.requires_grad)

    outcome = Outcome()
    graph = dtorch.Graph.default_graph()
    with quiet(), graph.record() as nodes:
        try:
            found = run(form, sample, leaf, seed, wanted.into)
            outcome.forward = _wrong("outputs", found, wanted, mesh)
        except Exception as error:
            found, outcome.forward = None, _told(error)
    outcome.placements = f"{[layout.placements() for layout in layouts]}"
    outcome.cut = any(layout.cut_axes for layout in layouts)
    outcome.has_backward = bool(wanted.run.gradients)
    for sent in nodes.communications():
        if sent.kind != "get":
            outcome.sent["backward" if sent.in_backward else sent.kind] += sent.bytes
    if found is None:
        outcome.backward = "no forward" if outcome.has_backward else None
        return outcome
    outcome.backward = _wrong_backward(found, wanted, mesh)
    tensors = [y for y in found.outputs if isinstance(y, dtorch.Tensor)]
    if outcome.cut and outcome.forward is None and tensors:
        outcome.whole = all(y.dist_layout.is_replicate for y in tensors)
        if outcome.whole and look and form.name == "function":
            outcome.missed = rows.could_stay_cut(form, sample, layouts, mesh, wanted.run.outputs)
    return outcome


def _wrong_backward(found: Run, wanted: Reference, mesh: DeviceMesh) -> str | None:
    if (found.error is None) != (wanted.run.error is None):
        return f"raises {_told(found.error)}, plain torch {_told(wanted.run.error)}"
    if found.error is not None:
        return None
    try:
        return _wrong("gradients", found, wanted, mesh)
    except Exception as error:
        return _told(error)


def _told(error: Exception | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {error}"


def _wrong(what: str, found: Run, wanted: Reference, mesh: DeviceMesh) -> str | None:
    """In what outputs or gradients differ: on one device in any bit, on several by more than rounding."""
    ours, theirs = getattr(found, what), getattr(wanted.run, what)
    if len(ours) != len(theirs):
        return f"{len(ours)} {what} instead of {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        why = differ(a, b, EXACT if mesh.size == 1 else None)
        if why is None:
            continue
        if mesh.size == 1:
            same = differ(a, getattr(wanted.as_subclass, what)[i], EXACT) is None
        else:
            precise = getattr(wanted.precise, what, None)
            same = precise is not None and len(precise) == len(ours) and as_precise(a, b, precise[i])
        if not same:
            return f"{what[:-1]} {i}: {why}"
    return None
