"""Convolution of any spatial rank, and its backward; groups, depthwise and transposed included.

    y[n, o, t] = sum over i and k of x[n, i, s(t, k)] w[o, i, k] + b[o]
            s(t, k) = t stride - padding + k dilation

Shapes      x [n (g i) s...], w [(g o) i k...], b [(g o)] or none -> y [n (g o) t...]; g groups, often 1;
            transposed: w [(g i) o k...]
FLOPs       2 n g o i t... k..., transposed 2 n g o i s... k...; the bias is not counted; backward the
            same for each of dx and dw that is wanted
Placements  on one mesh axis; with groups i and o are cut within every group, g at boundaries of groups

    x       w       b       y               dy      x       w       dx      dw      db
    R       R       R       R               R       R       R       R       R       R
    S(n)    R       R       S(n)            S(n)    S(n)    R       S(n)    P       P
    R       S(o)    S(o)    S(o)            S(o)    R       S(o)    P       S(o)    S(o)
    S(i)    S(i)    P       P               R       S(i)    S(i)    S(i)    S(i)    R
    P       R       P       P               P       R       R       P       P       P
    R       P       P       P               R       P       R       R       P       R
                                            R       R       P       P       R       R
                                            R       P       P       P       P       R
    S(g)    S(g)    S(g)    S(g)            S(g)    S(g)    S(g)    S(g)    S(g)    S(g)    groups

Space stays whole, but for a dim along which the kernel has one element, stride 1 and no padding: as n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch._prims_common import suggest_memory_format

from dtorch.op.call import OutputMeta, meta_of
from dtorch.op.dims import Names
from dtorch.op.operand import Operand
from dtorch.op.operator import Local
from dtorch.op.param import TorchCall
from dtorch.op.signature import PlacementSignature, Row
from dtorch.ops.standard.composed import Composed, Nested


class ConvBase(Composed, abstract=True):
    """What forward and backward share."""

    @property
    def transposed(self) -> bool:
        """Whether the input takes the output's part."""
        return bool(self.arguments["transposed"])

    @cached_property
    def space(self) -> Names:
        """Spatial names of x."""
        return tuple(f"s{d}" for d in range(len(self.shape("weight")) - 2))

    @cached_property
    def space_out(self) -> Names:
        """Spatial names of y; those of x where every place is a convolution of its own."""
        return tuple(s if self._is_pointwise(d) else f"t{d}" for d, s in enumerate(self.space))

    def _is_pointwise(self, dim: int) -> bool:
        stride, padding, more = (
            _of(self.arguments[name], dim) for name in ("stride", "padding", "output_padding")
        )
        return self.shape("weight")[2 + dim] == 1 and stride == 1 and padding == 0 and more == 0

    def shape(self, name: str) -> tuple[int, ...]:
        """Global shape of an input that is never absent."""
        shape = self.shapes[self.slot(name)]  # type: ignore[index]
        assert shape is not None
        return shape

    def output_shape(self) -> tuple[int, ...]:
        """Shape of y."""
        raise NotImplementedError

    def sizes(self) -> dict[str, int]:
        """Channels are groups of equal size."""
        x, w, y, groups = (
            self.shape("input"),
            self.shape("weight"),
            self.output_shape(),
            self.arguments["groups"],
        )
        kernel = {f"k{d}": size for d, size in enumerate(w[2:])}
        space = dict(zip((*self.space_out, *self.space), (*y[2:], *x[2:]), strict=True))
        i, o = x[1] // max(groups, 1), y[1] // max(groups, 1)
        return {"n": x[0], "g": groups, "i": i, "o": o, **space, **kernel}

    def known(self) -> dict[str, Nested]:
        """What the dims of every tensor are composed of."""
        groups = self.arguments["groups"]
        i, o = (("g", "i"), ("g", "o")) if groups > 1 else (("i",), ("o",))
        kernel = [(f"k{d}",) for d in range(len(self.space))]
        y: Nested = (("n",), o, *((t,) for t in self.space_out))
        w: Nested = (i, ("o",), *kernel) if self.transposed else (o, ("i",), *kernel)
        x: Nested = (("n",), i, *((s,) for s in self.space))
        return {"input": x, "weight": w, "bias": (o,), "grad_output": y, "y": y}

    def nested_inputs(self) -> list[Nested | None]:
        """The same for the inputs in their order."""
        known = self.known()
        found: list[Nested | None] = [None] * len(self.inputs)
        for name in ("input", "weight", "bias", "grad_output"):
            if name in self.schema.names and (slot := self.slot(name)) is not None:
                found[slot] = known[name]
        return found

    def whole(self) -> frozenset[str]:
        """Space and kernel, but for places that no other reaches."""
        kernel = {f"k{d}" for d in range(len(self.space))}
        moved = {n for s, t in zip(self.space, self.space_out, strict=True) if s != t for n in (s, t)}
        return frozenset(kernel | moved)

    def local_param(self, coord: tuple[int, ...]) -> TorchCall:
        """With the groups that the device holds."""
        groups = self.local_sizes(coord)["g"]
        args, kwargs = self.schema.replaced(self.call.args, self.call.kwargs, {"groups": groups})
        return TorchCall(self.call.op, args, kwargs)

    def product(self, times: int) -> str:
        """FLOPs of so many products of this size."""
        places = self.space if self.transposed else self.space_out
        kernel = [f"k{d}" for d in range(len(self.space))]
        return " ".join([str(2 * times), "n g o i", *places, *kernel])


class Conv(ConvBase):
    """Forward."""

    kinds = "Conv"
    torch_ops = ("aten.convolution", "aten.convolution_overrideable")

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """By the arguments."""
        return self.nested_inputs(), [self.known()["y"]]

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """torch's, less what its kernels for the CPU do otherwise: y has channels last where x or w has."""
        found = super().infer_output_meta_info()
        formats = [_format(x) for x in self.inputs[:2] if x is not None]
        last = next((f for f in formats if f != torch.contiguous_format), None)
        if self.mesh.device_type != "cpu" or last is None or found[0] is None:
            return found
        return [meta_of(torch.empty(found[0].shape, dtype=found[0].dtype, device="meta", memory_format=last))]

    def output_shape(self) -> tuple[int, ...]:
        """As torch says."""
        assert self.metas[0] is not None
        return self.metas[0].shape

    def linear(self) -> tuple[frozenset[int], ...]:
        """In x and b together, in w and b together."""
        bias = {self.slot("bias")} - {None}
        names = ("input", "weight")
        return tuple(frozenset({self.slot(name), *bias}) for name in names)  # type: ignore[arg-type]

    def formula(self) -> str:
        """One product."""
        return self.product(1)

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Groups on this device."""
        return self.localized(coord, groups=max(1, self.local_sizes(coord)["g"]))

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, which refuses a shard that holds nothing: of no products the sum is the bias alone."""
        present = [x for x in inputs if x is not None]
        if all(x.numel() for x in present) or 0 in self.shape("input"):
            super().compute(inputs, outputs, local)
            return
        y, slot = self.outputs[0], self.slot("bias")
        assert y is not None
        nothing = inputs[0].new_zeros(y.layout.local_shape(local.coord))
        if slot is not None:
            nothing += inputs[slot].view(-1, *[1] * len(self.space))
        outputs[:] = [nothing]


class ConvBackward(ConvBase):
    """Backward: gradients of x, w and b, those that `output_mask` asks for."""

    kinds = "ConvBackward"
    torch_ops = ("aten.convolution_backward", "aten.convolution_backward_overrideable")
    gradient_of: ClassVar[Mapping[int, str]] = {0: "input", 1: "weight"}

    def output_shape(self) -> tuple[int, ...]:
        """That of its gradient."""
        return self.shape("grad_output")

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """By the arguments."""
        known = self.known()
        wanted = [known["input"], known["weight"], known["bias"]]
        outputs = [n if m is not None else () for n, m in zip(wanted, self.metas, strict=True)]
        return self.nested_inputs(), outputs

    def linear(self) -> tuple[frozenset[int], ...]:
        """In the gradient that comes in."""
        return (frozenset({self.slot("grad_output")}),)  # type: ignore[arg-type]

    def pending_rows(self) -> Sequence[Row]:
        """dw alone is linear in x, dx alone in w."""
        return [
            self.pending("input", outputs="RPR"),
            self.pending("weight", outputs="PRR"),
            self.pending("input", "weight", outputs="PPR"),
        ]

    @cached_property
    def split_signature(self) -> PlacementSignature:
        """db does not know the channels of x: where these are cut dy and db are whole on every device."""
        rule, found = self.cached_rule, super().split_signature
        assert rule is not None
        x, dy = self.slot("input"), self.slot("grad_output")
        channel = rule.inputs[x].index("i")  # type: ignore[index,union-attr]
        rows = [
            Row(tuple("R" if i == dy else role for i, role in enumerate(row.inputs)), (*row.outputs[:2], "R"))
            if row.inputs[x] == channel  # type: ignore[index]
            else row
            for row in found.rows
        ]
        return PlacementSignature(found.n_inputs, found.n_outputs, rows)

    def formula(self) -> str:
        """A product for each of dx and dw."""
        return self.product(sum(meta is not None for meta in self.metas[:2]))

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Groups and channels on this device."""
        sizes = self.local_sizes(coord)
        groups = sizes["g"]
        bias = None if self.arguments["bias_sizes"] is None else [groups * sizes["o"]]
        return self.localized(coord, groups=max(1, groups), bias_sizes=bias)

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, which refuses a shard that holds nothing."""
        if all(x.numel() for x in inputs) or 0 in self.shape("input"):
            super().compute(inputs, outputs, local)
            return
        dy = inputs[self.slot("grad_output")]  # type: ignore[index]
        space = (0, *range(2, dy.ndim))
        outputs[:] = [
            None
            if y is None
            else dy.sum(space)
            if i == 2
            else dy.new_zeros(y.layout.local_shape(local.coord))
            for i, y in enumerate(self.outputs)
        ]


def _format(operand: Operand) -> torch.memory_format:
    spec = operand.spec
    return suggest_memory_format(torch.empty_strided(spec.shape, spec.stride, device="meta"))


def _of(values: Sequence[int], dim: int) -> int:
    """A parameter that is given once for all dims, or for each."""
    return values[dim] if len(values) > 1 else values[0]
