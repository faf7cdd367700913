"""What a redistribution must give and may send, found with sets of indices and `torch.chunk` alone.

Nothing here uses dtorch's arithmetic. A case says how a tensor is cut by raw factors, not in normal form; the
oracle cuts a tensor of indices the same way.
"""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import torch

from dtorch.layout import Layout

Dims = tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]


@dataclass(frozen=True)
class Cut:
    """A layout as its raw parts."""

    mesh_shape: tuple[int, ...]
    dims: Dims
    partial: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(n for n, _ in factors) for factors in self.dims)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.mesh_shape, self.dims, self.partial)

    @property
    def coords(self) -> list[tuple[int, ...]]:
        return list(product(*map(range, self.mesh_shape)))

    def is_whole(self, axis: int) -> bool:
        """Whether the axis replicates."""
        return axis not in self.partial and all(axis not in axes for f in self.dims for _, axes in f)


def plain(
    mesh_shape: tuple[int, ...], shape: tuple[int, ...], roles: Iterable, order: Iterable[int] = ()
) -> Cut:
    """A cut from "R", "P" or a dim per axis; `order` says which axes cut first."""
    roles, order = list(roles), [*order]
    order += [axis for axis in range(len(mesh_shape)) if axis not in order]
    dims = tuple(((n, tuple(axis for axis in order if roles[axis] == dim)),) for dim, n in enumerate(shape))
    return Cut(mesh_shape, dims, tuple(axis for axis, role in enumerate(roles) if role == "P"))


def chunk(tensor: torch.Tensor, count: int, index: int, dim: int) -> torch.Tensor:
    """Chunk `index`, empty where torch gives fewer."""
    chunks = tensor.chunk(count, dim)
    return chunks[index] if index < len(chunks) else tensor.narrow(dim, 0, 0)


def indices(cut: Cut, coord: tuple[int, ...]) -> torch.Tensor:
    """Flat global indices that the device at `coord` holds, in its local shape."""
    factors = [factor for dim in cut.dims for factor in dim]
    held = torch.arange(math.prod(cut.shape)).view([n for n, _ in factors])
    for at, (_, axes) in enumerate(factors):
        for axis in axes:
            held = chunk(held, cut.mesh_shape[axis], coord[axis], at)
    sizes, at = [], 0
    for dim in cut.dims:
        sizes.append(math.prod(held.shape[at : at + len(dim)]))
        at += len(dim)
    return held.reshape(sizes)


def parts_of(full: torch.Tensor, cut: Cut) -> list[torch.Tensor]:
    """Parts with integer addends of mixed signs along Partial axes."""
    generator = torch.Generator().manual_seed(full.numel())
    along = list(product(*(range(cut.mesh_shape[axis]) for axis in cut.partial)))
    addends = {key: torch.randint(-9, 9, full.shape, generator=generator).to(full) for key in along[1:]}
    addends[along[0]] = full - sum(addends.values())
    out = []
    for coord in cut.coords:
        addend = addends[tuple(coord[axis] for axis in cut.partial)]
        out.append(addend.flatten()[indices(cut, coord)])
    return out


def assert_holds(parts: list[torch.Tensor], full: torch.Tensor, cut: Cut) -> None:
    """Every device has its shape, and what devices along Partial axes hold adds up to the value."""
    sums: dict[tuple[int, ...], torch.Tensor] = {}
    for part, coord in zip(parts, cut.coords, strict=True):
        assert part.shape == indices(cut, coord).shape
        key = tuple(-1 if axis in cut.partial else index for axis, index in enumerate(coord))
        sums[key] = sums[key] + part if key in sums else part
    for key, total in sums.items():
        expected = full.flatten()[indices(cut, tuple(max(0, index) for index in key))]
        assert torch.equal(total, expected), key


# Bytes.


def _sets(cut: Cut) -> list[set[int]]:
    return [set(indices(cut, coord).flatten().tolist()) for coord in cut.coords]


def _groups(cut: Cut, axes: Iterable[int]) -> Iterator[list[int]]:
    """Positions that differ on `axes` only."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, coord in enumerate(cut.coords):
        groups.setdefault(tuple(c for axis, c in enumerate(coord) if axis not in axes), []).append(position)
    yield from groups.values()


def exchanged(src: Cut, dst: Cut) -> int:
    """Elements received when no sum is made whole: each where it is missing, once per new pending sum."""
    have, want = _sets(src), _sets(dst)
    created = [axis for axis in dst.partial if axis not in src.partial]
    return sum(
        len(set.union(*(want[p] for p in group)) - set.union(*(have[p] for p in group)))
        if created
        else sum(len(want[p] - have[p]) for p in group)
        for group in _groups(dst, created)
    )


def _pieces(cut: Cut, axes: list[int], dim: int) -> list[set[int]]:
    """What every device holds, cut further by `axes` along one dim."""
    out = []
    for coord in cut.coords:
        held = indices(cut, coord)
        for axis in axes:
            held = chunk(held, cut.mesh_shape[axis], coord[axis], dim)
        out.append(set(held.flatten().tolist()))
    return out


def reduced(src: Cut, dst: Cut) -> tuple[int, int]:
    """Least elements received by all devices, and then by the largest, where pending sums are made whole.

    For source and destination on one mesh, at least one dim, no new pending sum. Both ways are tried with
    pieces along every dim.
    """
    gone = [axis for axis in src.partial if axis not in dst.partial]
    addends = math.prod(src.mesh_shape[axis] for axis in gone)
    shared = [axis for axis in gone if dst.is_whole(axis)]
    have, want = _sets(src), _sets(dst)
    found = []
    for dim in range(len(src.dims)):
        pieces = _pieces(dst, shared, dim)
        found.append([addends * len(p) - len(p & h) + len(w) - len(p) for p, h, w in zip(pieces, have, want)])
        pieces = _pieces(src, gone, dim)
        found.append([(addends - 1) * len(p) + len(w - p) for p, w in zip(pieces, want)])
    return min((sum(received), max(received)) for received in found)


def bounds(src: Cut, dst: Cut) -> tuple[int, int]:
    """At least what devices lack, at most all addends of what they need but the own."""
    gone = [axis for axis in src.partial if axis not in dst.partial]
    addends = math.prod(src.mesh_shape[axis] for axis in gone)
    have, want = _sets(src), _sets(dst)
    pairs = list(zip(have, want, strict=True))
    return sum(len(w - h) for h, w in pairs), sum(addends * len(w) - len(w & h) for h, w in pairs)


# Cases.


def random_plain(
    rng: random.Random, mesh_shape: tuple[int, ...], shape: tuple[int, ...], partial: bool
) -> Cut:
    """A random placement of every axis, nested in a random order."""
    roles: list = [rng.choice(["R", "P", *range(len(shape)), *range(len(shape))]) for _ in mesh_shape]
    if not partial:
        roles = ["R" if role == "P" else role for role in roles]
    return plain(mesh_shape, shape, roles, rng.sample(range(len(mesh_shape)), len(mesh_shape)))


def random_factors(
    rng: random.Random, mesh_shape: tuple[int, ...], shape: tuple[int, ...], partial: bool
) -> Cut:
    """Every dim as a random product of factors, every axis at a random place."""
    dims = []
    for n in shape:
        factors, rest = [], n
        while rest > 1 and rng.random() < 0.7:
            divisor = rng.choice([d for d in range(1, rest + 1) if rest % d == 0])
            factors.append((divisor, []))
            rest //= divisor
        dims.append([*factors, (rest, [])])
    chosen = []
    for axis in rng.sample(range(len(mesh_shape)), len(mesh_shape)):
        role = rng.choice(["R", "P", "S", "S", "S"])
        if role == "S" and dims:
            rng.choice(rng.choice(dims))[1].append(axis)
        elif role == "P" and partial:
            chosen.append(axis)
    frozen = tuple(tuple((n, tuple(axes)) for n, axes in factors) for factors in dims)
    return Cut(mesh_shape, frozen, tuple(sorted(chosen)))
