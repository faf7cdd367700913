"""What a torch operator's schema says about aliasing, read once per overload."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from dtorch.hidden import HIDDEN_VIEWS, writes


class Schema:
    """Aliasing facts of one overload.

    Attributes:
        names: argument names in schema order (positional, then keyword-only).
        defaults: name -> default value, for arguments that have one.
        written: names of the arguments that the operator writes or may write, `out=` ones excluded.
        outs: names of the `out=` arguments.
        returned: for each return, the name of the argument that it *is* (in-place), else None.
        view_of: name of the argument that the outputs view, or None.
    """

    __slots__ = ("defaults", "func", "keyword_only", "names", "outs", "returned", "view_of", "written")

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.names = tuple(a.name for a in schema.arguments)
        self.keyword_only = frozenset(a.name for a in schema.arguments if a.kwarg_only)
        self.defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        self.outs = tuple(a.name for a in schema.arguments if a.is_out)
        self.written = tuple(name for name in writes(func) if name not in self.outs)
        owner = {name: a.name for a in schema.arguments if a.alias_info for name in a.alias_info.before_set}
        self.returned = tuple(_is_argument(r, owner) for r in schema.returns)
        self.view_of = self._viewed(schema, owner)

    def _viewed(self, schema: Any, owner: dict[str, str]) -> str | None:
        if schema.name in HIDDEN_VIEWS:
            return HIDDEN_VIEWS[schema.name]
        for returned in schema.returns:
            alias = returned.alias_info
            if alias is not None and not alias.is_write and alias.before_set:
                return owner[next(iter(alias.before_set))]
        if self.func.is_view and schema.returns:
            return next(a.name for a in schema.arguments if a.alias_info is not None)
        return None

    def bind(self, args: tuple, kwargs: dict) -> dict[str, Any]:
        """Arguments by name, defaults filled in."""
        bound = dict(self.defaults)
        bound.update(zip(self.names, args, strict=False))
        bound.update(kwargs)
        return bound

    def replaced(self, args: tuple, kwargs: dict, changed: dict[str, Any]) -> tuple[tuple, dict]:
        """Arguments of a call with some of them replaced by name, each left where the call had it.

        Raises:
            TypeError: the operator has no argument of such a name.
        """
        new_args, new_kwargs = list(args), dict(kwargs)
        for name, value in changed.items():
            if name not in self.names:
                raise TypeError(f"{self.func} has no argument {name}; it has {', '.join(self.names)}")
            number = self.names.index(name)
            if name not in kwargs and name not in self.keyword_only and number < len(args):
                new_args[number] = value
            else:
                new_kwargs[name] = value
        return tuple(new_args), new_kwargs


def _is_argument(returned: Any, owner: dict[str, str]) -> str | None:
    alias = returned.alias_info
    if alias is None or not alias.is_write or not alias.before_set:
        return None
    return owner[next(iter(alias.before_set))]


@cache
def schema_of(func: Any) -> Schema:
    """The aliasing facts of a torch overload."""
    return Schema(func)


@cache
def base_name(func: Any) -> str:
    """Name of the operator behind in-place and out= spellings: `aten.add` for `aten.add_.Tensor`."""
    namespace, name = func._schema.name.split("::")
    facts = schema_of(func)
    if facts.written and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return f"{namespace}.{name}"


@cache
def functional_of_out(func: Any) -> Any | None:
    """The overload that computes what an `out=` overload writes, or None."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    packet, written = func.overloadpacket, schema_of(func).written
    candidates = [getattr(packet, kind) for kind in packet.overloads()]
    candidates = [c for c in candidates if not schema_of(c).outs and schema_of(c).written in ((), written)]
    for candidate in candidates:
        if [(a.name, str(a.type)) for a in candidate._schema.arguments] == wanted:
            return candidate
    return next((c for c in candidates if _takes(c, wanted)), None)


@cache
def functional_of_in_place(func: Any) -> Any | None:
    """The overload behind an in-place form, by its arguments: `transpose.int` of `transpose_.default`."""
    packet = getattr(getattr(torch.ops, func.namespace), func._opname.removesuffix("_"), None)
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for kind in () if packet is None else packet.overloads():
        candidate = getattr(packet, kind)
        if [(a.name, str(a.type)) for a in candidate._schema.arguments] == wanted:
            return candidate
    return None


def _takes(candidate: Any, wanted: list[tuple[str, str]]) -> bool:
    """Whether an overload takes such arguments; some have more, with defaults (dtype, device)."""
    theirs = schema_of(candidate)
    has = {(a.name, str(a.type)) for a in candidate._schema.arguments}
    return set(wanted) <= has and {name for name, _ in has - set(wanted)} <= set(theirs.defaults)


def has_tag(func: Any, tag: torch.Tag) -> bool:
    """Whether torch tags the overload so."""
    return tag in func.tags
