"""FLOPs of contractions without a placement rule: low-precision, grouped and 2:4 sparse products, recurrent
layers that arrive whole, distances, forms of a convolution and of attention that one kind of device has.

A count is a function of the call; `@counts` enters it for torch operators. All inputs are whole on every
device, so a device spends what is counted here. A multiply-add is 2; what is added, scaled, or applied
element by element is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from dtorch.ops.standard import counts as dense

if TYPE_CHECKING:
    from dtorch.ops.standard.general import General

Shape = tuple[int, ...]
Count = Callable[["General"], int | None]

COUNTS: dict[str, Count] = {}
"""Torch operator -> its count; None from a count means that values decide."""


def counts(*names: str) -> Callable[[Count], Count]:
    """Decorator: the count of these operators, those of aten by their bare name."""

    def enter(count: Count) -> Count:
        COUNTS.update({name if "." in name else f"aten.{name}": count for name in names})
        return count

    return enter


def _products(*pairs: tuple[Shape, Shape]) -> int:
    """Of x[..., k] w[k, n] for each pair of shapes."""
    return sum(2 * prod(x) * w[-1] for x, w in pairs)


# Products of matrices.


@counts("_int_mm", "_scaled_mm", "_scaled_mm_v2")
def _mm(call: General) -> int:
    return _products((call.shape_of("self"), call.shape_of("mat2")))


@counts("_addmm_activation")
def _addmm(call: General) -> int:
    return _products((call.shape_of("mat1"), call.shape_of("mat2")))


@counts("_foreach_mm")
def _foreach_mm(call: General) -> int:
    return _products(*zip(call.shapes_of("self"), call.shapes_of("mat2"), strict=True))


@counts("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2")
def _grouped(call: General) -> int:
    """Groups of rows, of columns, or of the contracted dim, cut by offsets that use all up; or a batch."""
    x, w = call.shape_of("self"), call.shape_of("mat2")
    return _products((x, w)) // (x[0] if len(x) == 3 and len(w) == 2 and x[0] else 1)


@counts("_weight_int8pack_mm")
def _int8(call: General) -> int:
    return 2 * prod(call.shape_of("self")) * call.shape_of("scales")[0]


@counts("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu")
def _int4(call: General) -> int:
    return 2 * prod(call.shape_of("self")) * call.shape_of("qScaleAndZeros")[1]


@counts("_weight_int4pack_mm_with_scales_and_zeros")
def _int4_apart(call: General) -> int:
    return 2 * prod(call.shape_of("self")) * call.shape_of("qScale")[1]


@counts("_dyn_quant_matmul_4bit")
def _dynamic(call: General) -> int:
    return 2 * prod(call.shape_of("inp")) * call.arguments["out_features"]


@counts(
    "quantized.linear", "quantized.linear_dynamic", "quantized.linear_dynamic_fp16",
    "quantized.linear_leaky_relu", "quantized.linear_relu", "quantized.linear_relu_dynamic",
    "quantized.linear_relu_dynamic_fp16", "quantized.linear_tanh",
)  # fmt: skip
def _packed(call: General) -> int:
    """The width of packed weights shows in the result alone."""
    return 2 * prod(call.result()) * call.shape_of("X")[-1]


@counts("_mixed_dtypes_linear")
def _mixed(call: General) -> int:
    return 2 * prod(call.shape_of("input")) * prod(call.shape_of("scale"))


@counts("_sparse_semi_structured_mm", "_sparse_semi_structured_addmm")
def _half_sparse_mm(call: General) -> int:
    """Of the half that is kept, which is what mat1 holds."""
    return _products((call.shape_of("mat1"), call.shape_of("mat2")))


@counts("_sparse_semi_structured_linear")
def _half_sparse_linear(call: General) -> int:
    return 2 * prod(call.shape_of("input")[:-1]) * prod(call.shape_of("weight"))


@counts("mkldnn_linear")
def _linear(call: General) -> int:
    return 2 * prod(call.shape_of("self")) * call.shape_of("weight")[0]


@counts("linear_backward")
def _linear_backward(call: General) -> int:
    wanted = sum(call.arguments["output_mask"][i] for i in (0, 1))
    return wanted * 2 * prod(call.shape_of("grad_output")) * call.shape_of("weight")[-1]


@counts("matmul_backward")
def _matmul_backward(call: General) -> int:
    return sum(call.arguments["mask"]) * 2 * prod(call.shape_of("grad")) * call.shape_of("self")[-1]


@counts("torch_nn._linear_cross_entropy_batch_chunked")
def _linear_cross_entropy(call: General) -> int:
    """The logits, and the gradients that are worked out beside the loss."""
    wanted = sum(call.arguments[f"compute_{x}_grad"] for x in ("input", "linear_weight"))
    return (1 + wanted) * _logits(call)


@counts("torch_nn._linear_cross_entropy_batch_chunked_no_reduction")
def _logits(call: General) -> int:
    return 2 * prod(call.shape_of("input")[:-1]) * prod(call.shape_of("linear_weight"))


@counts("_compute_linear_combination")
def _combination(call: General) -> int:
    return 2 * call.shape_of("coefficients")[0] * prod(call.shape_of("input"))


# Convolutions.


@counts("conv_tbc")
def _conv_tbc(call: General) -> int:
    width, channels, _ = call.shape_of("weight")
    return 2 * prod(call.result()) * channels * width


@counts(
    "_conv_depthwise2d", "_mps_convolution", "_nnpack_spatial_convolution", "_slow_conv2d_forward",
    "conv_depthwise3d", "cudnn_convolution", "cudnn_convolution_add_relu", "cudnn_convolution_relu",
    "miopen_convolution", "miopen_convolution_add_relu", "miopen_convolution_relu",
    "miopen_depthwise_convolution",
    "mkldnn_convolution", "slow_conv3d_forward", "slow_conv_dilated2d", "slow_conv_dilated3d",
)  # fmt: skip
def _conv(call: General) -> int:
    """By the arguments: torch has no meta kernels for these."""
    x, w = call.shape_of("self" if call.slot("self") is not None else "input"), call.shape_of("weight")
    places = prod(x[: len(x) - len(w) + 1])
    for d, (n, k) in enumerate(zip(x[2 - len(w) :], w[2:], strict=True)):
        stride, padding, dilation = (
            _of(call.arguments.get(name, 1), d) for name in ("stride", "padding", "dilation")
        )
        places *= (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1
    return 2 * places * prod(w)


def _of(values: int | Sequence[int], dim: int) -> int:
    return values if isinstance(values, int) else values[dim if len(values) > 1 else 0]


@counts(
    "_mps_convolution_transpose", "cudnn_convolution_transpose", "miopen_convolution_transpose",
    "slow_conv_transpose2d", "slow_conv_transpose3d",
)  # fmt: skip
def _conv_transpose(call: General) -> int:
    return 2 * prod(call.shape_of("self")) * prod(call.shape_of("weight")[1:])


@counts("_convolution")
def _convolution(call: General) -> int:
    places = call.shape_of("input") if call.arguments["transposed"] else call.result()
    return 2 * prod(places) * prod(call.shape_of("weight")[1:])


@counts("_slow_conv2d_backward")
def _conv_backward(call: General) -> int:
    wanted = sum(call.arguments["output_mask"][:2])
    return wanted * 2 * prod(call.shape_of("grad_output")) * prod(call.shape_of("weight")[1:])


# Attention. Sequences packed one after another (`cu_seqlens`) have lengths that only values tell.


def _attention(call: General, times: int) -> int | None:
    packed = ("cum_seq_q", "cum_seq_k", "cu_seqlens_q", "cu_seqlens_k")
    if len(call.shape_of("query")) != 4 or any(call.slot(name) is not None for name in packed):
        return None
    (b, s, h, e), (_, t, _, v) = call.shape_of("query"), call.shape_of("value")
    return times * 2 * b * h * s * t * (e + v)


@counts(
    "_cudnn_attention_forward", "_efficient_attention_forward", "_flash_attention_forward",
    "_flash_attention_forward_no_dropout_inplace",
)  # fmt: skip
def _attention_forward(call: General) -> int | None:
    return _attention(call, 1)


@counts("_cudnn_attention_backward", "_efficient_attention_backward", "_flash_attention_backward")
def _attention_backward(call: General) -> int | None:
    return _attention(call, 2)


@counts("_scaled_dot_product_attention_math_for_mps", "_scaled_dot_product_flash_attention")
def _attention_of_heads(call: General) -> int:
    (*batch, h, s, e), (*_, t, v) = call.shape_of("query"), call.shape_of("value")
    return 2 * prod(batch) * h * s * t * (e + v)


@counts("_native_multi_head_attention", "_triton_multi_head_attention")
def _multi_head(call: General) -> int:
    """Projections in, scores and their product with the values, projection out."""
    b, s, d = call.shape_of("query")
    return 2 * b * s * d * (3 * d + d) + 4 * b * s * s * d


@counts("_transformer_encoder_layer_fwd")
def _encoder_layer(call: General) -> int:
    b, s, d = call.shape_of("src")
    inner = call.shape_of("ffn_weight_1")[0]
    return 2 * b * s * d * (3 * d + d + 2 * inner) + 4 * b * s * s * d


# Recurrent layers: every weight matrix meets every element of the sequence once.


def _recurrent(rows: int, weights: Sequence[Shape]) -> int:
    return 2 * rows * sum(prod(w) for w in weights if len(w) == 2)


def _rows(call: General) -> int:
    """Elements of all sequences: of packed ones (cudnn) the input's rows, else steps times batch."""
    return prod(call.shape_of("input")[:-1])


@counts("mkldnn_rnn_layer")
def _rnn_layer(call: General) -> int:
    return _recurrent(_rows(call), [call.shape_of("weight0"), call.shape_of("weight1")])


@counts("mkldnn_rnn_layer_backward")
def _rnn_layer_backward(call: General) -> int:
    """Of the input and the states, and of the weights."""
    return 2 * _recurrent(_rows(call), [call.shape_of("weight1"), call.shape_of("weight2")])


@counts("_cudnn_rnn", "miopen_rnn")
def _rnn(call: General) -> int:
    return _recurrent(_rows(call), call.shapes_of("weight"))


@counts("_lstm_mps")
def _rnn_mps(call: General) -> int:
    return _recurrent(_rows(call), call.shapes_of("params"))


@counts("_cudnn_rnn_backward", "miopen_rnn_backward")
def _rnn_backward(call: General) -> int:
    """Of the input and the states always; of the weights where they are asked for."""
    return (1 + call.arguments["output_mask"][3]) * _rnn(call)


# Distances: for every pair and coordinate a difference, its power, and a sum.


@counts("_cdist_forward")
def _cdist(call: General) -> int:
    return 3 * prod(call.result()) * call.shape_of("x1")[-1]


@counts("_cdist_backward")
def _cdist_backward(call: General) -> int:
    return 3 * prod(call.shape_of("cdist")) * call.shape_of("x1")[-1]


@counts("_pdist_forward", "_pdist_backward")
def _pdist(call: General) -> int:
    n, m = call.shape_of("self")
    return 3 * (n * (n - 1) // 2) * m


@counts("_euclidean_dist")
def _euclidean(call: General) -> int:
    """As one product: x with its square and 1, [..., m + 2]."""
    return 2 * prod(call.result()) * (call.shape_of("x1")[-1] + 2)


# Solvers, by the counts of `counts.py`.


@counts("triangular_solve")
def _triangular(call: General) -> int:
    return prod(call.result()) * call.shape_of("A")[-1]


@counts("_cholesky_solve_helper")
def _cholesky_solve(call: General) -> int:
    return 2 * prod(call.shape_of("self")) * call.shape_of("A")[-1]


@counts("linalg_pinv")
def _pinv(call: General) -> int:
    """The thin SVD, or the eigenvectors, and the product of its factors."""
    *batch, m, n = call.shape_of("self")
    if call.arguments["hermitian"]:
        return prod(batch) * (dense.symmetric_eigen(n, vectors=True) + 2 * n**3)
    return prod(batch) * (dense.svd(m, n, vectors=True) + 2 * m * n * min(m, n))


@counts("linalg_lstsq")
def _lstsq(call: General) -> int:
    """By QR: factors, Q applied, a triangle solved; by the SVD: its thin form and three products."""
    *batch, m, n = call.shape_of("self")
    p, vector = min(m, n), len(call.shape_of("b")) == len(batch) + 1
    k = 1 if vector else call.shape_of("b")[-1]
    if call.arguments["driver"] in ("gelsd", "gelss"):
        return prod(batch) * (dense.svd(m, n, vectors=True) + 2 * k * p * (m + n))
    return prod(batch) * (dense.householder_qr(m, n) + dense.apply_q(max(m, n), k, p) + p * p * k)
