"""ONNX's names of torch operators, in its default domain; no entry where ONNX has no such operator."""

from __future__ import annotations

_SAME = (
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atanh", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "ceil", "celu", "cos", "cosh", "div", "elu", "erf", "exp", "expand",
    "flatten", "floor", "gelu", "hardsigmoid", "isinf", "isnan", "leaky_relu", "log", "mish", "mul", "neg",
    "pow", "reciprocal", "relu", "reshape", "round", "selu", "sigmoid", "sign", "sin", "sinh", "softplus",
    "sqrt", "squeeze", "sub", "tan", "tanh", "unsqueeze", "where",
)  # fmt: skip

_OTHER = {
    "Add": "addmm",
    "And": "logical_and",
    "ArgMax": "argmax",
    "ArgMin": "argmin",
    "Attention": "_scaled_dot_product_flash_attention_for_cpu",
    "AveragePool": "avg_pool2d avg_pool3d",
    "BatchNormalization": "native_batch_norm",
    "Cast": "_to_copy",
    "Clip": "clamp clamp_min clamp_max hardtanh",
    "Concat": "cat",
    "ConstantOfShape": "zeros_like ones_like full_like new_zeros new_ones new_full",
    "Conv": "convolution",
    "CumSum": "cumsum",
    "Det": "_linalg_det",
    "Dropout": "native_dropout",
    "Equal": "eq",
    "Gather": "embedding index_select",
    "GatherElements": "gather",
    "Gemm": "addmm",
    "GlobalAveragePool": "_adaptive_avg_pool2d _adaptive_avg_pool3d",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "GridSample": "grid_sampler_2d grid_sampler_3d",
    "GroupNormalization": "native_group_norm",
    "HardSwish": "hardswish",
    "Identity": "clone contiguous alias detach",
    "LayerNormalization": "native_layer_norm",
    "Less": "lt",
    "LessOrEqual": "le",
    "LogSoftmax": "_log_softmax",
    "MatMul": "mm bmm mv dot linear",
    "Max": "maximum",
    "MaxPool": "max_pool2d_with_indices max_pool3d_with_indices",
    "Min": "minimum",
    "Mod": "remainder fmod",
    "NegativeLogLikelihoodLoss": "nll_loss_forward nll_loss2d_forward",
    "Not": "logical_not",
    "Or": "logical_or",
    "PRelu": "_prelu_kernel",
    "Pad": "constant_pad_nd",
    "RMSNormalization": "_fused_rms_norm",
    "ReduceL2": "linalg_vector_norm",
    "ReduceLogSumExp": "logsumexp",
    "ReduceMax": "amax max",
    "ReduceMean": "mean",
    "ReduceMin": "amin min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "Resize": "upsample_nearest2d upsample_bilinear2d",
    "ScatterElements": "scatter",
    "ScatterND": "index_put",
    "Shrink": "softshrink hardshrink",
    "Slice": "slice",
    "Softmax": "_softmax",
    "Split": "split split_with_sizes unbind",
    "Swish": "silu",
    "ThresholdedRelu": "threshold",
    "Tile": "repeat",
    "TopK": "topk",
    "Transpose": "permute transpose t",
    "Trilu": "triu tril",
    "Xor": "logical_xor",
}


def _camel(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


ONNX: dict[str, str] = {f"aten.{name}": _camel(name) for name in _SAME} | {
    f"aten.{name}": onnx for onnx, names in _OTHER.items() for name in names.split()
}
