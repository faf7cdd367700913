"""A graph: what belongs together when programs run: its lock, its guards, its recorders, its runner."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from dtorch.errors import DeviceError, SerializationError, UnsupportedError
from dtorch.future import VoidFutureCollect, events_on
from dtorch.graph.confirm import users_place
from dtorch.graph.constructor import GraphConstructor
from dtorch.graph.listing import listing
from dtorch.graph.logical_graph import LogicalGraph, Node
from dtorch.graph.memory_stats import MemoryStats
from dtorch.mesh import DeviceMesh
from dtorch.op.cost import OperatorCost
from dtorch.op.operand import NoValue, Operand, Parts
from dtorch.ops.system.control import ControlOperator
from dtorch.ops.system.get_tensor import GetTensor, GetTensorParam
from dtorch.ops.system.memory import Memory, MemoryParam
from dtorch.ops.system.sync import Sync, SyncParam
from dtorch.options import GlobalOption

_IDS = itertools.count()
_LOCAL = threading.local()
POLICIES = ("auto", "error")


class Graph:
    """Records and runs operators.

    Attributes:
        id: a number, unique in the process.
        constructor: the door through which operators are added.
        recorders: logical graphs that collect what is called now.
        syncing: whether gradients of leaves are reduced as they arrive.
        default_device_mesh: where tensors made without a mesh live; None is the default device alone.
        default_dtype: dtype of floating-point tensors made without one; None is torch's.
        lock: held while an operator is added; an operator belongs to the graph of its operands.

    Two graphs are equal if they are the same one.
    """

    __slots__ = (
        "__weakref__",
        "_policy",
        "constructor",
        "default_device_mesh",
        "default_dtype",
        "id",
        "lock",
        "recorders",
        "syncing",
    )

    runner_factory: Any = None
    factory_mode: Any = None

    def __init__(self) -> None:
        self.id = next(_IDS)
        self.lock = threading.RLock()
        self._policy = "auto"
        self.recorders: list[LogicalGraph] = []
        self.syncing = True
        self.default_device_mesh: DeviceMesh | None = None
        self.default_dtype: torch.dtype | None = None
        self.constructor = GraphConstructor(self, type(self).runner_factory(), GlobalOption.get_eager())

    @staticmethod
    def default_graph() -> Graph:
        """The graph of this thread."""
        found = getattr(_LOCAL, "graph", None)
        if found is None:
            found = _LOCAL.graph = Graph()
        return found

    @property
    def policy(self) -> str:
        """ "auto" converts inputs where rules ask for it, "error" refuses conversions that send bytes."""
        return self._policy

    @policy.setter
    def policy(self, policy: str) -> None:
        self._policy = policy
        self.constructor.look_again()

    @contextmanager
    def record(self, into: LogicalGraph | None = None) -> Iterator[LogicalGraph]:
        """Collect the operators that calls inside add, whenever they run, in a new container or in `into`."""
        recorder = LogicalGraph() if into is None else into
        self.recorders.append(recorder)
        self.constructor.look_again()
        try:
            yield recorder
        finally:
            self.recorders.remove(recorder)

    @contextmanager
    def redistribute_policy(self, policy: str) -> Iterator[None]:
        """Run inside under a policy, "auto" or "error"."""
        before, self.policy = self.policy, check_policy(policy)
        try:
            yield
        finally:
            self.policy = before

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave leaf gradients as pending sums, accumulated locally."""
        before, self.syncing = self.syncing, False
        try:
            yield
        finally:
            self.syncing = before

    @contextmanager
    def device_mesh_guard(self, device_mesh: DeviceMesh | str | torch.device) -> Iterator[DeviceMesh]:
        """Inside, tensors and modules made without saying where live on the mesh, in this graph, Replicate.

        torch's own factories too (`torch.zeros`, `torch.arange`, parameters of modules), unless they are
        asked for a device of another type than the mesh's.

        Args:
            device_mesh: the mesh, or a device as a string, which is a mesh of one.

        Raises:
            DeviceError: this machine lacks a device of the mesh.
        """
        mesh = device_mesh if isinstance(device_mesh, DeviceMesh) else DeviceMesh(device_mesh)
        mesh.check_available()
        before, self.default_device_mesh = self.default_device_mesh, mesh
        with ExitStack() as stack:
            stack.callback(setattr, self, "default_device_mesh", before)
            stack.enter_context(type(self).factory_mode(self))
            yield mesh

    @contextmanager
    def dtype_guard(self, dtype: torch.dtype) -> Iterator[torch.dtype]:
        """Inside, floating-point tensors and modules made without a dtype have this one.

        Raises:
            UnsupportedError: the dtype is no floating-point dtype.
        """
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise UnsupportedError(f"dtype_guard({dtype!r}): a default dtype is a floating-point one")
        before, self.default_dtype = self.default_dtype, dtype
        with ExitStack() as stack:
            stack.callback(setattr, self, "default_dtype", before)
            stack.enter_context(type(self).factory_mode(self))
            yield dtype

    def read(self, operand: Operand) -> torch.Tensor:
        """The full value of an operand as a plain tensor of its own, a visible node; no policy refuses it."""
        with self.lock, torch._C.DisableTorchFunction():
            if isinstance(operand.parts, NoValue):
                raise operand.parts.again()
            if self.recorders:
                operator = GetTensor(GetTensorParam(), [Operand(operand.spec)])
                operator.infer()
                outputs = tuple(None if o is None else o.spec for o in operator.outputs)
                in_backward = torch._C._current_graph_task_id() != -1
                self.note(Node(operator, (operand.spec,), outputs, None, in_backward))
            return self.constructor.value(operand)

    def parts(self, operand: Operand) -> Parts:
        """The local tensors of an operand, up to date; not to be written."""
        with self.lock, torch._C.DisableTorchFunction():
            return self.constructor.parts(operand)

    def sync(self) -> None:
        """Wait until everything issued so far has run, on every device; a visible node."""
        self.sync_future().wait()

    def sync_future(self) -> VoidFutureCollect:
        """What `sync` waits for, without waiting.

        Raises:
            Exception: the first failure that nobody has been told of yet.
        """
        pending = self.constructor.pending
        self.constructor.flush()
        failure, pending.failure = pending.failure, None
        if failure is not None:
            raise failure
        self.control(Sync(SyncParam(), []))
        used = torch.cuda.is_available() and torch.cuda.is_initialized()
        return VoidFutureCollect(
            events_on([torch.device("cuda", i) for i in range(torch.cuda.device_count())] if used else [])
        )

    def empty_cache(self) -> None:
        """Give memory that no tensor uses back to the devices; the CPU keeps none. A visible node."""
        self.control(Memory(MemoryParam("empty_cache"), []))
        self.constructor.runner.empty_cache()

    def get_memory_stats(
        self, device_mesh: DeviceMesh | None = None, reset_peak: bool = False
    ) -> MemoryStats:
        """What each device holds now, in bytes, once everything issued so far has run; a visible node.

        Virtual cpu devices are counted: the storages of all distributed tensors, for each device that has a
        part in one, and the peak is the most that any count has found. CUDA devices tell it themselves.

        Args:
            device_mesh: the devices; by default those of the graph, else the first cpu.
            reset_peak: whether peaks count from here on; the statistics are those before.

        Raises:
            DeviceError: this machine lacks a device of the mesh, or the mesh is described.
        """
        mesh = device_mesh or self.default_device_mesh or DeviceMesh("cpu")
        mesh.check_available()
        if mesh.description is not None:
            raise DeviceError(f"{mesh} holds nothing, it is described; dtorch.dry_run() tells what it would")
        self.control(Memory(MemoryParam("stats", reset_peak), []))
        self.sync_future().wait()
        return self.constructor.runner.memory_stats(mesh, reset_peak)

    def control(self, operator: ControlOperator) -> None:
        """Show an operator that has no operands to the open recorders."""
        if self.recorders:
            operator.infer()
            self.note(Node(operator, (), ()))

    def note(
        self,
        node: Node,
        given: Sequence[Any] = (),
        made: Sequence[Any] = (),
        converted: Operand | None = None,
    ) -> None:
        """Enter a node, called by the nearest user; see `LogicalGraph.add` and `wire_conversion`."""
        node = node._replace(place=users_place(2))
        for recorder in self.recorders:
            recorder.add(node, given, made)
            if converted is not None:
                recorder.wire_conversion(converted, made[0])

    def wire(self, *call: Any) -> None:
        """Tell the open recorders what the call just noted reads and makes; see `LogicalGraph.wire`."""
        for recorder in self.recorders:
            recorder.wire(*call)

    def satisfy(self, mesh: DeviceMesh) -> bool:
        """Whether this machine has every device of the mesh."""
        return not mesh.missing_devices()

    def cost(self) -> OperatorCost:
        """Price of what the open recorders have collected."""
        total = OperatorCost()
        for recorder in self.recorders:
            total = total + recorder.cost()
        return total

    def save(
        self, path: str | Path, inputs: Sequence[Any] | None = None, outputs: Sequence[Any] | None = None
    ) -> None:
        """Write what the innermost open recorder has collected into a file, as `LogicalGraph.save`.

        Raises:
            SerializationError: no recorder is open.
        """
        if not self.recorders:
            raise SerializationError(
                "nothing is recorded: with dtorch.record() as graph: ...; graph.save(path)"
            )
        self.recorders[-1].save(path, inputs, outputs)

    @staticmethod
    def load(path: str | Path) -> LogicalGraph:
        """What was recorded and saved; it prints, has a price, and runs again. Reading runs nothing.

        Raises:
            SerializationError: the file is damaged, newer, of something else, or names what is not here.
        """
        from dtorch.graph import serialize

        return serialize.load(path)

    def __deepcopy__(self, memo: Any) -> Graph:
        return self

    def __repr__(self) -> str:
        return f"Graph(id={self.id})"

    def __str__(self) -> str:
        """What is pending: a line for each call that has been recorded and has not run."""
        with self.lock:
            return f"{self!r}, {len(self.constructor.pending.nodes)} pending\n" + self.listing()

    def listing(self) -> str:
        """What is pending, a line a call: operator, placements, price, and the line that made the call."""
        with self.lock:
            return listing(self.constructor.pending.nodes)


def check_policy(policy: str) -> str:
    """The policy itself, if there is one of that name.

    Raises:
        UnsupportedError: it is neither "auto" nor "error".
    """
    if policy not in POLICIES:
        raise UnsupportedError(f"the redistribute policy is one of {POLICIES}, not {policy!r}")
    return policy
