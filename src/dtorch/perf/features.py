"""Which sizes decide how fast a contraction runs, by torch operator and the shapes of its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

Shape = tuple[int, ...]
Shapes = Sequence[Shape]


def _mm(shapes: Shapes) -> tuple[float, ...]:
    (*batch, m, k), (*_, n) = shapes[-2], shapes[-1]
    return (prod(batch), m, n, k)


def _linear(shapes: Shapes) -> tuple[float, ...]:
    (*rows, k), (n, _) = shapes[0], shapes[1]
    return (1, prod(rows), n, k)


def _conv(shapes: Shapes) -> tuple[float, ...]:
    """Input [N, C, *pixels], weight [O, C / groups, *kernel]: O, C / groups, all pixels, kernel, groups."""
    x, weight = shapes[0], shapes[1]
    return (weight[0], weight[1], x[0] * prod(x[2:]), prod(weight[2:]), max(x[1] // max(weight[1], 1), 1))


def _conv_backward(shapes: Shapes) -> tuple[float, ...]:
    """The gradient of the output comes first; then input and weight as forward."""
    return _conv(shapes[1:])


def _attention(shapes: Shapes) -> tuple[float, ...]:
    """Query and key [..., tokens, width]: how many, tokens of both, width."""
    query, key = shapes[0], shapes[1]
    return (prod(query[:-2]), query[-2], key[-2], query[-1])


def _attention_backward(shapes: Shapes) -> tuple[float, ...]:
    return _attention(shapes[1:])


_FEATURES: dict[str, Callable[[Shapes], tuple[float, ...]]] = {
    "aten.mm": _mm,
    "aten.bmm": _mm,
    "aten.addmm": _mm,
    "aten.baddbmm": _mm,
    "aten.linear": _linear,
    "aten.convolution": _conv,
    "aten.convolution_backward": _conv_backward,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten.scaled_dot_product_attention": _attention,
}


def features_of(operator: str, shapes: Shapes) -> tuple[float, ...] | None:
    """The sizes that decide, for products, convolutions and attention; None for others, where bytes do.

    Args:
        operator: torch's name without overload.
        shapes: of its tensor operands in order.
    """
    find = _FEATURES.get(operator)
    return find(shapes) if find is not None else None
