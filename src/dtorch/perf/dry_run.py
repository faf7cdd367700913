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
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from dtorch.dispatch import dispatch
from dtorch.errors import MeshError
from dtorch.graph.graph import Graph
from dtorch.mesh import DeviceMesh
from dtorch.op.call import flatten
from dtorch.op.operand import keeps_value
from dtorch.op.schema import has_tag, schema_of
from dtorch.perf.recording import Recording
from dtorch.redistribute.local_work import LocalWork
from dtorch.tensor import Tensor, distribute

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
        stack.enter_context(_DryRunMode(mesh, graph))
        yield recording


class _DryRunMode(TorchDispatchMode):
    """Sends every call of torch to dtorch, on the mesh.

    Args:
        mesh: where tensors live.
        graph: which they belong to.
    """

    def __init__(self, mesh: DeviceMesh, graph: Graph) -> None:
        super().__init__()
        self.mesh = mesh
        self.graph = graph
        self.twins: Any = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if Tensor in types:
            return dispatch(func, types, args, kwargs)
        plain = [
            value for value in flatten((args, tuple(kwargs.values()))) if isinstance(value, torch.Tensor)
        ]
        if any(isinstance(value, Tensor) for value in plain):
            return dispatch(func, types, args, kwargs)
        if not plain:
            return self._made(func, args, kwargs)
        if all(value.dim() == 0 for value in plain) or not _gives_tensors(func):
            return func(*args, **kwargs)
        if func is _NUMBER:
            return self.twin(args[0])
        if schema_of(func).written:
            return self._written(func, args, kwargs)
        args, kwargs = tree_map_only(torch.Tensor, self.twin, (args, kwargs))
        return dispatch(func, types, args, kwargs)

    def twin(self, plain: torch.Tensor) -> Tensor:
        """The tensor on the mesh that stands for a plain one; the same one each time."""
        found = self.twins.get(plain)
        if found is None:
            with LocalWork():
                found = distribute(plain, self.mesh, None, self.graph)
            self.twins[plain] = found
        return found

    def _written(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """A write among plain tensors alone: done where values are kept, recorded where they are not."""
        first = args[0]
        if isinstance(first, torch.Tensor) and keeps_value(self.mesh, first.dtype, first.numel()):
            self.twins.pop(first, None)
            return func(*args, **kwargs)
        there, named = tree_map_only(torch.Tensor, self.twin, (args, kwargs))
        result = dispatch(func, (), there, named)
        return first if there and result is there[0] else result

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
            return distribute(made, self.mesh, None, self.graph)


def _gives_tensors(func: Any) -> bool:
    return any("Tensor" in str(returned.type) for returned in func._schema.returns)
