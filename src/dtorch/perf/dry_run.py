"""Dry runs: a program is recorded on described devices, and nothing is computed, drawn or allocated.

    mesh = dtorch.described_mesh("h100-sxm", (8,), mesh_dim_names=("tp",))
    with dtorch.dry_run(mesh) as run:
        model = dtorch.parallelize(LlamaForCausalLM(config), mesh, "auto")
        model(ids)
    len(run)                # calls recorded

Inside, every tensor of torch becomes one on the described mesh: what factories make, so that building a
model costs neither memory nor time, and plain tensors from outside when they are first used. Numbers (0-dim
tensors) that `torch.tensor` makes stay on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from dtorch.dispatch import dispatch, name_of
from dtorch.errors import MeshError
from dtorch.graph.graph import Graph
from dtorch.graph.logical_graph import Node
from dtorch.mesh import DeviceMesh
from dtorch.op.call import flatten
from dtorch.op.operand import keeps_value
from dtorch.op.schema import has_tag, schema_of
from dtorch.ops.standard.create import Made, MadeParam
from dtorch.perf.recording import Recording
from dtorch.redistribute.local_work import LocalWork
from dtorch.spec import Spec
from dtorch.tensor import Tensor, distribute

_backward = torch._C._current_graph_task_id
_NUMBER = torch.ops.aten.lift_fresh.default


@contextmanager
def dry_run(mesh: DeviceMesh, *, into: Recording | None = None) -> Iterator[Recording]:
    """Inside, what torch does is recorded on described devices.

    Args:
        mesh: made by `dtorch.described_mesh`.
        into: what to record into; a new recording by default.

    Yields:
        The recording.

    Raises:
        MeshError: the mesh is one of real devices.
        UnsupportedError: inside, where a value is asked for that nobody has computed.
    """
    if mesh.description is None:
        raise MeshError(
            f"dry_run({mesh!r}): a dry run needs described devices, "
            'dtorch.described_mesh("h100-sxm", (8,), mesh_dim_names=("tp",))'
        )
    recording = Recording() if into is None else into
    graph = Graph.default_graph()
    before, graph.default_device_mesh = graph.default_device_mesh, mesh
    with ExitStack() as stack:
        stack.callback(setattr, graph, "default_device_mesh", before)
        stack.enter_context(recording.watching())
        stack.enter_context(graph.record(recording))
        stack.callback(setattr, nn.init, "_no_grad_trunc_normal_", nn.init._no_grad_trunc_normal_)
        nn.init._no_grad_trunc_normal_ = _truncated
        stack.enter_context(_NamedDevices())
        stack.enter_context(_DryRunMode(mesh, graph, recording))
        yield recording


_drawn_until_inside = nn.init._no_grad_trunc_normal_


def _truncated(tensor: torch.Tensor, mean: float, std: float, *args: Any, **kwargs: Any) -> torch.Tensor:
    """torch's truncated normal draws again what falls outside, asking for values; one draw counts."""
    if isinstance(tensor, Tensor) and tensor.device_mesh.description is not None:
        with torch.no_grad():
            return tensor.normal_(mean, std)
    return _drawn_until_inside(tensor, mean, std, *args, **kwargs)


class _NamedDevices(TorchFunctionMode):
    """Factories that name a device of their own (device="cuda") make what they make on the mesh."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if kwargs and kwargs.get("device") is not None and torch.device(kwargs["device"]).type != "meta":
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return func(*args, **(kwargs or {}))


class _DryRunMode(TorchDispatchMode):
    """Sends every call of torch to dtorch, on the mesh.

    Args:
        mesh: where tensors live.
        graph: which they belong to.
        recording: which is told the names of plain parameters.
    """

    def __init__(self, mesh: DeviceMesh, graph: Graph, recording: Recording) -> None:
        super().__init__()
        self.mesh = mesh
        self.graph = graph
        self.recording = recording
        self.twins: Any = WeakIdKeyDictionary()
        self.gradients: list[tuple[torch.Tensor, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [v for v in flatten((args, tuple(kwargs.values()))) if isinstance(v, torch.Tensor)]
        plain = [tensor for tensor in tensors if not isinstance(tensor, Tensor)]
        if not plain:
            return dispatch(func, types, args, kwargs) if tensors else self._made(func, args, kwargs)
        alone = len(plain) == len(tensors)
        if alone and not (any(tensor.dim() for tensor in plain) and _gives_tensors(func)):
            return func(*args, **kwargs)
        if func is _NUMBER:
            return self.twin(args[0])
        written = schema_of(func).written
        if written and alone and keeps_value(self.mesh, args[0].dtype, args[0].numel()):
            self.twins.pop(args[0], None)
            return func(*args, **kwargs)
        there, named = tree_map_only(torch.Tensor, self._placed, (args, kwargs))
        result = dispatch(func, types, there, named)
        return args[0] if written and there and result is there[0] else result

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the mesh; numbers are left to the operator."""
        return tensor if isinstance(tensor, Tensor) or not tensor.dim() else self.twin(tensor)

    def twin(self, plain: torch.Tensor) -> Tensor:
        """The tensor on the mesh that stands for a plain one; the same one each time."""
        found = self.twins.get(plain)
        if found is None:
            with LocalWork():
                found = distribute(plain, self.mesh, None, self.graph)
            self.twins[plain] = found
            self.recording.name_twin(plain, found)
            if plain.is_leaf and plain.requires_grad:
                self.gradients.append((plain, plain.grad))
        return found

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for plain, grad in self.gradients:
            plain.grad = grad

    def _made(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """What a factory makes; random numbers are not drawn."""
        device = kwargs.get("device")
        if "device" not in schema_of(func).names or (device is not None and device.type == "meta"):
            return func(*args, **kwargs)
        with LocalWork():
            shape = func(*args, **{**kwargs, "device": torch.device("meta")})
            if not isinstance(shape, torch.Tensor) or shape.layout is not torch.strided:
                return func(*args, **kwargs)
            drawn = has_tag(func, torch.Tag.nondeterministic_seeded)
            kept = keeps_value(self.mesh, shape.dtype, shape.numel()) and not drawn
            made = func(*args, **{**kwargs, "device": torch.device("cpu")}) if kept else shape
            tensor = distribute(made, self.mesh, None, self.graph)
        operand = tensor._operand
        node = Node(_factory(name_of(func), operand.spec), (), (operand.spec,), None, _backward() != -1)
        self.graph.note(node, (), (operand,))
        return tensor


@lru_cache(maxsize=4096)
def _factory(name: str, spec: Spec) -> Made:
    """The operator of a factory call; all calls that make the same share it."""
    operator = Made(MadeParam(name, spec), ())
    operator.infer()
    return operator


def _gives_tensors(func: Any) -> bool:
    return any("Tensor" in str(returned.type) for returned in func._schema.returns)
