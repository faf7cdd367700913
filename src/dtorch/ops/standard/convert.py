"""The same value otherwise: under another layout (redistribute), on another mesh, or of another dtype (to).

    y = x

Shapes      x [...] -> y [...]
FLOPs       none; bytes of a redistribution are those of `redistribute.plan`
Placements  redistribute: any to any, see `redistribute/`
            to(dtype): as every element-wise operator (`pointwise.py`); P -> P to a float as wide or wider: a
            narrower one rounds, so the sum comes first
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import OutputMeta
from dtorch.op.operand import Operand
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam
from dtorch.op.priced import touched
from dtorch.op.stream import StreamKey
from dtorch.ops.standard.pointwise import Pointwise
from dtorch.spec import Spec


class ConvertParam(OpParam, frozen=True):
    """Target of a redistribution; `implicit` where dtorch chose it, not the user."""

    target: Any
    mesh: Any = None
    implicit: bool = False


class Convert(Operator):
    """Brings its input to another layout."""

    param: ConvertParam

    def __init__(self, param: ConvertParam, inputs: Sequence[Operand | None]) -> None:
        super().__init__(param, inputs)
        source = inputs[0]
        assert source is not None
        self.source = source.spec
        self.target: Layout = param.target
        self.target_mesh: DeviceMesh = param.mesh or source.spec.mesh
        self.target_spec = Spec(
            self.source.shape, self.source.stride, self.source.dtype, self.target, self.target_mesh
        )
        self.plan = redistribute.plan(
            source.layout, self.target, source.spec.itemsize, source.spec.mesh, self.target_mesh
        )

    @property
    def implicit(self) -> bool:
        """Whether dtorch chose the conversion."""
        return self.param.implicit

    @property
    def kind(self) -> str:
        """The collective, `a+b` where the cheapest way takes two, "local" where nothing is sent."""
        return "+".join(step.kind for step in self._sending) or "local"

    @property
    def axes(self) -> tuple[int, ...]:
        """Mesh axes over which something is sent."""
        return tuple(dict.fromkeys(axis for step in self._sending for axis in step.axes))

    @property
    def _sending(self) -> list[redistribute.Step]:
        return [step for step in self.plan.steps if step.bytes_total]

    def parameters(self) -> dict[str, Any]:
        """None; a graph's text names the layouts."""
        return {}

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """The metadata of the input."""
        return [OutputMeta(self.source.shape, self.source.stride, self.source.dtype)]

    def infer_output(self) -> None:
        """The input's metadata under the target layout."""
        meta = self.infer_output_meta_info()[0]
        assert meta is not None
        self.output_metas = (meta,)
        self.outputs = (Operand(self.target_spec),)

    def traffic_bytes(self) -> int:
        """What is written, and what is read for it: all addends of a sum, else no more than is kept."""
        read, written = touched(self.inputs[0]), touched(self.outputs[0])
        return written + (read if self.source.layout.partial else min(read, written))

    def infer_operator_assign_info(self) -> None:
        """Communicate streams of all devices where something is sent, else compute streams."""
        kind: Literal["compute", "communicate"] = "communicate" if self.plan.bytes_total else "compute"
        meshes = (self.source.mesh, self.target_mesh)
        keys = [StreamKey(mesh.device_type, i, kind) for mesh in meshes for i in mesh.device_ids]
        self.streams = tuple(dict.fromkeys(keys))

    @property
    def priced_mesh(self) -> DeviceMesh:
        """The target: its devices receive."""
        return self.target_mesh

    def received_bytes(self) -> tuple[int, ...]:
        """As the plan says: devices of the target mesh first."""
        return self.plan.received


class Cast(Pointwise):
    """to(dtype), to(memory_format): a copy."""

    left_out = (
        ("aten._to_copy", "P -> P", "a narrower or inexact type rounds each part, so the sum comes first"),
    )

    type = "Convert"
    torch_ops = ("aten._to_copy",)
    implicit = False
    kinds = "To"

    def parameters(self) -> dict[str, Any]:
        """Also the dtype, if it is given."""
        dtype = self.arguments.get("dtype")
        return super().parameters() | ({} if dtype is None else {"dtype": dtype})

    def linear_inputs(self) -> list[set[int]]:
        """Pending sums survive a cast that loses nothing."""
        source = self.inputs[0].spec.dtype  # type: ignore[union-attr]
        target = self.arguments.get("dtype") or source
        return [{0}] if holds(source, target) else []


def holds(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value, and every sum, of `source` is exact or finer in `target`."""
    if source == target:
        return True
    if not source.is_floating_point or not target.is_floating_point:
        return False
    a, b = torch.finfo(source), torch.finfo(target)
    return b.eps <= a.eps and b.max >= a.max
