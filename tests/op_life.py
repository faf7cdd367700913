"""An operator as a user would write it, and variants of it: what the tests of an operator's life share."""

from collections.abc import Sequence
from typing import Any

import torch

import dtorch
from dtorch import DeviceMesh, Shard
from dtorch.op.call import OutputMeta
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam
from dtorch.op.signature import PlacementSignature
from dtorch.operators import operand

MESH = DeviceMesh("cpu", [0, 1])
OTHER = DeviceMesh("cpu", [2, 3])
ONE = DeviceMesh("cpu", [0])
X = torch.arange(20.0).reshape(4, 5) - 9.5


class LifeClipParam(OpParam, frozen=True):
    """Bounds."""

    low: float
    high: float


class LifeClip(Operator):
    """Clamp, as a user would write it: no torch call behind it."""

    param: LifeClipParam

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """As the input."""
        spec = self.inputs[0].spec  # type: ignore[union-attr]
        return [OutputMeta(spec.shape, spec.stride, spec.dtype)]

    def get_placement_signature(self) -> PlacementSignature:
        """Every dim."""
        builder = PlacementSignature.builder(1, 1)
        for dim in range(len(self.shapes[0] or ())):
            builder.add_input(Shard(dim)).add_output(Shard(dim)).build()
        return builder.finish()

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Any) -> None:
        """Of the local part."""
        outputs[:] = [inputs[0].clamp(self.param.low, self.param.high)]


CLIP = LifeClipParam(-2.0, 3.0)


def on(mesh: DeviceMesh, *placements: Any, of: torch.Tensor = X) -> dtorch.Tensor:
    return dtorch.Tensor(of, device_mesh=mesh, placements=list(placements) or None)


def made(*tensors: dtorch.Tensor, cls: type[Operator] = LifeClip, param: OpParam = CLIP) -> Operator:
    """An operator on the operands of tensors, not yet inferred."""
    return cls(param, [operand(t) for t in tensors])


def variant(name: str, **steps: Any) -> tuple[type[Operator], OpParam]:
    """A subclass of LifeClip with some steps of its own, and parameters that belong to it."""
    param = type(f"{name}Param", (LifeClipParam,), {}, frozen=True)
    return type(name, (LifeClip,), steps), param(-2.0, 3.0)
