"""Errors: torch's type and text at the call, with operator, placements and line; everything else goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dtorch
from dtorch import MeshMismatchError, Partial, PlacementError, Replicate, Shard, UnsupportedError
from dtorch.errors import OperatorError
from dtorch.graph.confirm import failure_at
from dtorch.testing import assert_tensor_allclose as close
from tests.places import MATRIX_PLACES, PLACES, S0_2, S1_2, Place, randn

Make = Callable[[torch.Tensor], torch.Tensor]
"""Makes what a call gets of a plain tensor: a distributed one, or itself."""


def _ids(*values: int) -> torch.Tensor:
    return torch.tensor(values)


ILLEGAL: dict[str, Callable[[Make], Any]] = {
    "matmul of sizes that do not fit": lambda m: m(randn(5, 4)) @ m(randn(5, 3)),
    "broadcast": lambda m: m(randn(5, 4)) + m(randn(5, 3)),
    "linear": lambda m: F.linear(m(randn(5, 4)), m(randn(3, 5))),
    "view": lambda m: m(randn(5, 4)).view(3, 3),
    "cat": lambda m: torch.cat([m(randn(5, 4)), m(randn(3, 3))]),
    "split": lambda m: m(randn(5, 4)).split([1, 1]),
    "expand": lambda m: m(randn(5, 4)).expand(2, 4),
    "dim out of range": lambda m: m(randn(5, 4)).sum(3),
    "softmax dim": lambda m: m(randn(5, 4)).softmax(2),
    "row out of range": lambda m: m(randn(5, 4))[7],
    "index out of range": lambda m: m(randn(5, 4))[_ids(1, 7)],
    "embedding": lambda m: F.embedding(_ids(1, 9), m(randn(5, 4))),
    "embedding, ids spread": lambda m: F.embedding(m(_ids(1, 9, 2)[:, None]), m(randn(5, 4))),
    "index_select": lambda m: m(randn(5, 4)).index_select(0, _ids(9)),
    "gather": lambda m: m(randn(5, 4)).gather(0, torch.full((2, 4), 8)),
    "scatter": lambda m: m(randn(5, 4)).scatter(0, torch.full((2, 4), 8), 1.0),
    "class out of range": lambda m: F.cross_entropy(m(randn(5, 4)), _ids(0, 1, 2, 3, 9)),
    "in-place broadcast": lambda m: m(randn(5, 1)).add_(m(randn(5, 4))),
    "in-place cast": lambda m: m(randn(5, 4)).add_(torch.ones(5, 4, dtype=torch.complex64)),
    "no kernel for the dtype": lambda m: m(randn(5, 4)) & 1,
    "not positive definite": lambda m: torch.linalg.cholesky(m(-torch.eye(4))),
    "singular": lambda m: torch.linalg.inv(m(torch.zeros(4, 4))),
    "probabilities below zero": lambda m: torch.multinomial(m(-torch.ones(3, 3)), 2),
    "dim of slice_scatter": lambda m: torch.slice_scatter(m(randn(5, 4)), m(randn(1, 4)), 7, 0, 1),
    "item of many": lambda m: m(randn(5, 4)).item(),
    "bool of many": lambda m: bool(m(randn(5, 4))),
}

_UNPLACED = {"dim out of range", "softmax dim", "row out of range", "item of many", "bool of many"}
"""Refused by torch before an operator is reached."""


@PLACES
@pytest.mark.parametrize("name", ILLEGAL)
def test_torchs_error_is_raised_at_the_call(place: Place, name: str) -> None:
    call = ILLEGAL[name]
    with pytest.raises(Exception) as wanted:  # noqa: PT011  (whatever torch raises)
        call(lambda t: t)
    with pytest.raises(type(wanted.value)) as found:
        call(place.put)
    assert type(found.value) is type(wanted.value)
    if name not in _UNPLACED:
        assert "with placements" in str(found.value)
        assert f"called from {__file__}" in str(found.value)


@pytest.mark.parametrize("place", MATRIX_PLACES[1:], ids=str)
def test_the_text_names_operator_shapes_placements_and_line(place: Place) -> None:
    x, w = place.put(randn(5, 4)), place.put(randn(5, 3))
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(RuntimeError) as found:
        x @ w
    given = list(x.placements)
    assert str(found.value).splitlines() == [
        "mat1 and mat2 shapes cannot be multiplied (5x4 and 5x3)",
        f"  in Mm([5, 4] x [5, 3]) with placements {given}, {given}",
        f"  called from {__file__}:{line}",
    ]
    assert found.value.__cause__ is not None


def test_errors_of_a_kernel_name_the_placements_as_the_user_had_them() -> None:
    """Not those that an operator without a rule converts its inputs to."""
    x = S0_2.put(-torch.eye(4))
    with pytest.raises(RuntimeError, match=r"LinalgInvEx|LinalgCheckErrors"):
        torch.linalg.inv(S0_2.put(torch.zeros(4, 4)))
    with pytest.raises(RuntimeError, match=r"with placements \[Shard\(0\)\]"):
        x.view(3, 3)


@PLACES
@pytest.mark.parametrize("name", ILLEGAL)
def test_everything_is_usable_after_an_error(place: Place, name: str) -> None:
    x, leaf = place.put(randn(5, 4)), place.put(randn(5, 4), requires_grad=True)
    y = (leaf * x).sin()
    with pytest.raises(Exception):  # noqa: B017, PT011
        ILLEGAL[name](place.put)
    with pytest.raises(Exception):  # noqa: B017, PT011  (a second time too: nothing wrong was kept)
        ILLEGAL[name](place.put)
    y.sum().backward()
    close(leaf.grad, (randn(5, 4) ** 2).cos() * randn(5, 4))
    close(x + 1, randn(5, 4) + 1)
    close(x @ x.t(), randn(5, 4) @ randn(5, 4).t())


@PLACES
def test_an_error_in_a_backward_leaves_the_forward_usable(place: Place) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad @ grad[:, :2]

    leaf = place.put(randn(5, 4), requires_grad=True)
    y = leaf.sin()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        Failing.apply(y).sum().backward()
    assert leaf.grad is None
    y.sum().backward()
    close(leaf.grad, randn(5, 4).cos())


class _Picky(RuntimeError):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def test_an_exception_that_takes_more_than_a_text_becomes_an_operator_error() -> None:
    x = S0_2.put(randn(5, 4))
    with dtorch.record() as nodes:
        x.sin()
    (operator,) = nodes.operators
    found = failure_at(_Picky("out of luck", 3), operator, [x._operand])
    assert type(found) is OperatorError
    assert str(found).startswith("out of luck\n  in Sin([5, 4] -> [5, 4]) with placements [Shard(0)]\n")


# -- what dtorch itself refuses -----------------------------------------------------------------------------


def test_two_meshes_in_one_operator() -> None:
    x = S0_2.put(randn(5, 4))
    y = dtorch.Tensor(randn(5, 4), device_mesh=dtorch.DeviceMesh("cpu", [3, 4]), placements=[Shard(0)])
    with pytest.raises(MeshMismatchError) as found:
        torch.add(x, y)
    text = str(found.value)
    assert text.startswith("aten.add.Tensor got tensors on two meshes, ")
    assert "x.redistribute(mesh, placements) or x.to(mesh)" in text
    assert f"called from {__file__}:" in text
    close(x + y.redistribute(x.device_mesh, [Shard(1)]), 2 * randn(5, 4))


@pytest.mark.parametrize(
    "write",
    [
        lambda p, d: p.__iadd__(d),
        lambda p, d: p.mul_(d),
        lambda p, d: p.clamp_(min=d),
        lambda p, d: p.addcmul_(d, d),
        lambda p, d: torch.nn.functional.relu_(p).sub_(d),
    ],
)
def test_arithmetic_on_a_plain_tensor_in_place_is_refused_with_the_reason(write: Callable[..., Any]) -> None:
    plain = torch.zeros(5, 4)
    with pytest.raises(
        UnsupportedError, match="would write a distributed result into a plain tensor"
    ) as found:
        write(plain, S0_2.put(randn(5, 4)))
    assert "dtorch.Tensor(plain, device_mesh=..., placements=...)" in str(found.value)
    assert plain.abs().sum() == 0


@PLACES
def test_a_target_that_torch_would_resize_is_refused_and_kept(place: Place) -> None:
    x = place.put(torch.ones(1, 1))
    with pytest.raises(UnsupportedError, match=r"would make the \[1, 1\] tensor that it writes \[5, 2\]"):
        x.addbmm_(torch.randn(3, 5, 4), torch.randn(3, 4, 2))
    assert x.to_torch().tolist() == [[1.0]]


@PLACES
def test_what_merely_fills_a_plain_tensor_is_carried_back(place: Place) -> None:
    x, plain = place.put(randn(5, 4)), torch.zeros(5, 4)
    plain.copy_(x)
    close(plain, randn(5, 4))
    plain[1:3] = x[:2]
    close(plain[1:3], randn(5, 4)[:2])
    plain.index_copy_(0, _ids(4), x[:1])
    close(plain[4], randn(5, 4)[0])
    assert type(plain) is torch.Tensor


STRICT: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "mm": (
        lambda: S1_2.put(randn(4, 5)) @ S1_2.put(randn(5, 4)),
        [
            "Matmul([4, 5] x [5, 4] -> [4, 4]) fits no placement rule without communication, and the policy",
            "input 0: [Shard(1)]",
            "input 1: [Shard(1)]",
            "S(0), R -> S(0)",
            "S(1), S(0) -> P",
            "R, S(1) -> S(1)",
            "cheapest fix (80 bytes): input 0.redistribute(placements=[Replicate()]), 80 bytes",
        ],
    ),
    "a pending sum": (
        lambda: dtorch.Tensor(randn(5, 4), device_mesh=S0_2.mesh, placements=[Partial()]).relu(),
        [
            "ReLU([5, 4] -> [5, 4], inplace=False) fits no placement rule",
            "input 0: [Partial()]",
            "S(0) -> S(0)",
            "160 bytes",
        ],
    ),
    "no rule of its own": (
        lambda: S0_2.put(randn(5, 4)).histc(3, -1.0, 1.0),
        ["Histc(", "input 0: [Shard(0)]", "R -> R", "cheapest fix (80 bytes): input 0.redistribute"],
    ),
}


@pytest.mark.parametrize("name", STRICT)
def test_strict_lists_placements_rules_and_the_cheapest_fix(name: str) -> None:
    call, parts = STRICT[name]
    with dtorch.strict(), pytest.raises(PlacementError) as found:
        call()
    text = str(found.value)
    assert [part for part in parts if part not in text] == []
    assert f"called from {__file__}:" in text
    call()  # the policy has ended


def test_the_fix_that_strict_names_works_and_costs_what_it_says() -> None:
    a, b = S1_2.put(randn(4, 5)), S1_2.put(randn(5, 4))
    with dtorch.strict(), dtorch.record() as nodes:
        fixed = a.redistribute(placements=[Replicate()])
        y = fixed @ b
    assert [c.bytes for c in nodes.communications()] == [80]
    close(y, randn(4, 5) @ randn(5, 4))


@PLACES
def test_strict_lets_reductions_statistics_gradients_and_reading_send(place: Place) -> None:
    with dtorch.strict():
        leaf = place.whole(randn(4), requires_grad=True)
        y = (place.put(randn(5, 4)) * leaf).softmax(-1)
        y.pow(2).sum().backward()
        y.to_torch()
    assert leaf.grad is not None
    assert leaf.grad.placements == leaf.placements


# -- operators of users -------------------------------------------------------------------------------------

_LIB = torch.library.Library("dtorch_errors", "DEF")
_LIB.define("fill_with(Tensor x, Tensor(a!) out, *, Tensor? w=None) -> ()")
_LIB.define("broken(Tensor x) -> Tensor")


def _fill_with(x: torch.Tensor, out: torch.Tensor, *, w: torch.Tensor | None = None) -> None:
    out.copy_(x if w is None else x * w)


def _broken(x: torch.Tensor) -> torch.Tensor:
    raise KeyError("the operator is broken")


_LIB.impl("fill_with", _fill_with, "CPU")
_LIB.impl("broken", _broken, "CPU")


@PLACES
@pytest.mark.parametrize("weighted", [False, True])
def test_an_unknown_operator_that_writes_an_argument_is_written_back(place: Place, weighted: bool) -> None:
    x, out = place.put(randn(5, 4)), place.put(torch.zeros(7, 4))
    view = out[1:6]
    w = place.put(randn(5, 4, seed=1)) if weighted else None
    assert torch.ops.dtorch_errors.fill_with(x, view, w=w) is None
    wanted = torch.zeros(7, 4)
    wanted[1:6] = randn(5, 4) * (randn(5, 4, seed=1) if weighted else 1)
    close(out, wanted)
    close(view, wanted[1:6])
    assert out.placements == place.put(randn(7, 4)).placements


def test_an_exception_of_a_users_kernel_keeps_its_type() -> None:
    x = S0_2.put(randn(5, 4))
    with pytest.raises(KeyError, match="the operator is broken"):
        torch.ops.dtorch_errors.broken(x)
    close(x * 2, randn(5, 4) * 2)
