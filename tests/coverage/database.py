"""What of PyTorch's operator database is tried: entries, dtypes, forms and samples; what is not, and why."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import torch

FLOAT = torch.float32

KINDS: dict[str, tuple[torch.dtype, ...]] = {
    "float32": (torch.float32, torch.float64),
    "bfloat16": (torch.bfloat16, torch.float16),
    "int64": (torch.int64, torch.int32),
    "bool": (torch.bool,),
    "complex64": (torch.complex64, torch.complex128),
}
"""Kinds of dtype; of each the first that an entry has."""

UNINITIALISED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}

UNREPEATABLE = {"linalg.lstsq"}
"""Plain torch gives other bits from run to run (LAPACK's gelsy)."""

TIES = {"topk"}
"""torch leaves open which of equal values it takes; these get distinct ones."""


class Cannot(NamedTuple):
    """What cannot work, so its cases are listed, neither passed over nor counted as right.

    Attributes:
        form: in which an entry cannot work; "" for all.
        text: of the error.
        why: it cannot be otherwise.
    """

    form: str
    text: str
    why: str


CANNOT: dict[str, Cannot] = {
    "tensor_split": Cannot(
        "",
        "its data is not allocated yet",
        "torch reads a tensor of indices at its memory address, before it asks anyone; give a list",
    ),
    "nn.functional.linear_cross_entropy/chunked_none": Cannot(
        "",
        "would write a distributed result into a plain tensor",
        "torch's chunked form accumulates into plain tensors of its own",
    ),
    "addbmm": Cannot(
        "in-place",
        "use the out-of-place form",
        "torch resizes a smaller target, which a distributed tensor cannot be; addmm_, baddbmm_ refuse",
    ),
    **dict.fromkeys(
        ("linalg.matrix_rank", "linalg.matrix_rank/hermitian"),
        Cannot(
            "out",
            "values differ, first at",
            "of a tensor subclass torch never writes `out`, and nobody is asked; take what is returned",
        ),
    ),
}

ELIGIBILITY = (
    "eligible: an entry with a dtype of the kind on the CPU, a tensor among the arguments, dense inputs and "
    "outputs, samples that plain torch accepts and answers alike twice from one seed"
)


class Ineligible(Exception):
    """Why an entry, a sample or a form is not tried."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let torch's test code and odd samples warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def database() -> tuple[Any, ...]:
    """All entries."""
    with quiet():
        from torch.testing._internal.common_methods_invocations import op_db
    return tuple(op_db)


def name_of(op: Any) -> str:
    """`linalg.norm`, `linalg.norm/subgradients_at_zero`."""
    return f"{op.name}/{op.variant_test_name}" if op.variant_test_name else op.name


def dtype_of(op: Any, kind: str) -> torch.dtype | None:
    """The dtype of a kind in which an entry is tried; None where it has none."""
    return next((dtype for dtype in KINDS[kind] if dtype in op.dtypes), None)


def refused(op: Any, kind: str = "float32") -> str | None:
    """Why an entry is not eligible, as far as the database tells; None where it may be."""
    if dtype_of(op, kind) is None:
        return f"no {kind} on the CPU"
    if op.name in UNINITIALISED:
        return "uninitialised memory"
    if op.name in UNREPEATABLE:
        return "plain torch gives other bits from run to run"
    if op.name.startswith("signal.windows."):
        return "no tensor among the arguments"
    if op.name.startswith(("sparse.", "to_sparse")):
        return "sparse"
    return None


def samples_of(op: Any, kind: str, count: int, seed: int) -> list[Any]:
    """A few samples of an entry, chosen among its first hundred."""
    dtype = dtype_of(op, kind)
    assert dtype is not None
    smooth = dtype.is_floating_point or dtype.is_complex
    differentiable = smooth and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(seed)
    try:
        with quiet():
            found = list(islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), 100))
    except Exception as error:
        raise Ineligible(
            f"the database makes no samples: {type(error).__name__}: {first_line(error)}"
        ) from None
    chosen = random.Random(seed).sample(range(len(found)), min(count, len(found)))
    samples = [found[i] for i in sorted(chosen)]
    for sample in samples if op.name in TIES else ():
        sample.input = _distinct(sample.input)
    return samples


def _distinct(like: torch.Tensor) -> torch.Tensor:
    """A tensor of the same kind without equal values."""
    values = torch.randperm(like.numel()) - like.numel() // 2
    return values.to(like.dtype).reshape(like.shape).requires_grad_(like.requires_grad)


class Form(NamedTuple):
    """A way to call an entry.

    Attributes:
        name: function, method, in-place or out.
        call: what is called.
    """

    name: str
    call: Any


def forms_of(op: Any) -> list[Form]:
    """The forms that an entry has; the function first."""
    forms = [Form("function", op)]
    if op.method_variant is not None:
        forms.append(Form("method", op.method_variant))
    if op.inplace_variant is not None:
        forms.append(Form("in-place", op.inplace_variant))
    if op.supports_out:
        forms.append(Form("out", op))
    return forms


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).splitlines() or [""])[0]
