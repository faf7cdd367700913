"""Running one operator in this process: a kernel for each distinct shard, replicas shared.

The graph is handed a runner and knows no other door to hardware. `Program` is what it keeps of an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from dtorch import redistribute
from dtorch.graph.conversion import convert
from dtorch.graph.graph import Graph
from dtorch.graph.memory_stats import MemoryStats
from dtorch.graph.replay import replay
from dtorch.graph.sub_graph import SubGraph
from dtorch.layout import representative_positions
from dtorch.mesh import DeviceMesh
from dtorch.op.group import Group
from dtorch.op.operand import Operand, Parts, copied
from dtorch.op.operator import Operator
from dtorch.op.stream import StreamKey
from dtorch.ops.standard.convert import Convert
from dtorch.plan import cache
from dtorch.plan.codegen import Source
from dtorch.runtime import memory, threads
from dtorch.runtime.kernel import Kernel, KernelContext, KernelFactory


class Program:
    """One operator made runnable: its kernels, and which devices share a result."""

    __slots__ = ("group", "kernels", "large", "operator", "order", "owner", "positions", "special_order")

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
        alone = self.group is not None or len(self.positions) == 1 or mesh.device_type != "cpu"
        self.large = not alone and threads.is_large(operator, len(self.positions))

    def _sharing(self) -> dict[int, list[int]]:
        """Outputs that fewer devices tell apart than the inputs; replicas apart would be split by a write."""
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

    def run(self, inputs: Sequence[Parts | None]) -> list[list[Any]]:
        """Local outputs: for each output, one entry per device in mesh order."""
        local = [[None if p is None else p[position] for p in inputs] for position in self.positions]
        results: list[list[Any]] = [[] for _ in local]
        if self.group is not None:
            self.operator.compute_group(local, results, self.group)
        elif self._apart():
            calls = zip(self.kernels, local, results, strict=True)
            threads.run_together(
                [kernel.context.stream for kernel in self.kernels],
                [partial(kernel.compute, mine, out) for kernel, mine, out in calls],
            )
        else:
            for kernel, mine, out in zip(self.kernels, local, results, strict=True):
                kernel.compute(mine, out)
        order, special = self.order, self.special_order
        return [[results[i][j] for i in special.get(j, order)] for j in range(len(results[0]))]

    def _apart(self) -> bool:
        """Whether each device's kernel runs on its own thread."""
        return self.large and threads.cores_to_spare()

    def write(self, source: Source, node: int, inputs: list[list[str]]) -> list[list[str]]:
        """Write the operator into a plan's source; the variables of each output, in mesh order."""
        count = len(self.operator.outputs)
        if self.group is not None or self._apart():
            return source.whole_call(self.run, node, inputs, [len(self.owner)] * count)
        specs = [None if operand is None else operand.spec for operand in self.operator.inputs]
        names = [[f"v{node}_{j}_{i}" for i in range(len(self.positions))] for j in range(count)]
        for i, (position, kernel) in enumerate(zip(self.positions, self.kernels, strict=True)):
            mine = [part[position] for part in inputs]
            source.call(kernel_call(kernel), node, mine, [name[i] for name in names], specs)
        return [[names[j][i] for i in self.special_order.get(j, self.order)] for j in range(count)]


def kernel_call(kernel: Kernel) -> Any:
    """How a plan calls a kernel: the torch call itself where nothing overrides it, else `compute`."""
    plain = type(kernel) is Kernel and type(kernel.operator).compute is Operator.compute
    return kernel.local if plain and kernel.local.func is not None else kernel.compute


class ConvertProgram:
    """A redistribution made runnable.

    Dims along which the source is expanded (stride 0) stay so: what memory holds once is moved once, and the
    order of the other strides, by which torch lays out results, is that of one device.
    """

    __slots__ = ("expanded", "operator", "order", "source", "target")

    def __init__(self, operator: Convert) -> None:
        self.operator = operator
        spec = operator.source
        self.order = redistribute.memory_order(spec.shape, spec.stride)
        self.source, self.target = spec.layout, operator.target
        self.expanded = [
            dim
            for dim, (size, stride) in enumerate(zip(spec.shape, spec.stride, strict=True))
            if stride == 0 and size > 1 and not spec.layout.axes_of(dim)
        ]
        for dim in self.expanded:
            self.source = self.source.with_dim(dim, ((1, ()),))
            self.target = self.target.with_dim(dim, ((1, ()),))

    def run(self, inputs: Sequence[Parts | None]) -> list[list[Any]]:
        """The input's parts under the target layout."""
        op, given = self.operator, inputs[0]
        assert given is not None
        parts = given if not self.expanded else [self._once(part) for part in given]
        meshes = op.source.mesh, op.target_mesh
        moved = redistribute.execute(parts, self.source, self.target, *meshes, order=self.order)
        if moved is given:
            return [copied(moved)]
        return [moved if not self.expanded else self._expand(moved)]

    def _once(self, part: torch.Tensor) -> torch.Tensor:
        for dim in self.expanded:
            part = part.narrow(dim, 0, 1)
        return part

    def _expand(self, parts: Parts) -> Parts:
        layout, mesh = self.operator.target, self.operator.target_mesh
        owner = layout.distinct() if mesh.shares_storage else range(mesh.size)
        made = {i: parts[i].expand(layout.local_shape(mesh.coords[i])) for i in set(owner)}
        return [made[i] for i in owner]

    def write(self, source: Source, node: int, inputs: list[list[str]]) -> list[list[str]]:
        """Write the redistribution into a plan's source."""
        return source.whole_call(self.run, node, inputs, [self.operator.target_mesh.size])


class SubGraphProgram:
    """A recorded graph made runnable: its calls are made at once, on a graph of their own."""

    __slots__ = ("operator",)

    def __init__(self, operator: SubGraph) -> None:
        self.operator = operator

    def run(self, inputs: Sequence[Parts | None]) -> list[list[Any]]:
        """The parts of the outputs; none shares memory with an input or another output."""
        graph, op = Graph(), self.operator
        graph.constructor.eager = True
        operands = [Operand(spec, parts) for spec, parts in zip(op.given, inputs, strict=True)]
        results = []
        for operand, spec in zip(replay(graph, op.inner, operands), op.made, strict=True):
            with graph.lock:
                brought = convert(graph.constructor, operand, spec.layout, keep=False)
            results.append(copied(graph.parts(brought)))
        return results

    def write(self, source: Source, node: int, inputs: list[list[str]]) -> list[list[str]]:
        """Write the call into a plan's source."""
        sizes = [spec.mesh.size for spec in self.operator.made]
        return source.whole_call(self.run, node, inputs, sizes)


Runnable = Program | ConvertProgram | SubGraphProgram


class LocalRunner:
    """Runs programs at once, or a recorded sequence by its plan, on devices of this process."""

    def prepare(self, operator: Operator, layouts: Sequence[Any]) -> Runnable:
        """Make an inferred operator runnable; `layouts` are those of all inputs and outputs."""
        if isinstance(operator, Convert):
            return ConvertProgram(operator)
        return SubGraphProgram(operator) if isinstance(operator, SubGraph) else Program(operator, layouts)

    def run(self, program: Runnable, inputs: Sequence[Parts | None]) -> list[list[Any]]:
        """Run one operator at once."""
        return program.run(inputs)

    def memory_stats(self, mesh: DeviceMesh, reset_peak: bool) -> MemoryStats:
        """What each device of a mesh holds; see `memory.py`."""
        return memory.memory_stats(mesh, reset_peak)

    def empty_cache(self) -> None:
        """Give memory that no tensor uses back to the devices."""
        memory.empty_cache()

    def run_nodes(self, nodes: list[Any], converted: list[Operand]) -> None:
        """Run a recorded sequence; see `plan/cache.py`."""
        cache.run(nodes, converted)
