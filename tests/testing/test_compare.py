"""Comparing tensors and combining arguments."""

import unittest
from collections import OrderedDict

import pytest
import torch

import dtorch
from dtorch.testing import TOLERANCES, assert_tensor_allclose, assert_tensor_equal, gen_arg_list

MESH = dtorch.DeviceMesh("cpu", [0, 1, 2])
A = torch.arange(10.0).reshape(5, 2)


def on_mesh(x: torch.Tensor, *placements: dtorch.Placement) -> dtorch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=list(placements) or None)


@pytest.mark.parametrize("a", [A, on_mesh(A), on_mesh(A, dtorch.Shard(0)), on_mesh(A, dtorch.Partial())])
@pytest.mark.parametrize("b", [A, on_mesh(A, dtorch.Shard(1))])
def test_plain_and_distributed_mix(a: torch.Tensor, b: torch.Tensor) -> None:
    assert_tensor_equal(a, b)
    assert_tensor_allclose(a, b)


def test_a_test_case_may_come_first() -> None:
    case = unittest.TestCase()
    assert_tensor_equal(case, A, on_mesh(A))
    assert_tensor_allclose(case, A, on_mesh(A), rtol=0, atol=0)
    with pytest.raises(AssertionError):
        assert_tensor_equal(case, A, A + 1)
    with pytest.raises(
        TypeError, match="two tensors to compare, a test case before them at most; got 1 arguments"
    ):
        assert_tensor_equal(A)


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (A[:4], r"shape \[5, 2\] against \[4, 2\]"),
        (A.double(), "dtype torch.float32 against torch.float64"),
        (A + torch.tensor([[0.0, 0.5]]), r"5 of 10 values differ, first at \[0, 1\]: 1.0 against 1.5"),
        (
            A.index_fill(0, torch.tensor([2]), float("nan")),
            r"2 of 10 values differ, first at \[2, 0\]: 4.0 against nan",
        ),
    ],
)
def test_the_text_says_in_what_they_differ(b: torch.Tensor, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_tensor_equal(A, b)
    with pytest.raises(AssertionError, match=message):
        assert_tensor_allclose(on_mesh(A, dtorch.Shard(0)), b)


def test_equal_is_bit_for_bit() -> None:
    with pytest.raises(AssertionError, match="1 of 1 values differ"):
        assert_tensor_equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    with pytest.raises(AssertionError, match="1 of 1 values differ"):
        assert_tensor_equal(torch.tensor([1.0]), torch.nextafter(torch.tensor([1.0]), torch.tensor([2.0])))
    assert_tensor_equal(
        torch.tensor([float("nan"), float("inf")]), torch.tensor([float("nan"), float("inf")])
    )
    assert_tensor_equal(torch.tensor([1 + 2j]), torch.tensor([1 + 2j]))
    assert_tensor_equal(torch.tensor(3), 3)


# torch warns of complex32, and computes little with it.
@pytest.mark.parametrize("dtype", [d for d in TOLERANCES if d is not torch.complex32], ids=str)
def test_close_is_by_the_table(dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    a = torch.tensor([1.0, 100.0], dtype=wide)
    rtol = TOLERANCES[dtype].rtol
    near, far = (a * (1 + rtol / 2)).to(dtype), (a * (1 + 10 * rtol)).to(dtype)
    assert_tensor_allclose(near, a.to(dtype))
    with pytest.raises(AssertionError, match=r"values differ.*rtol"):
        assert_tensor_allclose(far, a.to(dtype))
    assert_tensor_allclose(far, a.to(dtype), rtol=20 * rtol)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_close_is_equal_for_whole_numbers(dtype: torch.dtype) -> None:
    a = torch.tensor([0, 1]).to(dtype)
    assert_tensor_allclose(a, a)
    with pytest.raises(AssertionError, match="1 of 2 values differ, first at"):
        assert_tensor_allclose(a, torch.tensor([1, 1]).to(dtype))


def test_arguments_are_a_product() -> None:
    found = list(gen_arg_list(OrderedDict(shape=[(2, 3), (4,)], dtype=[torch.float32, torch.int64])))
    assert found == [
        ((2, 3), torch.float32),
        ((2, 3), torch.int64),
        ((4,), torch.float32),
        ((4,), torch.int64),
    ]


@pytest.mark.parametrize("cuda", ["cuda", "cuda:0", torch.device("cuda", 0)])
def test_devices_that_are_not_there_are_left_out(cuda: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert list(gen_arg_list(OrderedDict(device=["cpu", cuda], n=[1]))) == [("cpu", 1)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert list(gen_arg_list(OrderedDict(device=["cpu", cuda], n=[1]))) == [("cpu", 1), (cuda, 1)]
