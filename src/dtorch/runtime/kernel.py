"""Kernels: an operator bound to one device. The default calls `operator.compute`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from dtorch.op.operator import Local, Operator
from dtorch.op.stream import StreamKey


class KernelContext(NamedTuple):
    """What a kernel is made from.

    Attributes:
        operator: the operator to run.
        stream: where it runs.
        position: the device, as an index in mesh order.
        local: the operator's call in local sizes.
        device: the torch device of the local tensors.
        group: positions of all devices that run the operator, this one included.
    """

    operator: Operator
    stream: StreamKey
    position: int
    local: Local
    device: torch.device
    group: tuple[int, ...]


class Kernel:
    """Base kernel; subclasses serve operators that need more than their own shard."""

    def __init__(self, context: KernelContext) -> None:
        self.context = context
        self.operator = context.operator
        self.local = context.local

    def compute(self, inputs: Sequence[Any], outputs: list[Any]) -> None:
        """Run on one device's local tensors."""
        self.operator.compute(inputs, outputs, self.local)


class EmptyKernel(Kernel):
    """Gives outputs without elements; torch's kernels refuse some empty shards that would make them."""

    @staticmethod
    def serves(context: KernelContext) -> bool:
        """Whether the device's part of every output is empty, though it is a part of something cut."""
        operator = context.operator
        if operator.needs_siblings or not operator.outputs or not operator.makes_its_outputs():
            return False
        coord, layouts = context.local.coord, [y and y.layout for y in operator.outputs]
        return all(layout and layout.cut_axes and not layout.local_numel(coord) for layout in layouts)

    def compute(self, inputs: Sequence[Any], outputs: list[Any]) -> None:
        """Make them, in the dtypes of the operator's outputs."""
        coord = self.local.coord
        outputs[:] = [
            torch.empty(y.layout.local_shape(coord), dtype=y.spec.dtype, device=self.context.device)
            for y in self.operator.outputs
            if y is not None
        ]


class KernelFactory:
    """Finds a kernel by operator type, the base kernel where none is registered."""

    _kernels: ClassVar[dict[str, type[Kernel]]] = {}

    @classmethod
    def register(cls, *types: str) -> Any:
        """Class decorator: the kernel serves these operator types."""

        def enter(kernel: type[Kernel]) -> type[Kernel]:
            for name in types:
                cls._kernels[name] = kernel
            return kernel

        return enter

    @classmethod
    def new_kernel(cls, context: KernelContext) -> Kernel:
        """The kernel for an operator on one device."""
        kernel = (
            EmptyKernel if EmptyKernel.serves(context) else cls._kernels.get(context.operator.type, Kernel)
        )
        return kernel(context)
