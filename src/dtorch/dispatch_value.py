"""Calls of torch that need a value on the host, another mesh, or a mode: answered here, not by an operator.

Reading is never refused by a policy, and counted as `GetTensor`.
"""

from __future__ import annotations

from typing import Any

import torch

from dtorch.dispatch import run
from dtorch.dispatch_door import handles
from dtorch.graph.conversion import convert
from dtorch.graph.overlap import refuse_overlap
from dtorch.layout import Layout
from dtorch.op.modes import ASKS_GRAD_MODE
from dtorch.op.param import overload
from dtorch.op.schema import schema_of
from dtorch.tensor import Tensor, wrap
from dtorch.tensor_state import read

aten = torch.ops.aten


@handles(aten._local_scalar_dense.default)
def _item(func: Any, args: tuple, kwargs: dict) -> Any:
    return read(args[0]).item()


@handles(*[overload(f"{name}.default") for name in ASKS_GRAD_MODE])
def _under_grad_mode(func: Any, args: tuple, kwargs: dict) -> Any:
    """The grad mode is an argument, since a plan runs under another."""
    name = ASKS_GRAD_MODE[f"aten.{func._opname}"]
    return run(func, *schema_of(func).replaced(args, kwargs, {name: torch.is_grad_enabled()}))


@handles(aten.equal.default)
def _equal(func: Any, args: tuple, kwargs: dict) -> bool:
    """Shard by shard where both are spread alike, else by their full values."""
    one, other = args
    if one.shape != other.shape:
        return False
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        a, b = one._operand, other._operand
        if a.layout is b.layout and a.spec.mesh == b.spec.mesh and not a.layout.partial:
            mine, theirs = one._graph.parts(a), other._graph.parts(b)
            return all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))
    values = [read(t) if isinstance(t, Tensor) else t for t in (one, other)]
    if isinstance(one, Tensor) != isinstance(other, Tensor):
        values = [v.to("cpu") for v in values]
    return torch.equal(*values)


@handles(aten.copy_.default)
def _copy(func: Any, args: tuple, kwargs: dict) -> Any:
    """Across meshes the source is brought over first; into a plain tensor the full value is written."""
    target, source, *rest = args
    if not isinstance(target, Tensor):
        return func(target, read(source), *rest, **kwargs)
    if isinstance(source, Tensor):
        mesh, have, shared = target._operand.spec.mesh, source._operand.spec, source._operand.shared
        if shared is not None and shared is target._operand.shared:
            if source.shape != target.shape and _is_reshape(source, target):
                return target  # torch.matmul(out=) brings back what it wrote, to what it is a view of
            if mesh.size > 1:
                refuse_overlap([0], [target._operand, source._operand])
                source = source.clone()  # parts may overlap otherwise than the whole tensors do
        if have.mesh != mesh and have.mesh.size > 1:
            source = _brought(source, target)
    return run(func, (target, source, *rest), kwargs)


@handles(aten._to_copy.default)
def _to_copy(func: Any, args: tuple, kwargs: dict) -> Any:
    """A copy on the meta device has no value to spread, so it is a plain tensor."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "meta":
        return run(func, args, kwargs)
    x = args[0]
    return func(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), *args[1:], **kwargs)


def _is_reshape(view: Tensor, base: Tensor) -> bool:
    """Whether a tensor is all of another one in another shape, in the same storage."""
    mine, theirs = view._operand, base._operand
    same = mine.buffer is theirs.buffer and mine.offset == theirs.offset
    return same and view.numel() == base.numel() and view.is_contiguous() and base.is_contiguous()


def _brought(source: Tensor, target: Tensor) -> Tensor:
    """The source on the target's mesh, cut as the target where shapes agree."""
    mesh, graph, have = target._operand.spec.mesh, source._graph, source._operand.spec
    layout = target._operand.layout
    if layout.shape != have.shape or layout.partial:
        layout = Layout.replicate(mesh.shape, have.shape)
    graph.parts(source._operand)
    with graph.lock:
        moved = convert(graph.constructor, source._operand, layout, mesh, keep=False, implicit=False)
    return wrap(moved, graph)


@handles(aten.contiguous.default)
def _contiguous(func: Any, args: tuple, kwargs: dict) -> Any:
    """The tensor itself where its global strides are contiguous already, else a copy."""
    memory_format = kwargs.get("memory_format", torch.contiguous_format)
    return args[0] if args[0].is_contiguous(memory_format=memory_format) else run(func, args, kwargs)
