"""Counts of operators that only other devices' torch makes, or that need hardware: priced, not run."""

import re
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh
from dtorch.layout import Layout
from dtorch.op.cost import OperatorCost
from dtorch.op.factory import class_for
from dtorch.op.operand import Operand
from dtorch.op.registry import class_by_type, class_of, is_composite
from dtorch.op.schema import base_name, schema_of
from dtorch.ops.standard.general_counts import COUNTS
from dtorch.ops.standard.general_free import FREE, MEMORY_BOUND
from dtorch.spec import Spec
from dtorch.testing import Call

ONE = DeviceMesh("cpu")
aten = torch.ops.aten


def r(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def operand(t: torch.Tensor | None) -> Operand | None:
    if t is None:
        return None
    shape = tuple(t.shape)
    return Operand(Spec(shape, t.stride(), t.dtype, Layout.replicate((), shape), ONE))


def price(func: Any, *args: Any, **kwargs: Any) -> OperatorCost:
    call = Call.of(func, *args, **kwargs)
    operator = class_for(call.param)(call.param, [operand(t) for t in call.inputs])
    if operator.type != "General":
        operator.infer()
    return operator.price()


Q, KV = r(2, 8, 64, 32), r(2, 4, 128, 32)
SCORES = 2 * 8 * 64 * 128
B, S, H, E = 2, 64, 8, 32
WEIGHTS = [r(20, 6), r(20, 5), r(20), r(20)]
INT8, INT32, FLOAT8 = torch.int8, torch.int32, torch.float8_e4m3fn


CASES = {
    "flash attention": (
        lambda: price(aten._scaled_dot_product_flash_attention.default, Q, Q, Q),
        4 * 2 * 8 * 64 * 64 * 32,
    ),
    "efficient attention": (
        lambda: price(aten._scaled_dot_product_efficient_attention.default, Q, Q, Q, None, True),
        4 * 2 * 8 * 64 * 64 * 32,
    ),
    "packed low-level attention, of even lengths": (
        lambda: price(
            aten._flash_attention_forward.default,
            *[r(B, S, H, E)] * 3, None, None, S, S, 0.0, False, False,
        ),
        4 * B * H * S * S * E,
    ),
    "cudnn's recurrent layer": (
        lambda: price(
            aten._cudnn_rnn.default, r(4, 3, 6), WEIGHTS, 4, None, r(1, 3, 5), r(1, 3, 5), 2, 5, 0, 1,
            False, 0.0, True, False, [], None,
        ),
        2 * 4 * 3 * 20 * (6 + 5),
    ),
    "cudnn's convolution": (
        lambda: price(
            aten.cudnn_convolution.default, r(2, 4, 9, 9), r(6, 2, 3, 3), [0, 0], [1, 1], [1, 1], 2,
            False, False, True,
        ),
        2 * 2 * 6 * 49 * 2 * 9,
    ),
    "its transposed one": (
        lambda: price(
            aten.cudnn_convolution_transpose.default, r(2, 4, 9, 9), r(4, 3, 3, 3), [0, 0], [0, 0], [1, 1],
            [1, 1], 2, False, False, True,
        ),
        2 * 2 * 4 * 81 * 3 * 9,
    ),
    "8-bit floats": (
        lambda: price(
            aten._scaled_mm.default, r(32, 16, dtype=FLOAT8), r(16, 48, dtype=FLOAT8), r(1), r(1)
        ),
        2 * 32 * 16 * 48,
    ),
    "8-bit weights": (
        lambda: price(aten._weight_int8pack_mm.default, r(32, 64), r(48, 64, dtype=INT8), r(48)),
        2 * 32 * 64 * 48,
    ),
    "4-bit weights": (
        lambda: price(
            aten._weight_int4pack_mm.default, r(32, 64), r(6, 4, 32, 4, dtype=INT32), 32, r(2, 48, 2)
        ),
        2 * 32 * 64 * 48,
    ),
    "half of the weights": (
        lambda: price(
            aten._sparse_semi_structured_linear.default, r(32, 64), r(48, 32), r(48, 4, dtype=torch.int16)
        ),
        2 * 32 * 32 * 48,
    ),
    "an epilogue": (
        lambda: price(aten._addmm_activation.default, r(48), r(32, 16), r(16, 48)),
        2 * 32 * 16 * 48,
    ),
    "several products": (
        lambda: price(aten._foreach_mm.default, [r(3, 4), r(5, 6)], [r(4, 2), r(6, 7)]),
        2 * 3 * 4 * 2 + 2 * 5 * 6 * 7,
    ),
    "a linear layer's gradients": (
        lambda: price(aten.linear_backward.default, r(3, 4, 8), r(3, 4, 6), r(6, 8), [True, False, True]),
        2 * 12 * 6 * 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_count(name: str) -> None:
    made, wanted = CASES[name]
    cost = made()
    assert cost.known
    assert cost.flops == wanted
    assert cost.traffic_bytes


def test_lengths_that_only_values_tell_are_unknown() -> None:
    lengths = torch.empty(3, dtype=INT32, device="meta")
    cost = price(
        aten._flash_attention_forward.default,
        *[r(B * S, H, E)] * 3, lengths, lengths, S, S, 0.0, False, False,
    )  # fmt: skip
    assert not cost.known


def test_an_operator_nobody_has_looked_at_is_unknown_and_strict_refuses_it() -> None:
    @torch.library.custom_op("dtorch_test::nobody_looked", mutates_args=())
    def nobody_looked(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    nobody_looked.register_fake(torch.empty_like)
    report = dtorch.price(lambda x: nobody_looked(x), torch.ones(3))
    assert list(report.unknown.values()) == [1]
    assert report.traffic_bytes == 2 * 3 * 4
    with pytest.raises(dtorch.DtorchError, match="NobodyLooked"):
        dtorch.price(lambda x: nobody_looked(x), torch.ones(3), strict=True)


# ---- the lists


def test_no_operator_is_in_two_lists() -> None:
    lists = (set(COUNTS), set(FREE), set(MEMORY_BOUND))
    assert sum(map(len, lists)) == len(set().union(*lists))


def general_names() -> set[str]:
    """aten's operators that have no class of their own."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, kind = rest.partition(".")
        if namespace != "aten":
            continue
        func = getattr(getattr(aten, packet, None), kind or "default", None)
        if func is None or schema_of(func).outs or is_composite(func):
            continue
        takes_tensors = any("Tensor" in str(argument.type) for argument in func._schema.arguments)
        if takes_tensors and schema_of(func).view_of is None and class_of(func) is class_by_type("General"):
            found.add(base_name(func))
    return found


# What stays unknown: tensors that no dtorch tensor can be, and torch's own test operators.
LEFT = re.compile(
    "aten[.](_test_.*|_foobar|.*nested.*|.*mkldnn.*|.*mps.*|.*quantized.*|_?triton.*"
    "|.*sparse.*|_spsolve|hspmm|.*(col|row)_indices_copy|_?(indices|values)_copy|_triton_.*)"
)


def test_every_other_operator_of_torch_is_priced() -> None:
    """One that torch adds is unknown, and shows here, until someone looks at it."""
    named = {*COUNTS, *FREE, *MEMORY_BOUND}
    found = {name for name in general_names() if not name.startswith("aten._foreach_")}
    assert {name for name in found - named if not LEFT.match(name)} == set()


@pytest.mark.parametrize("listed", [COUNTS, FREE, MEMORY_BOUND], ids=["counts", "free", "memory bound"])
def test_lists_hold_what_torch_has_and_no_class_claims(listed: Any) -> None:
    names = {name for name in listed if name.startswith("aten.")}
    assert names - general_names() == set()
