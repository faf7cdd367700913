"""Operators on lists of tensors: one ordinary operator for each tensor.

`torch._foreach_add_(params, grads, alpha=-lr)` becomes `params[i].add_(grads[i], alpha=-lr)`, so that every
tensor is placed, priced and recorded by the rules it has anyway; lists may mix meshes, and plain tensors. A
fused optimizer becomes one call per parameter (`ops/standard/optimizer.py`), a gradient scaler's check some
ordinary operators.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from dtorch.dispatch import dispatch, run
from dtorch.dispatch_door import handles
from dtorch.errors import UnsupportedError
from dtorch.op.param import overload
from dtorch.op.schema import schema_of
from dtorch.tensor import Tensor

_PREFIX = "_foreach_"

# Operator of one tensor: with tensors beside it, with numbers beside it. Others have one overload, `default`.
_OVERLOADS = {
    "add": ("add.Tensor", "add.Tensor"),
    "sub": ("sub.Tensor", "sub.Tensor"),
    "mul": ("mul.Tensor", "mul.Tensor"),
    "div": ("div.Tensor", "div.Tensor"),
    "add_": ("add_.Tensor", "add_.Tensor"),
    "sub_": ("sub_.Tensor", "sub_.Tensor"),
    "mul_": ("mul_.Tensor", "mul_.Tensor"),
    "div_": ("div_.Tensor", "div_.Tensor"),
    "pow": ("pow.Tensor_Tensor", "pow.Tensor_Scalar"),
    "pow_": ("pow_.Tensor", "pow_.Scalar"),
    "lerp": ("lerp.Tensor", "lerp.Scalar"),
    "lerp_": ("lerp_.Tensor", "lerp_.Scalar"),
    "clamp_min": ("clamp_min.Tensor", "clamp_min.default"),
    "clamp_max": ("clamp_max.Tensor", "clamp_max.default"),
    "clamp_min_": ("clamp_min_.Tensor", "clamp_min_.default"),
    "clamp_max_": ("clamp_max_.Tensor", "clamp_max_.default"),
    # In place there is no maximum; clamping to a tensor or a number is the same.
    "maximum": ("maximum.default", "clamp_min.default"),
    "minimum": ("minimum.default", "clamp_max.default"),
    "maximum_": ("clamp_min_.Tensor", "clamp_min_.default"),
    "minimum_": ("clamp_max_.Tensor", "clamp_max_.default"),
    "norm": ("linalg_vector_norm.default",) * 2,
}


class Each(NamedTuple):
    """How an operator on lists is one on their members.

    Attributes:
        func: the operator on one member.
        names: arguments of the operator on lists.
        lists: those that are lists, one member a call.
        targets: names of the same arguments in `func`.
        keywords: those of `targets` that are keyword-only.
    """

    func: Any
    names: tuple[str, ...]
    lists: frozenset[str]
    targets: tuple[str, ...]
    keywords: frozenset[str]


@cache
def each(func: Any) -> Each:
    """How `func`, an operator on lists, is one on their members.

    Raises:
        UnsupportedError: torch has no such operator on one tensor.
    """
    arguments = func._schema.arguments
    lists = frozenset(a.name for a in arguments if isinstance(a.type, torch.ListType))
    single = _single(func, arguments)
    names = schema_of(single).names
    targets = tuple(a.name if a.name in names else names[i] for i, a in enumerate(arguments))
    keywords = schema_of(single).keyword_only & set(targets)
    return Each(single, tuple(a.name for a in arguments), lists, targets, keywords)


def _single(func: Any, arguments: Any) -> Any:
    name = func._opname.removeprefix(_PREFIX)
    if func._overloadname == "ScalarAndTensor":
        return overload("aten.pow.Scalar")
    numbers = "Scalar" in func._overloadname
    found = _OVERLOADS.get(name, (f"{name}.default",) * 2)[numbers]
    packet, kind = found.split(".")
    if not hasattr(getattr(torch.ops.aten, packet, None), kind):
        raise UnsupportedError(f"{func} has no form for one distributed tensor; loop, foreach=False")
    return overload(f"aten.{found}")


def _foreach(func: Any, args: tuple, kwargs: dict) -> Any:
    how = each(func)
    bound = schema_of(func).bind(args, kwargs)
    values = [_numbers(how, name, bound[name]) for name in how.names]
    count = next(len(v) for v, name in zip(values, how.names, strict=True) if name in how.lists)
    results = []
    for i in range(count):
        positional, named = [], {}
        for name, target, value in zip(how.names, how.targets, values, strict=True):
            item = value[i] if name in how.lists or (name == "scalars" and isinstance(value, list)) else value
            if target in how.keywords:
                named[target] = item
            else:
                positional.append(item)
        results.append(_call(how.func, tuple(positional), named))
    return results if func._schema.returns else None


def _numbers(how: Each, name: str, value: Any) -> Any:
    """Numbers that torch takes as one tensor, as a list."""
    if name == "scalars" and isinstance(value, torch.Tensor):
        return (value.to_torch() if isinstance(value, Tensor) else value).tolist()
    return value


def _call(func: Any, args: tuple, kwargs: dict) -> Any:
    """The operator through dtorch where it has a tensor of ours, else torch's own."""
    if any(_ours(value) for value in (*args, *kwargs.values())):
        return dispatch(func, (), args, kwargs)
    return func(*args, **kwargs)


def _ours(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_ours(item) for item in value)
    return isinstance(value, Tensor)


def _fused(func: Any, args: tuple, kwargs: dict) -> None:
    """One call for each parameter; an absent list (no momentum) stays empty."""
    for i in range(len(args[0])):
        mine = tuple([value[i]] if isinstance(value, (list, tuple)) and value else value for value in args)
        if any(map(_ours, (*mine, *kwargs.values()))):
            run(func, mine, kwargs)
        else:
            func(*mine, **kwargs)


def _check_and_unscale(func: Any, args: tuple, kwargs: dict) -> None:
    """Note in `found_inf` whether any gradient is not finite, and scale all of them."""
    grads, found_inf, inv_scale = args
    for grad in grads:
        finite = torch.isfinite(grad).all()
        bad = (finite.to_torch() if isinstance(finite, Tensor) else finite).logical_not()
        found_inf.copy_(torch.maximum(found_inf, bad.to(found_inf.dtype)))
        grad.mul_(inv_scale)


def _enter() -> None:
    """Take the place of torch's operators on lists."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith(f"aten::{_PREFIX}"):
            packet, _, kind = name.removeprefix("aten::").partition(".")
            func = overload(f"aten.{packet}.{kind or 'default'}")
            if not schema_of(func).outs:
                handles(func)(_foreach)
    for packet in ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"):
        for kind in getattr(torch.ops.aten, packet).overloads():
            handles(overload(f"aten.{packet}.{kind}"))(_fused)
    handles(torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default)(_check_and_unscale)


_enter()
