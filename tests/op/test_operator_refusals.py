"""What `check_input` refuses, with which words; what makes an operator impossible."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Layout, Shard
from dtorch.errors import MeshMismatchError, PlacementError, ShapeError
from dtorch.op.call import OutputMeta
from dtorch.op.dims import Rule
from dtorch.op.operator import Operator
from dtorch.op.signature import PlacementSignature
from dtorch.operators import add_operator
from dtorch.spec import Spec
from tests.op_life import CLIP, MESH, ONE, OTHER, LifeClip, X, made, on, variant


def test_check_input_is_honoured() -> None:
    def even(self: Operator) -> None:
        Operator.check_input(self)
        if self.shapes[0][1] % 2:  # type: ignore[index]
            raise PlacementError("only an even number of columns")

    _, param = variant("LifeEven", check_input=even)
    with pytest.raises(PlacementError, match="only an even number of columns"):
        add_operator(param, on(MESH))
    add_operator(param, on(MESH, of=X.t().contiguous()))


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        (
            [on(MESH), on(OTHER)],
            MeshMismatchError,
            r"LifeClip got inputs on different meshes: .*2.*; bring them together first",
        ),
        ([on(MESH), on(ONE)], MeshMismatchError, "LifeClip got distributed and one-device inputs together"),
        (
            [on(MESH), on(MESH, of=X.long())],
            TypeError,
            r"LifeClip wants inputs of one dtype, got \['torch.float32', 'torch.int64'\]",
        ),
    ],
)
def test_refusals(tensors: list[dtorch.Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(*tensors).check_input()


@pytest.mark.parametrize(
    "layout",
    [Layout.replicate((2,), (4, 6)), Layout.replicate((3,), (4, 5)), Layout.replicate((2, 2), (4, 5))],
)
def test_a_layout_that_does_not_fit_is_refused(layout: Layout) -> None:
    with pytest.raises((ShapeError, MeshMismatchError), match="4, 5"):
        Spec((4, 5), (5, 1), torch.float32, layout, MESH)
    # A spec cannot be made so; an operand of another library could be.
    spec = SimpleNamespace(shape=(4, 5), dtype=torch.float32, layout=layout, mesh=MESH)
    stranger: Any = SimpleNamespace(spec=spec, shape=(4, 5), layout=layout, is_distributed=True)
    with pytest.raises(PlacementError, match=r"LifeClip: layout .* does not fit \(4, 5\) on "):
        LifeClip(CLIP, [stranger]).check_input()


def test_absent_inputs_are_no_obstacle() -> None:
    def signature(self: Operator) -> PlacementSignature:
        builder = PlacementSignature.builder(2, 1)
        return builder.add_input("S0").add_optional_input("R").add_output("S0").build().finish()

    _, param = variant("LifeOptional", get_placement_signature=signature)
    y = add_operator(param, on(MESH, Shard(0)), None)
    assert y.placements == [Shard(0)]
    assert torch.equal(y.to_torch(), X.clamp(-2, 3))


def test_an_operator_without_inputs_has_no_mesh() -> None:
    with pytest.raises(PlacementError, match="LifeClip has no input, so its mesh must be given"):
        _ = LifeClip(CLIP, []).mesh
    with pytest.raises(TypeError, match="LifeClip is no torch call"):
        _ = LifeClip(CLIP, []).call


class FaultyRule(Operator):
    """An operator of torch whose class has a bug."""

    torch_ops = ("dtorch_faulty.twice",)

    def rule(self) -> Rule | None:
        """Broken."""
        return {}["no such dim"]


class FaultyMeta(Operator):
    """An operator of torch whose class has a bug elsewhere."""

    torch_ops = ("dtorch_faulty.thrice",)

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """Broken."""
        raise ZeroDivisionError("of the class")


@torch.library.custom_op("dtorch_faulty::twice", mutates_args=())
def _twice(x: torch.Tensor) -> torch.Tensor:
    if x.dim() == 1:
        raise ValueError("twice wants a matrix")
    return x * 2


_twice.register_fake(torch.empty_like)


@torch.library.custom_op("dtorch_faulty::thrice", mutates_args=())
def _thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@torch.library.custom_op("dtorch_faulty::no_meta", mutates_args=())
def _no_meta(x: torch.Tensor) -> torch.Tensor:
    return x * 4


@pytest.mark.parametrize("placement", ["R", "S0", "P"])
def test_a_fault_of_a_class_surfaces(placement: str) -> None:
    """It is no reason to run the operator whole instead, and is there at every call."""
    x = on(MESH, placement)
    for _ in range(2):
        with pytest.raises(KeyError, match="no such dim"):
            torch.ops.dtorch_faulty.twice(x)
        with pytest.raises(ZeroDivisionError, match="of the class"):
            torch.ops.dtorch_faulty.thrice(x)


@pytest.mark.parametrize("placement", ["R", "S0", "P"])
def test_an_illegal_call_that_meta_kernels_let_pass_is_torchs_to_refuse(placement: str) -> None:
    """Although the rule meets it first."""
    with pytest.raises(ValueError, match="twice wants a matrix"):
        torch.ops.dtorch_faulty.twice(on(MESH, placement, of=torch.arange(3.0)))


@pytest.mark.parametrize("placement", ["R", "S0", "P"])
def test_without_a_meta_kernel_an_operator_runs_whole(placement: str) -> None:
    y = torch.ops.dtorch_faulty.no_meta(on(MESH, placement))
    assert torch.equal(y.to_torch(), X * 4)
    assert y.placements == [dtorch.Replicate()]
