"""Which local parts a view, a slice or a squeeze of a cut tensor can be made of.

A local part lists its elements in the order of the factors of all dims, one after another. So merging dims puts their
factors side by side, and splitting takes factors from the outside; only a factor that is not cut may be divided. If
the new sizes do not fall between factors this way, the view needs data that lies elsewhere, and the answer is None.

A factor `(1, axes)` only says which devices hold anything. It may move to any dim near by, but not to no dim at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dtorch.layout_factors import Factor, Factors, factors_axes, factors_size

Dims = tuple[Factors, ...]


def kept_ends(shape: Sequence[int], new_shape: Sequence[int]) -> tuple[int, int]:
    """(first, last): how many leading and how many trailing dims have the same sizes in both shapes."""
    limit = min(len(shape), len(new_shape))
    first = 0
    while first < limit and shape[first] == new_shape[first]:
        first += 1
    last = 0
    while last < limit - first and shape[-1 - last] == new_shape[-1 - last]:
        last += 1
    return first, last


def view_dims(dims: Dims, shape: tuple[int, ...], new_shape: tuple[int, ...]) -> list[Factors] | None:
    """Factors of every dim of `new_shape` (same number of elements), not yet in normal form, or None if not local.

    Leading and trailing dims that keep their sizes keep their factors.
    """
    if 0 in shape:
        return _view_empty(dims, shape, new_shape)
    first, last = kept_ends(shape, new_shape)
    carved, holders = carve(dims[first : len(dims) - last], new_shape[first : len(new_shape) - last])
    if carved is None:
        return None
    out = [*dims[:first], *carved, *dims[len(dims) - last :]]
    return out if not holders or attach(out, first + len(carved) - 1, holders) else None


def attach(dims: list[Factors], dim: int, axes: Sequence[int]) -> bool:
    """Says on `dim` (the nearest one that exists) that only coordinate 0 of `axes` holds data; False if 0-dim."""
    if not dims:
        return False
    dim = min(max(dim, 0), len(dims) - 1)
    dims[dim] = ((1, tuple(axes)), *dims[dim])
    return True


def carve(dims: Sequence[Factors], sizes: Sequence[int]) -> tuple[list[Factors] | None, list[int]]:
    """Deals the factors of `dims` out to new dims of `sizes`.

    Returns:
        The new dims (None if some size does not fall between factors), and the axes of the `(1, axes)` factors that
        no new dim took.
    """
    stream = _stream(dims)
    stream.reverse()
    out: list[Factors] = []
    for size in sizes:
        taken: list[Factor] = []
        rest = size
        while stream:
            n, axes = stream[-1]
            if n == 1:
                if size > 1 and rest == 1:
                    break
                taken.append(stream.pop())
            elif rest == 1:
                break
            elif rest % n == 0:
                taken.append(stream.pop())
                rest //= n
            elif not axes and n % rest == 0:
                taken.append((rest, ()))
                stream[-1] = (n // rest, ())
                rest = 1
            else:
                return None, []
        out.append(tuple(taken) or ((1, ()),))
    return out, [axis for _, axes in reversed(stream) for axis in axes]


def _stream(dims: Sequence[Factors]) -> list[Factor]:
    """All factors in order, uncut neighbours as one; a `(1, axes)` between two of these goes in front of them."""
    stream: list[Factor] = []
    for factors in dims:
        for n, axes in factors:
            uncut_end = bool(stream) and not stream[-1][1]
            if n == 1:
                if axes:
                    stream.insert(len(stream) - uncut_end, (1, axes))
            elif uncut_end and not axes:
                stream[-1] = (stream[-1][0] * n, ())
            else:
                stream.append((n, axes))
    return stream


def _view_empty(dims: Dims, shape: tuple[int, ...], new_shape: tuple[int, ...]) -> list[Factors]:
    """A view of a tensor without elements is always local: axes whose dim has no counterpart cut the first 0.

    Counterparts are sought from both ends up to a dim of size 0, so that a model fed an empty batch keeps the layout
    of its other dims.
    """
    out: list[Factors] = [((n, ()),) for n in new_shape]
    left, free = set(range(len(shape))), set(range(len(new_shape)))
    for olds, news in (*_counterparts(shape, new_shape, 1), *_counterparts(shape, new_shape, -1)):
        if not (left.issuperset(olds) and free.issuperset(news)):
            continue
        empty = new_shape[news[0]] == 0
        carved, holders = ([dims[olds[0]]], []) if empty else carve([dims[i] for i in olds], [new_shape[i] for i in news])
        if carved is None or holders:
            continue
        left.difference_update(olds)
        free.difference_update(news)
        for i, factors in zip(news, carved, strict=True):
            out[i] = factors
    zero = new_shape.index(0)
    out[zero] = (*out[zero], *((0, factors_axes(dims[i])) for i in sorted(left)))
    return out


def _counterparts(shape: tuple[int, ...], new_shape: tuple[int, ...], step: int) -> list[tuple[list[int], list[int]]]:
    """Smallest groups of (old dims, new dims) with equal products, from the left (step 1) or from the right (-1).

    Ends at the first dim of size 0 on either side; two that meet there are a group too.
    """
    olds, news = list(range(len(shape)))[::step], list(range(len(new_shape)))[::step]
    out: list[tuple[list[int], list[int]]] = []
    i = j = first_i = first_j = 0
    a = b = 1
    while a and b:
        if a == b:
            if i:
                out.append((sorted(olds[first_i:i]), sorted(news[first_j:j])))
            first_i, first_j = i, j
            a, b = shape[olds[i]], new_shape[news[j]]
            i, j = i + 1, j + 1
        elif a < b:
            a *= shape[olds[i]]
            i += 1
        else:
            b *= new_shape[news[j]]
            j += 1
    if (i - first_i, j - first_j, a, b) == (1, 1, 0, 0):
        out.append(([olds[first_i]], [news[first_j]]))
    return out


def slice_factors(factors: Factors, start: int, stop: int, step: int) -> Factors | None:
    """Factors of a slice of one dim (0 <= start <= stop <= size, step >= 1), or None if not local.

    Local where the slice is empty or everything, where the dim is not cut, where it takes whole blocks of an uncut
    outermost factor, and where it is every step-th element from start to the end and the step divides an uncut
    innermost factor.
    """
    size = factors_size(factors)
    if start >= stop:
        return ((0, factors_axes(factors)),)
    if (start, stop, step) == (0, size, 1):
        return factors
    holders = factors[:1] if factors[0][0] == 1 else ()
    rest = factors[len(holders) :]
    if len(rest) <= 1 and not factors_axes(rest):
        return (*holders, (len(range(start, stop, step)), ()))
    block = factors_size(rest[1:])
    if not rest[0][1] and step == 1 and start % block == 0 and stop % block == 0:
        return (*holders, ((stop - start) // block, ()), *rest[1:])
    n, axes = rest[-1]
    if not axes and start < step and n % step == 0 and stop > size - step + start:
        return (*holders, *rest[:-1], (n // step, ()))
    return None


def local_slice(
    factors: Factors, local_sizes: Sequence[int], start: int, stop: int, step: int
) -> tuple[int, int]:
    """(start, stop) that a device whose range of each factor has `local_sizes` uses for a legal slice; step stays."""
    local = prod(local_sizes)
    if start >= stop or local == 0:
        return 0, 0
    if (start, stop, step) == (0, factors_size(factors), 1):
        return 0, local
    held = 1 if factors[0][0] == 1 else 0
    if len(factors) - held <= 1 and not factors[-1][1]:
        return start, stop
    block = factors_size(factors[held + 1 :])
    if not factors[held][1] and step == 1 and start % block == 0 and stop % block == 0:
        local_block = prod(local_sizes[held + 1 :])
        return start // block * local_block, stop // block * local_block
    return start, local
