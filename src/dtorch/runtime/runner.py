"""Running one operator in this process: a kernel for each distinct shard, replicas shared.

The graph is handed a runner and knows no other door to hardware. `Program` is what it keeps of an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch.layout import representative_positions
from dtorch.op.group import Group
from dtorch.op.operand import Parts
from dtorch.op.operator import Operator
from dtorch.op.stream import StreamKey
from dtorch.runtime.kernel import Kernel, KernelContext, KernelFactory


class Program:
    """One operator made runnable: its kernels, and which devices share a result."""

    __slots__ = ("group", "kernels", "operator", "order", "owner", "positions", "special_order")

    def __init__(self, operator: Operator, layouts: Sequence[Any]) -> None:
        mesh = operator.mesh
        self.operator = operator
        if mesh.shares_storage:
            axes = {axis for lay in layouts if lay is not None for axis in (*lay.cut_axes, *lay.partial)}
            self.owner = representative_positions(mesh.shape, tuple(sorted(axes)))
        else:
            self.owner = tuple(range(mesh.size))
        self.positions = tuple(sorted(set(self.owner)))
        self.kernels = tuple(self._kernel(position) for position in self.positions)
        where = {position: i for i, position in enumerate(self.positions)}
        shared = self._sharing() if mesh.shares_storage else {}
        self.order = [where[owner] for owner in self.owner]
        self.special_order = {number: [where[owner] for owner in owners] for number, owners in shared.items()}
        self.group = Group([kernel.local for kernel in self.kernels]) if operator.needs_siblings else None

    def _sharing(self) -> dict[int, list[int]]:
        """Outputs that fewer devices tell apart than the inputs: replicas must be one tensor, or writes split them."""
        found = {}
        for number, output in enumerate(self.operator.outputs):
            owner = self.owner if output is None else output.layout.distinct()
            if len(set(owner)) < len(self.positions):
                found[number] = [self.owner[position] for position in owner]
        return found

    def _kernel(self, position: int) -> Kernel:
        mesh = self.operator.mesh
        context = KernelContext(
            operator=self.operator,
            stream=StreamKey(mesh.device_type, mesh.device_ids[position], "compute"),
            position=position,
            local=self.operator.localize(mesh.coords[position]),
            device=mesh.torch_device(position),
            group=self.positions,
        )
        return KernelFactory.new_kernel(context)


class LocalRunner:
    """Runs programs at once, on devices of this process."""

    def prepare(self, operator: Operator, layouts: Sequence[Any]) -> Program:
        """Make an inferred operator runnable; `layouts` are those of all inputs and outputs."""
        return Program(operator, layouts)

    def run(self, program: Program, inputs: Sequence[Parts | None]) -> list[list[Any]]:
        """Local outputs: for each output, one entry per device in mesh order."""
        local = [[None if p is None else p[position] for p in inputs] for position in program.positions]
        results: list[list[Any]] = [[] for _ in local]
        if program.group is not None:
            program.operator.compute_group(local, results, program.group)
        else:
            for kernel, mine, out in zip(program.kernels, local, results, strict=True):
                kernel.compute(mine, out)
        order, special = program.order, program.special_order
        return [[results[i][j] for i in special.get(j, order)] for j in range(len(results[0]))]


def autocast_is_on(device_type: str) -> bool:
    """Whether autocast would change what local calls compute."""
    return torch.is_autocast_enabled(device_type)
