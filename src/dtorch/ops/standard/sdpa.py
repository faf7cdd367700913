"""Scaled dot product attention: the fused kernels of torch, forward and backward.

    y[b h s v] = sum over t of softmax over t of (scale q[b h s e] k[b h t e] + mask[b h s t]) value[b h t v]

Shapes      q [b (g r) s e], k [b g t e], value [b g t v], mask [b|1 h|1 s|1 t] or [s t] or absent
            -> y [b (g r) s v], logsumexp [b (g r) s]; k and value have g heads, q has r for each of them
FLOPs       2 b g r s t e + 2 b g r s t v, softmax left out, causal in full (see `causal_flops`);
            backward twice that, its 4 contractions, without the scores that the kernels recompute
Placements  on one mesh axis; H is the dim of heads, cut where the cuts are boundaries of groups

    q, y    k, value    mask        dy, q   k, value    dq      dk, dvalue
    R       R           R           R       R           R       R
    S(b)    S(b)        S(b)|R      S(b)    S(b)        S(b)    S(b)
    S(H)    S(H)        S(H)|R      S(H)    S(H)        S(H)    S(H)
    S(H)    R           S(H)|R      S(H)    R           S(H)    P           one head of k: q's heads alone
    S(s)    R           S(s)|R      S(s)    R           S(s)    P           q's sequence alone

Where value alone is P so is y, where dy alone is P so are all gradients. A device that holds rows from the
middle of a causal q masks by their global places. With dropout everything is whole: one draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch

from dtorch.op.dims import UNCUT
from dtorch.op.operator import Local
from dtorch.op.signature import PlacementSignature, Role, Row
from dtorch.ops.standard.composed import Composed, Nested
from dtorch.ops.standard.statistics import global_positions

_HEADS = ("g", "r")
_QUERY: Nested = (("b",), _HEADS, ("s",), ("e",))
_KEY: Nested = (("b",), ("g",), ("t",), ("e",))
_VALUE: Nested = (("b",), ("g",), ("t",), ("v",))
_OUT: Nested = (("b",), _HEADS, ("s",), ("v",))
_ROWS: Nested = (("b",), _HEADS, ("s",))
_KNOWN = {
    "query": _QUERY, "key": _KEY, "value": _VALUE, "out": _OUT, "grad_out": _OUT, "grad_out_": _OUT,
}  # fmt: skip
_MASKS = ("attn_mask", "attn_bias")
_SUMS = ("logsumexp", "log_sumexp")


class SdpaBase(Composed, abstract=True):
    """What forward and backward share."""

    def sizes(self) -> dict[str, int]:
        """Heads of q are groups, one for each head of k."""
        q, k, v = (self.shapes[self.slot(name)] for name in ("query", "key", "value"))  # type: ignore[index]
        assert q is not None
        assert k is not None
        assert v is not None
        return {"b": q[0], "g": k[1], "r": q[1] // max(k[1], 1), "s": q[2], "t": k[2], "e": q[3], "v": v[3]}

    def nested_inputs(self) -> list[Nested | None]:
        """Named dims of q, k, value, mask and what was kept of the forward; others are small and whole."""
        found: list[Nested | None] = [
            None if shape is None else tuple((UNCUT,) for _ in shape) for shape in self.shapes
        ]
        for name in self.arguments:
            slot = self.slot(name)
            if slot is None:
                continue
            if name in _KNOWN:
                found[slot] = _KNOWN[name]
            elif name in _MASKS:
                found[slot] = self.mask(self.shapes[slot] or ())
            elif name in _SUMS:
                found[slot] = self.sums(self.shapes[slot] or ())
        return found

    def mask(self, shape: Sequence[int]) -> Nested:
        """Named dims of a mask, right-aligned; those it is broadcast along are never cut."""
        sizes = self.sizes()
        full = [
            (("b",), sizes["b"]),
            (_HEADS, sizes["g"] * sizes["r"]),
            (("s",), sizes["s"]),
            (("t",), sizes["t"]),
        ]
        return tuple(
            names if size == n else (UNCUT,)
            for (names, n), size in zip(full[4 - len(shape) :], shape, strict=True)
        )

    def sums(self, shape: Sequence[int]) -> Nested:
        """Named dims of the logarithms of sums, which some kernels pad."""
        if len(shape) == 3 and shape[2] == self.sizes()["s"]:
            return _ROWS
        return (("b",), _HEADS, *((UNCUT,) for _ in shape[2:]))

    def cuttable(self) -> list[str]:
        """Names that an axis may cut."""
        if self.arguments.get("dropout_p"):
            return []
        sizes, inputs = self.sizes(), self.nested_inputs()
        found = ["b", "r" if sizes["g"] == 1 else "g"]
        logsum = next((slot for name in _SUMS if (slot := self.slot(name)) is not None), None)
        padded = logsum is not None and inputs[logsum] != _ROWS
        if not padded and self.rows_alone():
            found.append("s")
        return found

    def rows_alone(self) -> bool:
        """Whether the kernel can run on some rows of q: it takes a mask for their places, or needs none."""
        if not self.arguments.get("is_causal"):
            return "efficient" not in self.name
        return "for_cpu" in self.name and self.slot("attn_mask") is None

    @cached_property
    def split_signature(self) -> PlacementSignature:
        """A row for every name that may be cut; what lacks it is whole, or summed if it is a gradient."""
        inputs, outputs = self.nested()
        flat_inputs = [None if x is None else [n for names in x for n in names] for x in inputs]
        flat_outputs = [[n for names in x for n in names] for x in outputs]
        rows = [self._row("", flat_inputs, flat_outputs)]
        rows += [self._row(name, flat_inputs, flat_outputs) for name in self.cuttable()]
        if not self.arguments.get("dropout_p"):
            rows += self.pending_rows()
        return PlacementSignature(len(inputs), len(outputs), rows)

    def _row(self, cut: str, inputs: list[list[str] | None], outputs: list[list[str]]) -> Row:
        def role(names: list[str], other: str) -> Role:
            return names.index(cut) if cut and cut in names else other

        summed = [cut and number in self.gradient_of for number in range(len(outputs))]
        return Row(
            tuple(None if names is None else role(names, "R") for names in inputs),
            tuple(role(names, "P" if s else "R") for names, s in zip(outputs, summed, strict=True)),
        )

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Rows of a causal q that do not start at the top are masked by their global places."""
        q = self.layouts[self.slot("query")]  # type: ignore[index]
        assert q is not None
        top = (0, q.local_shape(coord)[2])
        if not self.arguments.get("is_causal") or q.local_indices(2, coord) in ([], [top]):
            return super().localize(coord)
        device = self.mesh.torch_device(self.mesh.coords.index(coord))
        rows = global_positions(q, 2, coord, device).unsqueeze(1)
        columns = torch.arange(self.sizes()["t"], device=device)
        dtype = self.inputs[0].spec.dtype  # type: ignore[union-attr]
        mask = torch.zeros(top[1], len(columns), dtype=dtype, device=device)
        mask.masked_fill_(columns > rows, float("-inf"))
        return self.localized(coord, is_causal=False, attn_mask=mask)

    def is_torch_call(self, local: Local) -> bool:
        """Unless a shard is empty."""
        return all(
            x is None or x.ndim < 3 or x.local_numel(local.coord) for x in self.layouts[: len(self.inputs)]
        )

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own; nothing where a shard is empty, which kernels do not take."""
        if self.is_torch_call(local):
            super().compute(inputs, outputs, local)
            return
        outputs[:] = [
            None
            if out is None
            else inputs[0].new_zeros(out.layout.local_shape(local.coord), dtype=out.spec.dtype)
            for out in self.outputs
        ]

    def causal_flops(self, block: int = 1) -> int | None:
        """Less the blocks above the diagonal of a causal call, whose first row sees the first key alone."""
        flops, sizes = self.flops(), self.sizes()
        if flops is None or not self.arguments.get("is_causal") or not sizes["s"] or not sizes["t"]:
            return flops
        kept = 0
        for top in range(0, sizes["s"], block):
            rows = min(block, sizes["s"] - top)
            columns = -(-min(top + rows, sizes["t"]) // block) * block
            kept += rows * min(columns, sizes["t"])
        return flops * kept // (sizes["s"] * sizes["t"])


class Sdpa(SdpaBase):
    """Forward."""

    torch_ops = (
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention.default",
        "aten._scaled_dot_product_efficient_attention",
        "aten._scaled_dot_product_cudnn_attention",
        "aten._scaled_dot_product_fused_attention_overrideable",
    )
    kinds = "Sdpa"

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """The output, the logarithms of sums, and what a kernel keeps for its backward."""
        outputs: list[Nested] = [
            () if meta is None else tuple((UNCUT,) for _ in meta.shape) for meta in self.metas
        ]
        outputs[0] = _OUT
        if self.metas[1] is not None:
            outputs[1] = self.sums(self.metas[1].shape)
        return self.nested_inputs(), outputs

    def pending_rows(self) -> Sequence[Row]:
        """y is linear in the value, the rest is without it."""
        return [self.pending("value", outputs="P" + "R" * (len(self.metas) - 1))]

    def formula(self) -> str:
        """Both contractions."""
        return "2 b g r s t e + 2 b g r s t v"


class SdpaBackward(SdpaBase):
    """Backward."""

    torch_ops = (
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
        "aten._scaled_dot_product_flash_attention_backward.default",
        "aten._scaled_dot_product_efficient_attention_backward",
        "aten._scaled_dot_product_cudnn_attention_backward",
        "aten._scaled_dot_product_fused_attention_overrideable_backward",
    )
    kinds = "SdpaBackward"
    gradient_of: ClassVar[Mapping[int, str]] = {0: "query", 1: "key", 2: "value", 3: "attn_bias"}

    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """The gradients of q, k, value and, from some kernels, of the mask."""
        outputs: list[Nested] = [_QUERY, _KEY, _VALUE]
        if len(self.metas) == 4:
            outputs.append(self.mask(self.metas[3].shape) if self.metas[3] is not None else ())
        return self.nested_inputs(), outputs

    def pending_rows(self) -> Sequence[Row]:
        """All gradients are linear in the one that comes in."""
        return [self.pending("grad_out", "grad_out_", outputs="P" * len(self.metas))]

    def formula(self) -> str:
        """Four contractions."""
        return "4 b g r s t e + 4 b g r s t v"

    def recomputed_flops(self) -> int:
        """FLOPs of the scores, which flash kernels compute again rather than keep."""
        sizes = self.sizes()
        return 2 * sizes["b"] * sizes["g"] * sizes["r"] * sizes["s"] * sizes["t"] * sizes["e"]
