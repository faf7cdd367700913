"""Views in their copying spelling, `transpose_copy` and its like: the view, whose rules are known, copied."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from dtorch.dispatch_door import handles_kind
from dtorch.op import registry
from dtorch.op.schema import has_tag


@cache
def _view_of_copy(func: Any) -> Any | None:
    """`transpose.int` of `transpose_copy.int`: the view of the same arguments, where torch has it."""
    name = func._opname
    if not has_tag(func, torch.Tag.view_copy) or name.startswith("_") or registry.own_class_of(func):
        return None
    if name == "view_copy":
        return None  # it takes strides that view refuses
    packet = getattr(getattr(torch.ops, func.namespace), name.removesuffix("_copy"), None)
    view = None if packet is None else getattr(packet, func._overloadname, None)
    names = [argument.name for argument in func._schema.arguments]
    same = view is not None and [argument.name for argument in view._schema.arguments] == names
    return view if same else None


@handles_kind(_view_of_copy)
def _copied_view(func: Any, args: tuple, kwargs: dict) -> Any:
    view = _view_of_copy(func)
    assert view is not None
    found = view(*args, **kwargs)
    if isinstance(found, torch.Tensor):
        return found.clone(memory_format=torch.contiguous_format)
    return [part.clone(memory_format=torch.contiguous_format) for part in found]
