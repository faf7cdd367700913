"""Whether compiled code gives what the listed calls give: bit for bit, or within rounding.

"exact" asks twice. Each operator is compared by itself, over all exponents and special values, and what was
found is kept on disk for this build of torch; then the region, compiled, is compared with its calls on
values of its own shapes. An operator that rounds otherwise when compiled (exp, softmax, sums ...) is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dtorch.hidden import writes
from dtorch.inductor import stored
from dtorch.inductor.listing import Call, Listing, Meta, Output, Refusal, compute

Function = Callable[[list[Any]], list[Any]]

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Largest difference, over the largest finite value of a result, that "fast" admits."""

KINDS = ("normal", "special", "wide")
VECTOR_ELEMENTS = 64
"""Elements that whole vectors of any processor divide."""

_NUM_WHOLE = 1 << 16
_NUM_WITH_REST = _NUM_WHOLE + 27  # whole vectors of any width, and a rest, for which kernels have other code
_SPECIAL = (
    (
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -3.0,
        1e-45,
        -1e-45,
        1e-40,
        1.1754944e-38,
    )
    + (
        -1.1754944e-38,
        3.4028235e38,
        -3.4028235e38,
        1e30,
        -1e30,
        1e-30,
        88.7,
        -87.3,
        104.0,
        -104.0,
        1 + 2**-23,
    )
    + (1 - 2**-24, 16777217.0, math.pi, math.pi / 2, 9.9, -9.9)
)


def generate(meta: Meta, kind: str, generator: torch.Generator) -> torch.Tensor:
    """Values for an input: "normal", "special" (zeros, infinities, nan, denormals ...), "wide" (any bits).

    Integers are 0 and 1, which may be indices, but for "wide": -3 to 99.
    """
    dtype = getattr(torch, meta.dtype)
    span = 1 + sum((n - 1) * step for n, step in zip(meta.shape, meta.stride, strict=True))
    span = 0 if 0 in meta.shape else span
    if not dtype.is_floating_point:
        low, high = (0, 2) if kind != "wide" or dtype in (torch.bool, torch.uint8) else (-3, 100)
        values = torch.randint(low, high, (span,), generator=generator).to(dtype)
    elif kind == "wide":
        bits = torch.randint(0, 256, (span * dtype.itemsize,), dtype=torch.uint8, generator=generator)
        values = bits.view(dtype)
    else:
        values = torch.randn(span, generator=generator).to(dtype)
        if kind == "special":
            chosen = torch.randint(0, 2 * len(_SPECIAL), (span,), generator=generator)
            special = torch.tensor(_SPECIAL, dtype=torch.float64).to(dtype)
            values = torch.where(chosen < len(_SPECIAL), special[chosen.clamp(max=len(_SPECIAL) - 1)], values)
    return values.as_strided(meta.shape, meta.stride)


def samples(inputs: Sequence[Meta], seed: int = 0) -> Iterator[list[torch.Tensor]]:
    """Inputs of each kind."""
    for number, kind in enumerate(KINDS):
        generator = torch.Generator().manual_seed(seed + number)
        yield [generate(meta, kind, generator) for meta in inputs]


def copies(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values at the same strides, in memory of their own."""
    made = []
    for tensor in inputs:
        base = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
        made.append(base.clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
    return made


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are alike in shape, stride, dtype and each bit; nan is nan."""
    if a.shape != b.shape or a.stride() != b.stride() or a.dtype != b.dtype:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    present = ~(a.isnan() & b.isnan())
    x, y = a[present], b[present]
    return torch.equal(x, y) and torch.equal(x.signbit(), y.signbit())


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference of `b` from `a` over the largest finite |a|; infinite where they are unlike."""
    if a.shape != b.shape or a.stride() != b.stride() or a.dtype != b.dtype:
        return math.inf
    if not a.dtype.is_floating_point:
        return 0.0 if torch.equal(a, b) else math.inf
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return math.inf
    x, y = a[finite].double(), b[finite].double()
    if not x.numel():
        return 0.0
    largest = float(x.abs().max())
    return float((x - y).abs().max()) / (largest or 1.0)


def region_differs(listing: Listing, compiled: Function) -> str:
    """Where compiled code gives other bits than the calls; nothing where it gives the same."""
    calls = compute(listing)
    tested = 0
    for inputs in samples(listing.inputs):
        found = _both(calls, compiled, inputs)
        if found is None:
            continue
        tested += 1
        expected, got = found
        for number, (a, b) in enumerate(zip(expected, got, strict=True)):
            if not same_bits(a, b):
                return f"result {number} of {len(expected)} has other bits"
    return "" if tested else "its calls cannot be tried on generated values"


def region_error(listing: Listing, compiled: Function) -> str:
    """Where compiled code is off by more than `TOLERANCE` on normal values; nothing where it is not."""
    calls = compute(listing)
    tested = 0
    for seed in (0, 10):
        found = _both(calls, compiled, next(samples(listing.inputs, seed)))
        if found is None:
            continue
        tested += 1
        for a, b in zip(*found, strict=True):
            off, most = distance(a, b), TOLERANCE.get(a.dtype, 0.0)
            if off > most:
                return f"a result is off by {off:.1e} of its largest value, more than {most:.0e}"
    return "" if tested else "its calls cannot be tried on generated values"


def _both(
    calls: Function, compiled: Function, inputs: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]] | None:
    """Results, and inputs as they are afterwards, of the calls and of the code; None where the calls fail."""
    mine, theirs = copies(inputs), copies(inputs)
    try:
        expected = calls(list(mine))
    except Exception:  # an index out of range
        return None
    return [*expected, *mine], [*compiled(list(theirs)), *theirs]


# ---- operators by themselves


def _is_whole(call: Call) -> bool:
    """Whether a pointwise call has equal, contiguous inputs without a rest behind whole vectors."""
    shapes = {meta.shape for meta in call.metas if meta.shape}
    contiguous = all(meta.stride == contiguous_stride(meta.shape) for meta in call.metas)
    return contiguous and len(shapes) == 1 and math.prod(shapes.pop()) % VECTOR_ELEMENTS == 0


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The stride, in elements, of a contiguous tensor of a shape."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def operator_key(call: Call) -> str:
    """What the answer for an operator depends on; of a pointwise one's shapes, whether they leave a rest."""
    if not call.pointwise:
        metas: Any = [(meta.dtype, meta.shape, meta.stride) for meta in call.metas]
    else:
        metas = (_is_whole(call), [(meta.dtype, len(meta.shape) > 0) for meta in call.metas])
    return f"{call.name}({call.text}) {metas}"


def changes_values(call: Call) -> bool:
    """Whether an operator computes; views, copies and empty tensors are what they are."""
    if call.name.split(".")[1] in ("clone", "copy_", "empty", "empty_like", "empty_strided", "new_empty"):
        return False
    if not call.inputs:
        return False
    overload = _overload(call)
    returns = overload._schema.returns
    views = any(made.alias_info is not None and not made.alias_info.is_write for made in returns)
    return bool(writes(overload)) or (any(call.outputs) and not views)


def _overload(call: Call) -> Any:
    namespace, name, overload = call.name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def alone(calls: Sequence[Call]) -> tuple[Listing, list[int]]:
    """One listing with each call by itself, on inputs of its own; and for each result, the call it is of.

    A pointwise one that may leave a rest stands twice: on neighbouring elements, and on ones that lie apart.
    """
    inputs: list[Meta] = []
    made: list[Call] = []
    results: list[str] = []
    of: list[int] = []
    for number, call in enumerate(calls):
        for metas in _shapes(call):
            names = []
            for meta in metas:
                name = f"c{len(inputs)}" if writes(_overload(call)) else f"x{len(inputs)}"
                if name[0] == "c":
                    copy = Call("aten.clone.default", "{0}", (f"x{len(inputs)}",), (name,), (meta,), True)
                    made.append(copy)
                names.append(name)
                inputs.append(meta)
            outputs = tuple(f"v{len(made)}_{i}" if name else "" for i, name in enumerate(call.outputs))
            made.append(Call(call.name, call.text, tuple(names), outputs, metas, call.pointwise))
            given = [name for name in (*outputs, *names) if name and name[0] != "x"]
            results += given
            of += [number] * len(given)
    fresh = tuple(Output(len(inputs) + i, (), (), 0, True) for i in range(len(results)))
    return Listing(tuple(inputs), tuple(made), tuple(results), fresh, ()), of


def _shapes(call: Call) -> list[tuple[Meta, ...]]:
    if not call.pointwise:
        return [call.metas]
    if _is_whole(call):
        flats = [(_NUM_WHOLE, 1)]
    else:
        flats = [(_NUM_WITH_REST, 1), (_NUM_WITH_REST, 3)]
    return [
        tuple(Meta((n,), (step,), meta.dtype) if meta.shape else meta for meta in call.metas)
        for n, step in flats
    ]


def differing(calls: Sequence[Call], compile_listing: Callable[[Listing], Function]) -> dict[str, str]:
    """Operator key -> "same", "other bits", or "untried", of calls that compute.

    Raises:
        Exception: whatever the compiler raises.
    """
    known = {operator_key(call): call for call in calls}
    if not known:
        return {}
    listing, of = alone(list(known.values()))
    keys = list(known)
    compiled = compile_listing(listing)
    found = dict.fromkeys(keys, "untried")
    for inputs in samples(listing.inputs):
        answer = _both(compute(listing), compiled, inputs)
        if answer is None:
            continue
        for number, a, b in zip(of, *answer, strict=False):  # behind the results stand the inputs
            if found[keys[number]] != "other bits":
                found[keys[number]] = "same" if same_bits(a, b) else "other bits"
    return found


def operators(listing: Listing) -> dict[str, Call]:
    """Key -> call, of the operators that compute."""
    return {operator_key(call): call for call in listing.calls if changes_values(call)}


def known(listing: Listing, num_threads: int) -> dict[str, str]:
    """What is on disk about a listing's operators, as `differing` says it."""
    found = {key: stored.load(stored_name(key, num_threads)) for key in operators(listing)}
    return {key: answer for key, answer in found.items() if answer is not None}


def stored_name(key: str, num_threads: int) -> str:
    """Under which name the answer for an operator is kept."""
    return stored.digest("operator", key, num_threads)


def refuse_unlike(listing: Listing, table: dict[str, str]) -> None:
    """Refuse a listing with an operator that gives other bits when compiled.

    Raises:
        Refusal: names the first one.
    """
    for call in listing.calls:
        if changes_values(call) and table.get(operator_key(call)) == "other bits":
            raise Refusal(f"{call.name} gives other bits when compiled on this build of torch")
