"""Calls that write where the ordinary way cannot: `out=`, a tensor's own shape, storage, plain tensors."""

from __future__ import annotations

from typing import Any

import torch

from dtorch.dispatch import run
from dtorch.dispatch_door import handles, handles_kind, name_of
from dtorch.errors import UnsupportedError
from dtorch.graph.overlap import refuse_overlap
from dtorch.op.call import flatten
from dtorch.op.operand import NoValue, Operand
from dtorch.op.schema import functional_of_in_place, functional_of_out, has_tag, schema_of
from dtorch.tensor import Tensor, wrap

aten = torch.ops.aten


@handles_kind(lambda func: schema_of(func).outs)
def _into_out(func: Any, args: tuple, kwargs: dict) -> Any:
    """`out=` overloads: compute, then write into the given tensors, resizing them as torch does."""
    facts = schema_of(func)
    bound = facts.bind(args, kwargs)
    given_outs = [bound[name] for name in facts.outs]
    targets = [target for given in given_outs for target in (given if isinstance(given, list) else [given])]
    functional = functional_of_out(func)
    if functional is None or any(not isinstance(t, torch.Tensor) for t in targets):
        raise UnsupportedError(f"{name_of(func)} has no functional form to compute; call it without out=")
    operands = [t._operand for t in flatten(list(bound.values())) if isinstance(t, Tensor)]
    outs = [t._operand for t in targets if isinstance(t, Tensor)]
    refuse_overlap([i for i, operand in enumerate(operands) if operand in outs], operands)
    given = dict(zip(facts.names, args, strict=False)) | kwargs
    known = schema_of(functional).names
    if "dtype" in known and "dtype" not in given and len(targets) == 1:
        # What torch computes in is the target's dtype, but for a real number of complex ones (a norm).
        first = next((x for x in given.values() if isinstance(x, torch.Tensor)), targets[0])
        given |= {"dtype": targets[0].dtype} if targets[0].is_complex() or not first.is_complex() else {}
    given = {name: value for name, value in given.items() if name in known and name not in facts.outs}
    result = functional(**given)
    values = [result] if isinstance(result, torch.Tensor) else list(result)
    for target, value in zip(targets, values, strict=True):
        _store(target, value)
    if not func._schema.returns:
        return None
    return targets[0] if len(targets) == 1 else tuple(targets)


def _store(target: torch.Tensor, value: Any) -> None:
    if not torch.can_cast(value.dtype, target.dtype):
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {target.dtype}"
        )
    if isinstance(target, Tensor):
        if target.shape != value.shape:
            target.data = value.to(target.dtype).clone()  # torch would resize it
        else:
            target.copy_(value)
        return
    full = value.to_torch() if isinstance(value, Tensor) else value
    if target.shape != full.shape:
        target.resize_(full.shape)
    target.copy_(full)


@handles(aten.resize_.default, aten.resize_as_.default)
def _resize(func: Any, args: tuple, kwargs: dict) -> Any:
    """No more elements than before are a view put in the tensor's place; more need a storage of their own."""
    target, size = args[0], args[1].shape if isinstance(args[1], torch.Tensor) else torch.Size(args[1])
    if not isinstance(target, Tensor):
        return func(target, torch.empty(size, device="meta") if func is aten.resize_as_.default else size)
    if target.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")  # torch's own words
    if target.shape == size:
        return target
    if target.numel() >= size.numel() and target.is_contiguous():
        flat = target if target.numel() == size.numel() else target.view(-1)[: size.numel()]
        return _put(target, flat.view(size))
    if target.numel() and (target._operand.shared is not None or not target.is_contiguous()):
        raise UnsupportedError(
            f"resize_ of {list(target.shape)} to {list(size)}: the storage of a distributed tensor "
            "that has views or was written cannot grow in place; make a new tensor, x.new_empty(sizes)"
        )
    found = target.new_zeros(size)
    found.view(-1)[: target.numel()].copy_(target.view(-1))
    return _put(target, found)


@handles(
    aten.set_.source_Tensor,
    aten.set_.default,
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
    aten.set_.source_Tensor_storage_offset,
)
def _set(func: Any, args: tuple, kwargs: dict) -> Any:
    """Sharing memory is for distributed tensors among themselves."""
    target, source = args[0], args[1] if len(args) == 2 else None
    if isinstance(target, Tensor) and isinstance(source, Tensor) and target.dtype == source.dtype:
        return _put(target, source)
    raise UnsupportedError(
        f"{name_of(func)}: a distributed tensor shares memory with distributed tensors of its dtype only; "
        "x.data = values replaces its value, x.copy_(values) writes it"
    )


def _put(target: Tensor, value: Any) -> Tensor:
    """Let a tensor be another one from now on, sharing its storage."""
    with torch._C._DisableTorchDispatch():
        aten.set_.source_Tensor(target, value)
    target._operand, target._graph = value._operand, value._graph
    return target


@handles_kind(lambda func: has_tag(func, torch.Tag.inplace_view))
def _in_place_view(func: Any, args: tuple, kwargs: dict) -> Any:
    """`squeeze_`, `t_` and their like change the tensor's own shape: view, then put the view in its place."""
    target = args[0]
    plain = functional_of_in_place(func)
    if plain is None or not isinstance(target, Tensor):
        raise UnsupportedError(f"{name_of(func)} on a distributed tensor; use the out-of-place form")
    view = run(plain, args, kwargs)
    with torch._C._DisableTorchDispatch():
        func(*args, **kwargs)
    target._operand = view._operand
    return target


@handles(aten.as_strided.default)
def _as_strided(func: Any, args: tuple, kwargs: dict) -> Any:
    """A view of the root's storage, whatever part of it the given tensor is."""
    x, size, stride = args[:3]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    if not isinstance(x, Tensor):
        return run(func, args, kwargs)
    operand = x._operand
    where = operand.offset if offset is None else offset
    while (upstream := operand.buffer.upstream) is not None:
        operand = upstream.base
    buffer = operand.buffer
    if not isinstance(operand.parts, NoValue):
        x._graph.parts(operand)
    assert buffer.root_parts is not None
    root = wrap(Operand(buffer.root_spec, None, buffer).give(buffer.root_parts), x._graph)
    if root.dtype != x.dtype:
        root = run(aten.view.dtype, (root, x.dtype), {})
    return run(func, (root, size, stride, where), {})
