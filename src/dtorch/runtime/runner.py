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
from dtorch.op.local import Local
from dtorch.op.operand import Operand, Parts, copied
from dtorch.op.operator import Operator
from dtorch.op.param import TorchCall
from dtorch.op.stream import StreamKey
from dtorch.ops.standard.convert import Convert
from dtorch.plan import cache
from dtorch.plan.codegen import PlanText
from dtorch.plan.excess import excess_bytes
from dtorch.plan.fuse.operator import Fuse
from dtorch.plan.passes.draft import Draft
from dtorch.runtime import memory, streams, threads
from dtorch.runtime.kernel import Kernel, KernelContext, KernelFactory


class Program:
    """One operator made runnable: its kernels, and which devices share a result."""

    __slots__ = (
        "group",
        "kernels",
        "large",
        "operator",
        "order",
        "owner",
        "positions",
        "special_order",
        "streamed",
    )

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
        self.streamed = streams.used_by(mesh)

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
        if self.streamed:
            streams.join()
        return self._run(inputs)

    def _run(self, inputs: Sequence[Parts | None]) -> list[list[Any]]:
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

    def _writes(self) -> bool:
        """Whether an input is written."""
        return isinstance(self.operator.param, TorchCall) and bool(self.operator.schema.written)

    def torch_calls(self) -> list[tuple[int, Local]] | None:
        """Position and call of each distinct shard, where nothing but a call of torch is made, one by one."""
        if self.group is not None or self._apart():
            return None
        calls = [kernel_call(kernel) for kernel in self.kernels]
        alone = all(isinstance(call, Local) for call in calls)
        return list(zip(self.positions, calls, strict=True)) if alone else None

    def write(self, source: PlanText, node: int, inputs: list[list[str]]) -> list[list[str]]:
        """Write the operator into a plan's source; the variables of each output, in mesh order."""
        count = len(self.operator.outputs)
        _wait(source, node, inputs, self._writes())
        if self.group is not None or self._apart():
            owners: list[Sequence[int]] = [
                [self.positions[i] for i in self.special_order.get(j, self.order)] for j in range(count)
            ]
            return source.whole_call(self._run, node, inputs, owners)
        specs = [None if operand is None else operand.spec for operand in self.operator.inputs]
        names = [[f"v{node}_{j}_{i}" for i in range(len(self.positions))] for j in range(count)]
        for i, (position, kernel) in enumerate(zip(self.positions, self.kernels, strict=True)):
            mine = [part[position] for part in inputs]
            source.call(kernel_call(kernel), node, mine, [name[i] for name in names], specs)
        return [[names[j][i] for i in self.special_order.get(j, self.order)] for j in range(count)]


def _wait(source: PlanText, node: int, inputs: list[Any], writes: bool = False) -> None:
    """Write the waits for communications that fill what a node reads; for all of them, where it writes."""
    read = {name for names in inputs if type(names) is list for name in names}
    waited = {issuer for name, issuer in source.under_way.items() if writes or name in read}
    if waited:
        source.line(f"{source.constant(partial(streams.wait_for, *sorted(waited)))}()", node)
        source.under_way = {n: issuer for n, issuer in source.under_way.items() if issuer not in waited}


def kernel_call(kernel: Kernel) -> Any:
    """How a plan calls a kernel: the torch call itself where nothing overrides it, else `compute`."""
    plain = type(kernel) is Kernel and kernel.operator.is_torch_call(kernel.local)
    return kernel.local if plain else kernel.compute


class ConvertProgram:
    """A redistribution made runnable.

    Dims along which the source is expanded (stride 0) stay so: what memory holds once is moved once, and the
    order of the other strides, by which torch lays out results, is that of one device.
    """

    __slots__ = ("aside", "expanded", "operator", "order", "source", "streamed", "target")

    def __init__(self, operator: Convert) -> None:
        self.operator = operator
        self.streamed = streams.used_by(operator.source.mesh) or streams.used_by(operator.target_mesh)
        self.aside = self.streamed and any(key.kind == "communicate" for key in operator.streams)
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
        if self.streamed:
            streams.join()
        if not self.aside:
            return self._run(inputs)
        made = self._issue(0, inputs)
        streams.join()
        return made

    def _issue(self, name: int, inputs: Sequence[Parts | None]) -> list[list[Any]]:
        """As `run`, left under way."""
        source, target = self.operator.source.mesh, self.operator.target_mesh
        devices = [mesh.torch_device(i) for mesh in (source, target) for i in range(mesh.size)]
        return [streams.issue(name, devices, inputs[0] or (), lambda: self._run(inputs)[0])]

    def _run(self, inputs: Sequence[Parts | None]) -> list[list[Any]]:
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
        owner = self.operator.target_spec.owners
        made = {i: parts[i].expand(layout.local_shape(mesh.coords[i])) for i in set(owner)}
        return [made[i] for i in owner]

    def write(self, source: PlanText, node: int, inputs: list[list[str]]) -> list[list[str]]:
        """Write the redistribution into a plan's source."""
        owners = [self.operator.target_spec.owners]
        if not self.aside:
            _wait(source, node, inputs)
            return source.whole_call(self._run, node, inputs, owners)
        made = source.whole_call(partial(self._issue, node), node, inputs, owners)
        source.under_way.update(dict.fromkeys(made[0], node))
        source.ending = streams.join
        return made


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

    def write(self, source: PlanText, node: int, inputs: list[list[str]]) -> list[list[str]]:
        """Write the call into a plan's source."""
        _wait(source, node, inputs)
        return source.whole_call(self.run, node, inputs, [spec.owners for spec in self.operator.made])


class FuseProgram:
    """A region made runnable as an operator of its own: its calls, one after the other."""

    __slots__ = ("operator", "programs")

    def __init__(self, operator: Fuse) -> None:
        self.operator = operator
        self.programs = [LocalRunner().prepare(call, call.layouts) for call in operator.calls]

    def run(self, inputs: Sequence[Parts | None]) -> list[list[Any]]:
        """The parts of the outputs."""
        body = self.operator.body
        values: dict[int, Any] = {-1 - i: parts for i, parts in enumerate(inputs)}
        for node, program in zip(body.nodes, self.programs, strict=True):
            made = program.run([values[number] for number in node.inputs])
            values.update((number, made[j]) for number, j in zip(node.outputs, node.kept, strict=True))
        return [values[number] for number in body.results]

    def write(self, source: PlanText, node: int, inputs: list[list[str]]) -> list[list[str]]:
        """Write the call into a plan's source."""
        _wait(source, node, inputs)
        return source.whole_call(self.run, node, inputs, [spec.owners for spec in self.operator.made])


Runnable = Program | ConvertProgram | SubGraphProgram | FuseProgram


class LocalRunner:
    """Runs programs at once, or a recorded sequence by its plan, on devices of this process."""

    def prepare(self, operator: Operator, layouts: Sequence[Any]) -> Runnable:
        """Make an inferred operator runnable; `layouts` are those of all inputs and outputs."""
        if isinstance(operator, Convert):
            return ConvertProgram(operator)
        if isinstance(operator, Fuse):
            return FuseProgram(operator)
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

    def excess_bytes(self, nodes: list[Any], converted: list[Operand]) -> int:
        """What waiting costs a recorded sequence in memory; see `plan/excess.py`.

        Accelerators work beside the recording, so there all that it makes counts, and it is started early.
        """
        if nodes[-1][0].operator.mesh.device_type != "cpu":
            return sum(recipe.nbytes for recipe, *_ in nodes)
        return excess_bytes(nodes, converted)

    def run_nodes(self, nodes: list[Any], converted: list[Operand]) -> None:
        """Run a recorded sequence; see `plan/cache.py`."""
        try:
            cache.run(nodes, converted)
        finally:
            streams.join()


Draft.prepare = staticmethod(LocalRunner().prepare)
