"""Which local parts a view, a slice or a squeeze of a cut tensor can be made of.

A local part lists its elements in the order of the factors of all dims, one after another. So merging dims
puts their factors side by side, and splitting takes factors from the outside; only a factor that is not cut
may be divided. If the new sizes do not fall between factors this way, the view needs data that lies
elsewhere, and the answer is None.

A factor `(1, axes)` only says which devices hold anything. It may move to any dim near by, but not to no
dim at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dtorch.errors import ShapeError
from dtorch.layout.factors import Dims, Factor, Factors, factors_axes, factors_size


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
    """Factors of every dim of `new_shape`, not in normal form; None if not local.

    Leading and trailing dims that keep their sizes keep their factors.
    """
    if 0 in shape:
        return _view_empty(dims, shape, new_shape)
    first, last = kept_ends(shape, new_shape)
    carved, holders = carve(dims[first : len(dims) - last], new_shape[first : len(new_shape) - last])
    if carved is None:
        return None
    out = [*dims[:first], *carved, *dims[len(dims) - last :]]
    return out if not holders or attach(out, first - 1, holders) else None


def attach(dims: list[Factors], dim: int, axes: Sequence[int]) -> bool:
    """Says on `dim`, or the nearest, that only coordinate 0 of `axes` holds data; False if 0-dim."""
    if not dims:
        return False
    dim = min(max(dim, 0), len(dims) - 1)
    dims[dim] = ((1, tuple(axes)), *dims[dim])
    return True


def carve(dims: Sequence[Factors], sizes: Sequence[int]) -> tuple[list[Factors] | None, list[int]]:
    """Deals the factors of `dims` out to new dims of `sizes`.

    Returns:
        The new dims (None if some size does not fall between factors), and, where there are none, the axes
        of the `(1, axes)` factors.
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
    holders = [axis for _, axes in reversed(stream) for axis in axes]
    if holders and attach(out, len(out) - 1, holders):
        holders = []
    return out, holders


def _stream(dims: Sequence[Factors]) -> list[Factor]:
    """All factors in order, uncut neighbours as one; a `(1, axes)` goes in front of uncut ones."""
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

    Counterparts are sought from both ends up to a dim of size 0, so that a model fed an empty batch keeps
    the layout of its other dims.
    """
    out: list[Factors] = [((n, ()),) for n in new_shape]
    left, free = set(range(len(shape))), set(range(len(new_shape)))
    for olds, news in (*_counterparts(shape, new_shape, 1), *_counterparts(shape, new_shape, -1)):
        if not (left.issuperset(olds) and free.issuperset(news)):
            continue
        carved: list[Factors] | None = [dims[olds[0]]]
        if new_shape[news[0]] > 0:
            carved, _ = carve([dims[i] for i in olds], [new_shape[i] for i in news])
        if carved is None:
            continue
        left.difference_update(olds)
        free.difference_update(news)
        for i, factors in zip(news, carved, strict=True):
            out[i] = factors
    zero = new_shape.index(0)
    out[zero] = (*out[zero], *((0, factors_axes(dims[i])) for i in sorted(left)))
    return out


def _counterparts(
    shape: tuple[int, ...], new_shape: tuple[int, ...], step: int
) -> list[tuple[list[int], list[int]]]:
    """Smallest groups (old dims, new dims) of equal products, from the left (step 1) or the right (-1).

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


def permuted(dims: Dims, order: Sequence[int]) -> Dims:
    """The dims in another order; negative ones count from the end.

    Raises:
        ShapeError: `order` does not name every dim once.
    """
    places = [dim + len(dims) if dim < 0 else dim for dim in order]
    if sorted(places) != list(range(len(dims))):
        raise ShapeError(f"permute {list(order)} of a tensor with {len(dims)} dims: every dim once")
    return tuple(dims[dim] for dim in places)


def squeezed(dims: Dims, gone: set[int]) -> list[Factors] | None:
    """The dims without those in `gone`, all of size 1; their axes cut the dim before, else after, them."""
    out = [factors for dim, factors in enumerate(dims) if dim not in gone]
    for dim in gone:
        axes = factors_axes(dims[dim])
        if axes and not attach(out, dim - sum(other < dim for other in gone) - 1, axes):
            return None
    return out


def expanded(dims: Dims, shape: Sequence[int], new_shape: Sequence[int]) -> list[Factors]:
    """The dims with those of size 1 grown and new ones in front; -1 keeps a size.

    Raises:
        ShapeError: a size that is neither 1 nor kept.
    """
    added = len(new_shape) - len(shape)
    kept = [new in (old, -1) for old, new in zip(shape, new_shape[max(added, 0) :], strict=False)]
    known = added < 0 or all(old == 1 or same for old, same in zip(shape, kept, strict=True))
    if added < 0 or not known or min(new_shape[:added], default=0) < 0:
        raise ShapeError(f"expand of shape {list(shape)} to {list(new_shape)}: only sizes of 1 can grow")
    grown = [
        factors if same else (*factors, (new, ()))
        for factors, same, new in zip(dims, kept, new_shape[added:], strict=True)
    ]
    return [*(((n, ()),) for n in new_shape[:added]), *grown]


def slice_factors(factors: Factors, start: int, stop: int, step: int) -> Factors | None:
    """Factors of a slice of one dim (0 <= start, stop <= size, step >= 1), or None if not local."""
    case, held = _slice_case(factors, start, stop, step)
    match case:
        case "nothing":
            return ((0, factors_axes(factors)),)
        case "all":
            return factors
        case "whole":
            return (*factors[:held], (len(range(start, stop, step)), ()))
        case "blocks":
            block = factors_size(factors[held + 1 :])
            return (*factors[:held], ((stop - start) // block, ()), *factors[held + 1 :])
        case "steps":
            return (*factors[:-1], (factors[-1][0] // step, ()))
    return None


def local_slice(
    factors: Factors, local_sizes: Sequence[int], start: int, stop: int, step: int
) -> tuple[int, int]:
    """(start, stop) of a local slice on a device that holds `local_sizes` of the factors; same step."""
    case, held = _slice_case(factors, start, stop, step)
    local = prod(local_sizes)
    if case == "nothing" or local == 0:
        return 0, 0
    match case:
        case "whole":
            return start, stop
        case "blocks":
            block, local_block = factors_size(factors[held + 1 :]), prod(local_sizes[held + 1 :])
            return start // block * local_block, stop // block * local_block
    return (start if case == "steps" else 0), local


def _slice_case(factors: Factors, start: int, stop: int, step: int) -> tuple[str, int]:
    """Why a slice is local, and the number (0 or 1) of leading factors that only say who holds anything.

    "nothing" and "all"; "whole": no device has only a part of the dim; "blocks": whole blocks of an uncut
    outermost factor, as the three parts of a fused query, key and value; "steps": every step-th element up
    to the end, where the step divides an uncut innermost factor; "": not local.
    """
    size, held = factors_size(factors), int(factors[0][0] == 1 and len(factors) > 1)
    if start >= stop:
        return "nothing", held
    if (start, stop, step) == (0, size, 1):
        return "all", held
    outer, inner = factors[held], factors[-1]
    if outer == (size, ()):
        return "whole", held
    block = size // outer[0]
    if not outer[1] and step == 1 and start % block == 0 and stop % block == 0:
        return "blocks", held
    if not inner[1] and inner[0] % step == 0 and stop > size - step + start:
        return "steps", held
    return "", held
