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
    S(s)    R       R       S(s)            S(s)    S(s)    R       S(s)    P       P
    S(g)    S(g)    S(g)    S(g)            S(g)    S(g)    S(g)    S(g)    S(g)    S(g)    groups

Where space is cut, y has chunks of its own size, and each device fetches the halo that its places read.
Price       the halo: forward rows of x, backward rows of dy for dx, of x for dw (transposed: of dy for both)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch._prims_common import suggest_memory_format

from dtorch.op.call import OutputMeta, meta_of
from dtorch.op.dims import Names
from dtorch.op.group import Group
from dtorch.op.operand import Operand
from dtorch.op.operator import Local
from dtorch.op.param import TorchCall
from dtorch.op.signature import PlacementSignature, Row
from dtorch.ops.standard.composed import Composed, Nested
from dtorch.ops.standard.windows import Fetch, Window, Windowed, cropped, of, read_by, reads

aten = torch.ops.aten


class ConvBase(Composed, Windowed, abstract=True):
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
        more = self.arguments["output_padding"]
        return tuple(
            s if window.extent == window.stride == 1 and not window.padding and not of(more, d) else f"{s}'"
            for d, (s, window) in enumerate(zip(self.space, self.windows, strict=True))
        )

    @cached_property
    def windows(self) -> Sequence[Window]:
        """Of places of y over elements of x; transposed the other way round."""
        given = [self.arguments[name] for name in ("stride", "padding", "dilation")]
        return [
            Window(kernel, *(of(values, d) for values in given))
            for d, kernel in enumerate(self.shape("weight")[2:])
        ]

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

    def whole(self) -> frozenset[str]:
        """The kernel."""
        return frozenset(f"k{d}" for d in range(len(self.space)))

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

    def convolve(
        self,
        source: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        made: Operand,
        coord: tuple[int, ...],
        transposed: bool,
    ) -> torch.Tensor:
        """What a device holds of a convolution, from the block of the source that `asked` gives it.

        Args:
            source: [n c block...], of cut space what the device's places read, with all padding.
            weight, bias: local; of no products the sum is the bias alone, which torch refuses to say.
            made: the result.
            coord: of the device.
            transposed: whether the places are those of the source.
        """
        shape = made.layout.local_shape(coord)
        if not (source.numel() and weight.numel()):
            nothing = source.new_zeros(shape)
            return nothing if bias is None else nothing + bias.view(-1, *[1] * len(self.space))
        starts, paddings, beyond = [], [], []
        for d, window in enumerate(self.windows):
            start, padding = 0, window.padding
            if d in self.cut_space:
                padding, first = 0, self.held(made, d, coord)
                start = first[0] - window.reads(window.read_by(first))[0] if transposed else 0
            end = (source.shape[2 + d] - 1) * window.stride + window.extent - 2 * padding
            starts.append(start)
            paddings.append(padding)
            beyond.append(max(0, start + shape[2 + d] - end) if transposed else 0)
        strides, dilations = [w.stride for w in self.windows], [w.dilation for w in self.windows]
        groups = max(1, self.local_sizes(coord)["g"])
        found = aten.convolution.default(
            source, weight, bias, strides, paddings, dilations, transposed, beyond, groups
        )
        for d, start in enumerate(starts):
            found = cropped(found, 2 + d, start, shape[2 + d])
        return found


class Conv(ConvBase):
    """Forward."""

    left_out = (("aten.convolution", "P -> P", "gathering x and w is cheaper than the sum that y would owe"),)

    kinds = "Conv"
    torch_ops = ("aten.convolution", "aten.convolution_overrideable")

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """By the arguments."""
        known = self.known()
        return self.named_inputs(known), [known["y"]]

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
        """torch's own, but for a shard that holds nothing."""
        present = [x for x in inputs if x is not None]
        if all(x.numel() for x in present) or 0 in self.shape("input"):
            super().compute(inputs, outputs, local)
        else:
            outputs[:] = [self._part(inputs, inputs[self.slot("input")], local.coord)]  # type: ignore[index]

    def asked(self) -> Iterable[Fetch]:
        """Of x what the device's part of y reads."""
        reach = read_by if self.transposed else reads
        return [self.fetch_of(self.slot("input"), self.outputs[0], reach)]

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """Fetch, then each device for itself."""
        blocks = self.fetch(inputs, group, self.fetches[0])
        for mine, out, block, coord in zip(inputs, outputs, blocks, group.coords, strict=True):
            out[:] = [self._part(mine, block, coord)]

    def _part(self, inputs: Sequence[Any], block: torch.Tensor, coord: tuple[int, ...]) -> torch.Tensor:
        y, w, bias = self.outputs[0], self.slot("weight"), self.slot("bias")
        assert y is not None
        assert w is not None
        b = None if bias is None else inputs[bias]
        return self.convolve(block, inputs[w], b, y, coord, self.transposed)


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
        return self.named_inputs(known), self.nested_gradients(known["input"], known["weight"], known["bias"])

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
        return found.with_rows(rows)

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

    @cached_property
    def for_dx(self) -> Fetch:
        """Of dy what reads the device's part of x; transposed, what that part reads."""
        reach = reads if self.transposed else read_by
        return self.fetch_of(self.slot("grad_output"), self.inputs[self.slot("input")], reach)  # type: ignore[index]

    @cached_property
    def for_dw(self) -> Fetch:
        """What the device's own places read: of x, transposed of dy."""
        elements, places = ("grad_output", "input") if self.transposed else ("input", "grad_output")
        return self.fetch_of(self.slot(elements), self.inputs[self.slot(places)], reads)  # type: ignore[index]

    def asked(self) -> Iterable[Fetch]:
        """For the gradients that are wanted."""
        wanted = [self.for_dx, self.for_dw]
        return [fetch for fetch, y in zip(wanted, self.outputs, strict=False) if y is not None]

    def compute_group(self, inputs: list[list[Any]], outputs: list[list[Any]], group: Group) -> None:
        """Fetch, then each device for itself; dw and db are sums over the devices that cut space."""
        fetched = {asked: self.fetch(inputs, group, asked) for asked in self.fetches}
        dx, dw, db = self.outputs
        for i, (mine, out, coord) in enumerate(zip(inputs, outputs, group.coords, strict=True)):
            dy, w = mine[self.slot("grad_output")], mine[self.slot("weight")]  # type: ignore[index]
            out[:] = [None, None, None]
            if dx is not None:
                out[0] = self.convolve(fetched[self.for_dx][i], w, None, dx, coord, not self.transposed)
            if dw is not None:
                out[1] = self._weight_gradient(mine, fetched[self.for_dw][i], dw, coord)
            if db is not None:
                out[2] = dy.sum((0, *range(2, dy.ndim)))

    def _weight_gradient(
        self, inputs: Sequence[Any], block: torch.Tensor, dw: Operand, coord: tuple[int, ...]
    ) -> torch.Tensor:
        """Of the device's own places, which read a block that is theirs alone, with all padding."""
        given = list(inputs)
        given[self.for_dw.slot] = block
        dy, x, w = (given[self.slot(name)] for name in ("grad_output", "input", "weight"))  # type: ignore[index]
        if not (dy.numel() and x.numel() and w.numel()):
            return dy.new_zeros(dw.layout.local_shape(coord))
        more = self.arguments["output_padding"]
        return aten.convolution_backward.default(
            dy,
            x,
            w,
            None,
            [window.stride for window in self.windows],
            [0 if d in self.cut_space else window.padding for d, window in enumerate(self.windows)],
            [window.dilation for window in self.windows],
            self.transposed,
            [0 if d in self.cut_space else of(more, d) for d in range(len(self.windows))],
            max(1, self.local_sizes(coord)["g"]),
            [False, True, False],
        )[1]


def _format(operand: Operand) -> torch.memory_format:
    spec = operand.spec
    return suggest_memory_format(torch.empty_strided(spec.shape, spec.stride, device="meta"))
