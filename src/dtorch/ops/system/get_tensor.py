"""Reading a value: the parts of a distributed tensor come together as one plain tensor on the first device.

    y = x

Shapes      x [...] -> y [...], plain
FLOPs       none; bytes are those of x and y
Placements  any; a pending sum is added up on the way
"""

from __future__ import annotations

from functools import cached_property

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import OutputMeta
from dtorch.op.operand import Operand
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam
from dtorch.spec import Spec


class GetTensorParam(OpParam, frozen=True):
    """Reading has no parameters."""


class GetTensor(Operator):
    """Gathers its input on the first device of the mesh."""

    @property
    def source(self) -> Spec:
        """What is read."""
        operand = self.inputs[0]
        assert operand is not None
        return operand.spec

    @cached_property
    def plan(self) -> redistribute.Redistribution:
        """How the parts reach the first device, and the bytes that it receives."""
        source = self.source
        return redistribute.plan(
            source.layout,
            Layout.replicate((), source.shape),
            source.itemsize,
            source.mesh,
            self.target_mesh,
        )

    @property
    def target_mesh(self) -> DeviceMesh:
        """The first device alone."""
        mesh = self.source.mesh
        first = DeviceMesh(f"{mesh.device_type}:{mesh.device_ids[0]}")
        return first if mesh.description is None else first.described(mesh.description.along(()))

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """The metadata of the input."""
        return [OutputMeta(self.source.shape, self.source.stride, self.source.dtype)]

    def infer_output(self) -> None:
        """The input's metadata, on one device."""
        source = self.source
        self.output_metas = tuple(self.infer_output_meta_info())
        whole = Layout.replicate((), source.shape)
        self.outputs = (Operand(Spec(source.shape, source.stride, source.dtype, whole, self.target_mesh)),)

    @property
    def priced_mesh(self) -> DeviceMesh:
        """The first device alone."""
        return self.target_mesh

    def received_bytes(self) -> tuple[int, ...]:
        """As the plan says: the first device, which receives all, is in front."""
        return self.plan.received
