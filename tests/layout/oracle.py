"""What layouts mean, by brute force with `torch.chunk`; shares no code with the package."""

import itertools
import math
from functools import cache

import torch


def coords_of(mesh_shape):
    """Coordinates of all devices, in mesh order."""
    return list(itertools.product(*map(range, mesh_shape)))


@cache
def held(mesh_shape, n, axes, coord):
    """Indices of range(n), chunked by `axes`, on the device at `coord`."""
    part = torch.arange(n)
    for axis in axes:
        chunks = torch.chunk(part, mesh_shape[axis]) if part.numel() else ()
        part = chunks[coord[axis]] if coord[axis] < len(chunks) else part[:0]
    return tuple(part.tolist())


def oracle_indices(mesh_shape, factors, coord):
    """Indices of a dim made of `factors`, on the device at `coord`."""
    out = [0]
    for n, axes in factors:
        out = [high * n + low for high in out for low in held(mesh_shape, n, tuple(axes), coord)]
    return tuple(out)


def chunk_of(indices, num_chunks, index):
    """Chunk `index` of a tuple, by torch.chunk."""
    chunks = torch.chunk(torch.tensor(indices), num_chunks) if indices else ()
    return tuple(chunks[index].tolist()) if index < len(chunks) else ()


def partition(mesh_shape, factors):
    """What `factors` say of a dim: size, axes that cut it, indices per device."""
    axes = frozenset(axis for _, cut in factors for axis in cut if mesh_shape[axis] > 1)
    parts = tuple(oracle_indices(mesh_shape, factors, coord) for coord in coords_of(mesh_shape))
    return math.prod(n for n, _ in factors), axes, parts


def cut(tensor, layout, coord):
    """The part of a global tensor on the device at `coord`, by index sets."""
    for dim, factors in enumerate(layout.dims):
        indices = oracle_indices(layout.mesh_shape, factors, coord)
        tensor = tensor.index_select(dim, torch.tensor(indices, dtype=torch.long))
    return tensor


def factorizations(n):
    """All ways to write n as an ordered product of numbers above 1."""
    if n == 1:
        yield ()
    for first in range(2, n + 1):
        if n % first == 0:
            yield from ((first, *rest) for rest in factorizations(n // first))


def cuts_of(count, mesh_shape):
    """All ways to give some mesh axes, in some order, to `count` factors."""
    for num_axes in range(len(mesh_shape) + 1):
        for axes in itertools.permutations(range(len(mesh_shape)), num_axes):
            for owners in itertools.product(range(count), repeat=num_axes):
                pairs = list(zip(owners, axes, strict=True))
                yield [tuple(axis for owner, axis in pairs if owner == place) for place in range(count)]


def all_dims(n, mesh_shape):
    """Every dim of size n on the mesh as factors, with `(1, axes)` at any place."""
    rows = [(0,), (3, 0), (0, 2)] if n == 0 else list(factorizations(n))
    spaced = [(1, *(size for m in row for size in (m, 1))) for row in rows]
    return {
        tuple((m, axes) for m, axes in zip(row, cuts, strict=True) if m != 1 or axes) or ((1, ()),)
        for row in spaced
        for cuts in cuts_of(len(row), mesh_shape)
    }
