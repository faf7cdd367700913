"""Operators out of PyTorch's own database, forward and backward, on 1 and on 4 devices, equal plain torch.

A seeded sample of 80; DTORCH_CASES=10 tries all. `python -m tests.opinfo` prints a line for each.
"""

from typing import Any

import pytest
import torch

from tests import opinfo
from tests.support import sample

with opinfo.quiet():
    from torch.testing._internal.common_methods_invocations import op_db

SEED = 0

ENTRIES = [op for op in op_db if opinfo.refused(op) is None]


def entries(size: int) -> list[Any]:
    return [pytest.param(op, size, id=f"{opinfo.name_of(op)}-{size}") for op in sample(ENTRIES, 80, SEED)]


@pytest.mark.parametrize(("op", "size"), [*entries(1), *entries(4)])
def test_as_plain_torch(op: Any, size: int) -> None:
    try:
        opinfo.check(op, size, SEED)
    except opinfo.Ineligible as reason:
        pytest.skip(f"{opinfo.name_of(op)}: {reason}; {opinfo.ELIGIBILITY}")


@pytest.mark.parametrize(
    ("name", "seed"), [("tensor_split", 0), ("nn.functional.linear_cross_entropy/chunked_none", 1)]
)
def test_what_cannot_work_is_listed_with_its_reason(name: str, seed: int) -> None:
    (op,) = [op for op in ENTRIES if opinfo.name_of(op) == name]
    assert opinfo.check(op, 1, seed) > 0, f"{name} works now: take it off the list"


def test_the_list_is_covered() -> None:
    assert opinfo.CANNOT.keys() == {"tensor_split", "nn.functional.linear_cross_entropy/chunked_none"}


def test_the_comparison_can_fail() -> None:
    op = next(op for op in ENTRIES if op.name == "exp")
    case = opinfo.samples_of(op, SEED)[0]
    leaves, outputs, gradients = opinfo.reference(op, case)
    off = [outputs[0] * (1 + 1e-2)]
    with pytest.raises(AssertionError, match=r"output 0: .* values differ"):
        opinfo.compare(op, case, (leaves, off, gradients), opinfo.MESHES[4], SEED)
    with pytest.raises(AssertionError, match=r"gradient 0: .* values differ"):
        opinfo.compare(op, case, (leaves, outputs, [-g for g in gradients]), opinfo.MESHES[4], SEED)
    with pytest.raises(AssertionError, match=r"output 0: .* values differ"):
        opinfo.compare(
            op,
            case,
            (leaves, [torch.nextafter(outputs[0], outputs[0] + 1)], gradients),
            opinfo.MESHES[1],
            SEED,
        )
