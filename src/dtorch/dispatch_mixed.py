"""Plain tensors, those of other graphs and of one device, among the arguments of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtorch import autograd
from dtorch.dispatch_door import name_of
from dtorch.errors import MeshMismatchError, UnsupportedError
from dtorch.graph.confirm import users_line
from dtorch.graph.graph import Graph
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import NoValue, Operand, replicated
from dtorch.op.schema import schema_of
from dtorch.tensor import Tensor

_MAY_WRITE_PLAIN = (
    "copy_",
    "index_copy_",
    "index_put_",
    "scatter_",
    "index_fill_",
    "masked_scatter_",
    "put_",
)


def home(tensors: Sequence[torch.Tensor], name: Any = "one operator") -> tuple[DeviceMesh, Graph]:
    """The mesh and the graph that a call of something of this name belongs to.

    Raises:
        MeshMismatchError: two distributed tensors live on different meshes.
    """
    mesh: DeviceMesh | None = None
    graph: Graph | None = None
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            continue
        theirs = tensor._operand.spec.mesh
        if mesh is None or (mesh.size == 1 and theirs.size > 1):
            mesh, graph = theirs, tensor._graph
        elif theirs.size > 1 and theirs != mesh:
            raise MeshMismatchError(
                f"{name} got tensors on two meshes, {mesh} and {theirs}; bring them together first, "
                f"x.redistribute(mesh, placements) or x.to(mesh)\n  called from {users_line()}"
            )
    if mesh is None or graph is None:
        raise UnsupportedError("no dtorch tensor among the arguments")
    return mesh, graph


def operand_of(tensor: torch.Tensor, mesh: DeviceMesh) -> Operand:
    """The operand of a tensor on a mesh; plain and one-device tensors count as Replicate."""
    if isinstance(tensor, Tensor):
        operand = tensor._operand
        if operand.spec.mesh is mesh or operand.spec.mesh == mesh:
            return operand
        return replicated(tensor._graph.constructor.value(operand), mesh)
    if tensor.requires_grad:
        autograd.watch_plain(tensor)
        tensor = tensor.detach()
    return replicated(tensor, mesh)


def operands_at(
    tensors: Sequence[torch.Tensor], mesh: DeviceMesh, graph: Graph
) -> tuple[list[Operand], list[int]]:
    """The operands of tensors on a mesh; and which are plain or another graph's, so may change unseen."""
    operands, foreign = [], []
    for i, tensor in enumerate(tensors):
        operands.append(operand_of(tensor, mesh))
        if not isinstance(tensor, Tensor):
            foreign.append(i)
        elif tensor._graph is not graph:
            tensor._graph.parts(tensor._operand)
            foreign.append(i)
    return operands, foreign


def carry_back(plain: torch.Tensor, operand: Operand) -> None:
    """Write into a plain tensor what was written into its copies on other devices."""
    assert operand.parts is not None
    if isinstance(operand.parts, NoValue):
        raise operand.parts.again()
    if operand.parts[0].data_ptr() != plain.data_ptr():
        plain.detach().copy_(operand.parts[0])


def check_plain_writes(func: Any, args: tuple, kwargs: dict) -> None:
    """Refuse arithmetic whose result would be a plain tensor; what is written aside is carried back.

    Raises:
        UnsupportedError: the tensor that the call returns is a plain one, and no copy into it.
    """
    facts = schema_of(func)
    if not facts.written or func._opname in _MAY_WRITE_PLAIN:
        return
    bound = facts.bind(args, kwargs)
    for name in facts.returned:
        value = None if name is None else bound.get(name)
        if isinstance(value, torch.Tensor) and not isinstance(value, Tensor):
            raise UnsupportedError(
                f"{name_of(func)} would write a distributed result into a plain tensor (argument {name}); "
                "make it distributed first, dtorch.Tensor(plain, device_mesh=..., placements=...), "
                "or use the out-of-place form"
            )
