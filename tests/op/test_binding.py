"""torch's functions stand for overloads only where they lead to the same overload with the same arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.binding import bare, function_of
from dtorch.op.param import Slot
from dtorch.redistribute.local_work import LocalWork
from dtorch.spec import Spec

ATEN = torch.ops.aten
MESH = DeviceMesh("cpu", [0])
A, B = Slot(0), Slot(1)
FUNCTIONS, METHODS = torch._C._VariableFunctions, torch._C.TensorBase


def spec(ndim: int, dtype: torch.dtype = torch.float32) -> Spec:
    shape = (2, 3, 4)[:ndim]
    return Spec(shape, torch.empty(shape).stride(), dtype, Layout.replicate((1,), shape), MESH)


@pytest.mark.parametrize("hidden", [False, True], ids=["outside", "in local work"])
@pytest.mark.parametrize(
    ("overload", "args", "kwargs", "function"),
    [
        (ATEN.add.Tensor, (A, B), {}, FUNCTIONS.add),
        (ATEN.add.Tensor, (A, B), {"alpha": 2}, FUNCTIONS.add),
        (ATEN.mul.Tensor, (A, 2.0), {}, FUNCTIONS.mul),
        (ATEN.mul.Tensor, (A, Slot(2, 2.0)), {}, FUNCTIONS.mul),
        (ATEN.view.default, (A, [6]), {}, METHODS.view),
        (ATEN.cat.default, ([A, B], 1), {}, FUNCTIONS.cat),
        (ATEN.silu.default, (A,), {}, torch._C._nn.silu),
        (ATEN.linear.default, (A, B), {}, torch._C._nn.linear),
        (ATEN.add_.Tensor, (A, B), {"alpha": 0.5}, METHODS.add_),
    ],
)
def test_the_function_that_leads_to_an_overload(
    overload: Any, args: tuple, kwargs: dict, function: Any, hidden: bool
) -> None:
    from dtorch.op import binding

    binding._FOUND.clear()
    specs = [spec(2), spec(2), None]
    if hidden:
        with LocalWork():
            found = function_of(overload, args, kwargs, specs)
    else:
        found = function_of(overload, args, kwargs, specs)
    name = function.__name__
    assert found.__name__ == name
    assert found is not bare(overload)
    assert found in (getattr(FUNCTIONS, name, None), getattr(METHODS, name, None), function)


@pytest.mark.parametrize(
    ("overload", "args", "kwargs", "specs"),
    [
        (ATEN.mul.Scalar, (A, 2.0), {}, [spec(2)]),  # torch.mul leads to mul.Tensor
        (ATEN.slice.Tensor, (A, 0, 1, 2), {}, [spec(2)]),  # there is no such function
        (ATEN.contiguous.default, (A,), {}, [spec(2)]),  # the method looks at strides first
        (ATEN.pow.Tensor_Scalar, (A, Slot(1)), {}, [spec(2), None]),  # no value to try it with
        (ATEN.full.default, ([2, 3], 1.0), {}, []),  # no tensor
    ],
)
def test_other_overloads_are_called_themselves(overload: Any, args: tuple, kwargs: dict, specs: list) -> None:
    assert function_of(overload, args, kwargs, specs) is bare(overload)


def test_what_is_found_goes_by_the_kinds_of_arguments() -> None:
    """Each overload of a name has its own answer, and each kind of argument."""
    assert function_of(ATEN.mul.Tensor, (A, B), {}, [spec(2), spec(0)]) is FUNCTIONS.mul
    assert function_of(ATEN.mul.Scalar, (A, 2), {}, [spec(2)]) is bare(ATEN.mul.Scalar)
    assert function_of(ATEN.mul.Tensor, (A, 2), {}, [spec(2)]) is FUNCTIONS.mul
    assert function_of(ATEN.sum.dim_IntList, (A, [0]), {}, [spec(2)]) is FUNCTIONS.sum
    assert function_of(ATEN.sum.default, (A,), {}, [spec(2)]) is FUNCTIONS.sum
