"""Comparing tensors, plain or distributed, in a test.

What is not distributed must equal torch bit for bit (`assert_tensor_equal`). A sum split over devices is
rounded in another order, so distributed results are close (`assert_tensor_allclose`), by one table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from dtorch.tensor import Tensor


class Tolerance(NamedTuple):
    """|a - b| <= atol + rtol |b|, element by element."""

    rtol: float
    atol: float


TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(1e-9, 1e-9),
    torch.float32: Tolerance(1e-5, 2e-5),
    torch.bfloat16: Tolerance(1.6e-2, 1.6e-2),
    torch.float16: Tolerance(2e-3, 2e-3),
    torch.complex128: Tolerance(1e-9, 1e-9),
    torch.complex64: Tolerance(1e-5, 2e-5),
    torch.complex32: Tolerance(2e-3, 2e-3),
}
"""A few units in the last place times the length of a small sum. Integers and bools must be equal."""

EXACT = Tolerance(0.0, 0.0)


def tolerance(*tensors: torch.Tensor) -> Tolerance:
    """The widest tolerance of the tensors' dtypes."""
    return max((TOLERANCES.get(t.dtype, EXACT) for t in tensors), default=EXACT)


def plain(tensor: Any) -> torch.Tensor:
    """The full value as a plain tensor without history."""
    if isinstance(tensor, Tensor):
        return tensor.to_torch()
    return torch.as_tensor(tensor).detach()


def assert_tensor_equal(*args: Any) -> None:
    """Two tensors have one shape, one dtype and the same bits; NaN equals NaN.

    Args:
        args: the two, plain or distributed in any combination; a `unittest.TestCase` may stand before them.

    Raises:
        AssertionError: they differ; the text says in what, by how much and where.
    """
    _check(*_two(args), EXACT)


def assert_tensor_allclose(*args: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Two tensors have one shape, one dtype and close values; NaN equals NaN, Inf equals Inf.

    Args:
        args: the two, plain or distributed in any combination; a `unittest.TestCase` may stand before them.
        rtol: relative tolerance; by default that of the dtype, see `TOLERANCES`.
        atol: absolute tolerance, likewise.

    Raises:
        AssertionError: they differ; the text says in what, by how much and where.
    """
    a, b = _two(args)
    usual = tolerance(a, b)
    wanted = Tolerance(usual.rtol if rtol is None else rtol, usual.atol if atol is None else atol)
    _check(a, b, wanted)


def _two(args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    if len(args) not in (2, 3):
        raise TypeError(f"two tensors to compare, a test case before them at most; got {len(args)} arguments")
    return plain(args[-2]), plain(args[-1])


def _check(a: torch.Tensor, b: torch.Tensor, wanted: Tolerance) -> None:
    found = difference(a, b, wanted)
    if found is not None:
        raise AssertionError(found)


def difference(a: torch.Tensor, b: torch.Tensor, wanted: Tolerance | None = None) -> str | None:
    """In what two plain tensors differ, None if in nothing.

    Args:
        a: one.
        b: the other, against which the relative tolerance counts.
        wanted: None for the dtype's own tolerance.
    """
    if a.shape != b.shape:
        return f"shape {list(a.shape)} against {list(b.shape)}"
    if a.dtype != b.dtype:
        return f"dtype {a.dtype} against {b.dtype}"
    wanted = tolerance(b) if wanted is None else wanted
    b = b.to(a.device)
    if wanted == EXACT:
        # Bits, not mere equality: -0. is another result than 0.
        same = _same_bits(a, b)
    else:
        same = torch.isclose(a, b, rtol=wanted.rtol, atol=wanted.atol, equal_nan=True)
    if bool(same.all()):
        return None
    return _describe(a, b, ~same, wanted)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not (a.is_floating_point() or a.is_complex()):
        return a == b
    if a.is_complex():
        return _same_bits(a.real, b.real) & _same_bits(a.imag, b.imag)
    return ((a == b) & (torch.signbit(a) == torch.signbit(b))) | (a.isnan() & b.isnan())


def _describe(a: torch.Tensor, b: torch.Tensor, wrong: torch.Tensor, wanted: Tolerance) -> str:
    where = tuple(int(i) for i in wrong.nonzero()[0])
    text = (
        f"{int(wrong.sum())} of {a.numel()} values differ, first at {list(where)}: {a[where].item()} against "
    )
    text += f"{b[where].item()}"
    if wanted == EXACT:
        return text
    wide = torch.complex128 if a.is_complex() else torch.float64
    largest = (a.to(wide) - b.to(wide)).abs()[wrong].max().item()
    return f"{text}; by at most {largest:.3g} (rtol {wanted.rtol:.1g}, atol {wanted.atol:.1g})"
