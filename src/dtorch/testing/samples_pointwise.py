"""Samples of element-wise operators."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from dtorch.testing.samples import Sample, Values

_UNARY = [
    "abs",
    "neg",
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "atan",
    "sigmoid",
    "erf",
    "erfc",
    "square",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
    "signbit",
    "isnan",
    "isinf",
    "isfinite",
    "relu",
    "frac",
    "sgn",
    "sinc",
    "logical_not",
    "nan_to_num",
    "positive",
    "reciprocal",
    "deg2rad",
    "rad2deg",
]
_POSITIVE = [
    "sqrt",
    "rsqrt",
    "log",
    "log2",
    "log10",
    "log1p",
    "acos",
    "asin",
    "atanh",
    "erfinv",
    "logit",
    "lgamma",
    "digamma",
    "i0",
]
_ACTIVATION = [
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "hardtanh",
    "hardsigmoid",
    "hardswish",
    "logsigmoid",
    "relu6",
    "celu",
    "selu",
    "softsign",
    "tanhshrink",
    "softshrink",
    "hardshrink",
]
_BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "atan2",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "fmax",
    "fmin",
    "copysign",
    "hypot",
]


def _unary(name: str) -> Sample:
    return lambda r: getattr(torch, name)(r(4, 5))


def _positive(name: str) -> Sample:
    return lambda r: getattr(torch, name)(r.positive(4, 5))


def _activation(name: str) -> Sample:
    return lambda r: getattr(F, name)(r(4, 5))


def _binary(name: str) -> Sample:
    def sample(r: Values) -> Any:
        function = getattr(torch, name)
        return [function(r(4, 5), r(4, 5)), function(r(4, 1), r(5))]

    return sample


def _in_place(r: Values) -> Any:
    x = r.constant(4, 5)
    x.add_(r.constant(5)).mul_(2).sub_(r.constant(4, 1), alpha=3).div_(r.constant(4, 5)).neg_()
    x.clamp_(-1, 1).copy_(r.constant(5)).masked_fill_(r.mask(4, 5), 0.0).masked_fill_(r.mask(5), 2.0)
    x.lerp_(r.constant(4, 5), 0.3).addcmul_(r.constant(5), r.constant(4, 1), value=2).zero_().fill_(3)
    x.relu_().sqrt_().exp_().pow_(2).addcdiv_(r.constant(4, 5), r.positive(5).detach(), value=0.5)
    return x


def _whole(r: Values) -> Any:
    """Composites arrive whole below inference_mode."""
    with torch.inference_mode():
        x = r.constant(4, 5)
        return [x.square(), x.isfinite(), F.selu(x)]


SAMPLES: dict[str, Sample] = {
    **{name: _unary(name) for name in _UNARY},
    **{name: _positive(name) for name in _POSITIVE},
    **{f"nn.{name}": _activation(name) for name in _ACTIVATION},
    **{name: _binary(name) for name in _BINARY},
    "add alpha": lambda r: [torch.add(r(4, 5), r(5), alpha=2), torch.sub(r(4, 5), r(5), alpha=-3)],
    "scalars": lambda r: [r(4, 5) + 2, 3 - r(4, 5), r(4, 5) * 0.5, r(4, 5) / 3, 3 / r(4, 5), r(4, 5) == 1],
    "0-dim": lambda r: [r(4, 5) + r(), r() * r(4), r(4) / r(), r() - r(4, 5), r().exp()],
    "div rounding": lambda r: [torch.div(r(4, 5), r(5), rounding_mode=m) for m in ("trunc", "floor")],
    "remainder": lambda r: [r(4, 5).remainder(r.constant(5)), r(4, 5).fmod(r.constant(4, 1)), r(4, 5) % 2],
    "floor_divide": lambda r: [r.constant(4, 5) // r.constant(5), r.constant(4, 5) // 2],
    "pow": lambda r: [
        r.positive(4, 5) ** r(5),
        r(4, 5) ** 2,
        r(4, 5) ** 3,
        2 ** r(4, 5),
        r.positive(4) ** 0.5,
    ],
    "bitwise": lambda r: [
        r.ints(9, 4, 5) & r.ints(9, 5),
        r.ints(9, 4, 5) | 3,
        r.ints(9, 4, 5) ^ r.ints(9, 4, 1),
        ~r.ints(9, 4, 5),
        r.ints(9, 4, 5) << 2,
        r.ints(99, 4, 5) >> 1,
        r.mask(4, 5) & r.mask(5),
    ],
    "ints": lambda r: [
        r.ints(9, 4, 5) + r.ints(9, 5),
        r.ints(9, 4, 5) * 3,
        r.ints(9, 4, 5) / 2,
        r.ints(9, 4) - r.constant(5, 1),
        r.ints(9, 4, 5, start=-9).abs(),
        -r.ints(9, 4, 5),
        r.ints(9, 4, 5) // 2,
        r.ints(9, 4) * r.mask(5, 1),
    ],
    "where": lambda r: [
        torch.where(r.mask(4, 5), r(4, 5), r(5)),
        torch.where(r.mask(5), r(4, 1), 2.0),
        torch.where(r.mask(4, 5), 0.0, r(4, 5)),
        torch.where(r.mask(4, 1), r(5), r()),
    ],
    "masked_fill": lambda r: [
        r(4, 5).masked_fill(r.mask(4, 5), 0),
        r(4, 5).masked_fill(r.mask(5), 2.5),
        r(4, 5).masked_fill(r.mask(5), r()),
    ],
    "lerp": lambda r: [torch.lerp(r(4, 5), r(5), 0.3), torch.lerp(r(4, 5), r(4, 5), r(4, 1))],
    "addc": lambda r: [
        torch.addcmul(r(4, 5), r(5), r(4, 1), value=2),
        torch.addcmul(r(4, 5), r(4, 5), r(4, 5)),
        torch.addcdiv(r(4, 5), r(5), r.positive(4, 1), value=-2),
        torch.addcdiv(r(5), r(4, 5), r.positive(4, 5)),
    ],
    "clamp": lambda r: [
        r(4, 5).clamp(-0.5, 0.5),
        r(4, 5).clamp(min=0),
        r(4, 5).clamp(max=0.3),
        r(4, 5).clamp(r(5), r(4, 1)),
        r(4, 5).clamp(min=r(5)),
        r(4, 5).clamp_min(0.1),
        r(4, 5).clamp_max(0.1),
    ],
    "acosh": lambda r: torch.acosh(r.positive(4, 5) + 1),
    "angle": lambda r: torch.angle(r(4, 5)),
    "composites": _whole,
    "dropout gradient": lambda r: torch.ops.aten.native_dropout_backward(
        r.constant(4, 5), r.mask(4, 5), 1.25
    ),
    "xlogy": lambda r: [torch.xlogy(r(4, 5), r.positive(5)), torch.special.xlog1py(r(4, 5), r.positive(5))],
    "logaddexp": lambda r: [torch.logaddexp(r(4, 5), r(5)), torch.logaddexp2(r(4, 1), r(5))],
    "casts": lambda r: [
        r(4, 5).to(torch.float32),
        r(4, 5).float().double(),
        r.ints(9, 4, 5).double(),
        r.mask(4, 5).double(),
        r(4, 5).long(),
        r(4, 5) > 0,
        r(4, 5).bool(),
        r(4, 5).clone(),
    ],
    "gelu tanh": lambda r: F.gelu(r(4, 5), approximate="tanh"),
    "elu alpha": lambda r: [F.elu(r(4, 5), 0.7), F.leaky_relu(r(4, 5), 0.3), F.softplus(r(4, 5), 2, 1)],
    "threshold": lambda r: [F.threshold(r(4, 5), 0.1, 0.0), F.threshold(r(4, 5), 0.1, 20.0)],
    "prelu": lambda r: [F.prelu(r(4, 5, 3), r(5)), F.prelu(r(4, 5), r(1))],
    "rsub": lambda r: [torch.rsub(r(4, 5), r(5), alpha=2), torch.rsub(r(4, 5), 3)],
    "in place": _in_place,
    "polygamma": lambda r: torch.polygamma(1, r.positive(4, 5)),
    "isclose": lambda r: torch.isclose(r.constant(4, 5), r.constant(5)),
    "heaviside": lambda r: torch.heaviside(r.constant(4, 5), r.constant(5)),
    "ldexp": lambda r: torch.ldexp(r.constant(4, 5), r.ints(4, 5)),
    "conj": lambda r: torch.conj_physical(torch.complex(r(4, 5), r(4, 5))),
    "bucketize": lambda r: torch.bucketize(r.constant(4, 5), r.constant(7).sort().values),
    "complex": lambda r: [torch.complex(r(4, 5), r(4, 5)).abs(), torch.polar(r.positive(4, 5), r(4, 5)).real],
}
