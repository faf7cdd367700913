"""One format for all operators: `Kind(inputs -> outputs, parameters)`."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dtorch
from dtorch.op.param import Slot, TorchCall
from dtorch.operators import OperatorFactory, operand
from tests.op_life import CLIP, MESH, made, on

X = Slot(0), Slot(1), Slot(2)

CALLS: list[tuple[str, tuple, list[tuple[int, ...]], str]] = [
    ("aten.mm.default", X[:2], [(4, 8), (8, 6)], "Matmul([4, 8] x [8, 6] -> [4, 6])"),
    ("aten.bmm.default", X[:2], [(2, 4, 8), (2, 8, 6)], "Matmul([2, 4, 8] x [2, 8, 6] -> [2, 4, 6])"),
    ("aten.mv.default", X[:2], [(4, 8), (8,)], "Matmul([4, 8] x [8] -> [4])"),
    ("aten.dot.default", X[:2], [(8,), (8,)], "Matmul([8] x [8] -> [])"),
    ("aten.addmm.default", X, [(6,), (4, 8), (8, 6)], "Matmul([4, 8] x [8, 6] + [6] -> [4, 6])"),
    ("aten.linear.default", X, [(4, 8), (6, 8), (6,)], "Linear([4, 8] x [6, 8] x [6] -> [4, 6])"),
    ("aten.relu.default", X[:1], [(4, 8)], "ReLU([4, 8] -> [4, 8], inplace=False)"),
    ("aten.relu_.default", X[:1], [(4, 8)], "ReLU([4, 8] -> [4, 8], inplace=True)"),
    ("aten.gelu.default", X[:1], [(4, 8)], "GELU([4, 8] -> [4, 8], inplace=False)"),
    ("aten.silu.default", X[:1], [(4, 8)], "SiLU([4, 8] -> [4, 8], inplace=False)"),
    (
        "aten.leaky_relu.default",
        (X[0], 0.2),
        [(4, 8)],
        "LeakyReLU([4, 8] -> [4, 8], negative_slope=0.2, inplace=False)",
    ),
    ("aten.silu_backward.default", X[:2], [(4, 8), (4, 8)], "SiLUBackward([4, 8] x [4, 8] -> [4, 8])"),
    ("aten.exp.default", X[:1], [(4, 8)], "Exp([4, 8] -> [4, 8])"),
    ("aten.add.Tensor", (X[0], 2.0), [(4, 8)], "Add([4, 8] -> [4, 8], other=2.0)"),
    ("aten.clamp.default", (X[0], -1, None), [(4, 8)], "Clamp([4, 8] -> [4, 8], min=-1)"),
    (
        "aten.sum.dim_IntList",
        (X[0], [0, 1], True),
        [(2, 3)],
        "Sum([2, 3] -> [1, 1], dim=[0, 1], keepdim=True)",
    ),
    (
        "aten._softmax.default",
        (X[0], 1, False),
        [(4, 8)],
        "Softmax([4, 8] -> [4, 8], dim=1, half_to_float=False)",
    ),
    (
        "aten._log_softmax.default",
        (X[0], 1, False),
        [(4, 8)],
        "LogSoftmax([4, 8] -> [4, 8], dim=1, half_to_float=False)",
    ),
    ("aten._to_copy.default", X[:1], [(4, 8)], "To([4, 8] -> [4, 8], dtype=float16)"),
    ("aten.zeros_like.default", X[:1], [(4, 8)], "Create(-> [4, 8], float32)"),
    ("aten.new_empty.default", (X[0], [2, 3, 4, 5]), [(4, 8)], "Create(-> [2, 3, 4, 5], float32)"),
    ("aten.full_like.default", (X[0], 7), [(4, 8)], "Create(-> [4, 8], float32, fill_value=7)"),
    ("aten.t.default", X[:1], [(4, 8)], "Transpose([4, 8] -> [8, 4])"),
    ("aten.transpose.int", (X[0], 0, 1), [(4, 8)], "Transpose([4, 8] -> [8, 4], dim0=0, dim1=1)"),
    ("aten.permute.default", (X[0], [1, 0]), [(4, 8)], "Permute([4, 8] -> [8, 4], dims=[1, 0])"),
    ("aten.view.default", (X[0], [32]), [(4, 8)], "View([4, 8] -> [32])"),
    ("aten._unsafe_view.default", (X[0], [32]), [(4, 8)], "View([4, 8] -> [32])"),
    ("aten.reshape.default", (X[0], [32]), [(4, 8)], "Reshape([4, 8] -> [32])"),
    (
        "aten.native_layer_norm.default",
        (X[0], [8], None, None, 1e-5),
        [(4, 8)],
        "LayerNorm([4, 8] -> [4, 8], [4, 1], [4, 1], normalized_shape=[8], eps=1e-05)",
    ),
]


@pytest.mark.parametrize(("name", "args", "shapes", "text"), CALLS, ids=[call[0] for call in CALLS])
def test_a_call_of_torch(name: str, args: tuple, shapes: list[tuple[int, ...]], text: str) -> None:
    kwargs: dict[str, Any] = {"dtype": torch.float16} if "to_copy" in name else {}
    inputs = [operand(on(MESH, of=torch.randn(shape))) for shape in shapes]
    assert OperatorFactory.new_operator(TorchCall(name, args, kwargs), inputs).describe() == text


def test_typed_parameters() -> None:
    operator = made(on(MESH))
    assert operator.describe() == "LifeClip([4, 5], low=-2.0, high=3.0)"
    operator.infer()
    assert operator.describe() == "LifeClip([4, 5] -> [4, 5], low=-2.0, high=3.0)"
    assert made(on(MESH), param=CLIP).describe().startswith("LifeClip")


def kinds_of(run: Any) -> list[str]:
    with dtorch.record() as graph:
        run()
    return [node.operator.kind_name() for node in graph]


def test_attention_and_losses_have_short_names() -> None:
    def attention() -> None:
        q = on(MESH, of=torch.randn(2, 4, 6, 8)).requires_grad_()
        F.scaled_dot_product_attention(q, q, q).sum().backward()

    def loss() -> None:
        x = on(MESH, of=torch.randn(4, 8)).requires_grad_()
        F.cross_entropy(x, torch.tensor([1, 2, 3, 0])).backward()

    assert {"Sdpa", "SdpaBackward"} <= set(kinds_of(attention))
    assert {"LogSoftmax", "NLLLoss", "NLLLossBackward", "LogSoftmaxBackward"} <= set(kinds_of(loss))


def test_an_unknown_argument_is_named() -> None:
    operator = OperatorFactory.new_operator(
        TorchCall("aten.view.default", (Slot(0), [20]), {}), [operand(on(MESH))]
    )
    with pytest.raises(TypeError, match=r"aten\.view\.default has no argument shape; it has self, size"):
        operator.localized((0,), shape=[20])
