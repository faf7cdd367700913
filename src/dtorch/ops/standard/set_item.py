"""Writing at integer places: scatter, index_add, index_copy, index_fill, index_put.

    scatter      y = x, then y[b with b_dim = i[b]] = s[b]      scatter_add: += s[b]
    index_add    y = x, then y[.., i[b], ..] += alpha s[.., b, ..]      index_copy: = s;  index_fill: = value
    index_put    y = x, then y[i[b], e] = v[b, e], or += v[b, e]

Shapes      y as x; scatter: s at least as long as the index; index_*: s as x but dim -> len(i)
FLOPs       bound by memory; touched are index, source and places written, in place x not otherwise
Placements  on one mesh axis, e a dim of x that is not indexed, b a dim of the index

    x       i       s       y
    R       R       R       R
    S(e)    R       S(e)    S(e)    scatter: i is S(e) too, where x, i and s are equally long
    P       R       P       P       a value that is no tensor counts as pending only where it is 0
    P       S(b)    S(b)    P       only where values are added
"""

from __future__ import annotations

from math import prod
from typing import Any

from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Operator
from dtorch.op.priced import touched
from dtorch.ops.standard.gather import index_names


class Writing(Operator, abstract=True):
    """Base: writes at integer places."""

    def traffic_bytes(self) -> int:
        """Out of place x is copied; then index and source are read, places written."""
        x, *others = (operand for operand in self.inputs if operand is not None)
        copied = 0 if self.schema.written else 2 * x.nbytes
        places = max((prod(o.shape) for o in others), default=1)
        return copied + sum(map(touched, others)) + places * x.spec.itemsize

    def whole_rule(self) -> Rule:
        """No dim may be cut."""
        inputs = tuple(None if s is None else (UNCUT,) * len(s) for s in self.shapes)
        return Rule(inputs, (inputs[0] or (),))

    def groups(self, *names: str) -> tuple[frozenset[int], ...]:
        """Inputs in which the result is jointly linear; a plain value among them must be 0."""
        slots = [self.slot(name) for name in names]
        if any(s is None and self.arguments.get(n) != 0 for n, s in zip(names, slots, strict=True)):
            return ()
        return (frozenset(s for s in slots if s is not None),)


class Scatter(Writing):
    """scatter, scatter_add and scatter_reduce, with a source or a number."""

    left_out = (
        ("aten.scatter_reduce", "reduce=prod", "a product that includes x is linear in x; seldom pending"),
        ("aten.scatter_reduce", "include_self=False", "one source for each place"),
    )

    type = "SetItem"
    torch_ops = ("aten.scatter", "aten.scatter_add", "aten.scatter_reduce.two")

    def rule(self) -> Rule:
        """Other dims side by side."""
        x, i = self.slot("self"), self.slot("index")
        s = self.slot("src")
        assert x is not None
        assert i is not None
        shapes = [self.shapes[n] for n in (x, i, s) if n is not None]
        ndims = {len(shape or ()) for shape in shapes}
        if ndims == {0} or len(ndims) > 1:
            return self.whole_rule()
        ndim = ndims.pop()
        dim = self.arguments["dim"] % ndim
        held = tuple(
            f"d{d}" if d != dim and len({shape[d] for shape in shapes if shape}) == 1 else UNCUT
            for d in range(ndim)
        )
        adds = self.adds()
        along = adds and s is not None and (self.shapes[i] or ())[dim] == (self.shapes[s] or ())[dim]
        read = tuple("i" if d == dim and along else n for d, n in enumerate(held))
        names: list[Any] = [read] * len(self.inputs)
        names[x] = held
        return Rule(tuple(names), (held,), self.linear())

    def adds(self) -> bool:
        """Whether the result is the sum over the places of the index."""
        if self.name == "aten.scatter_reduce":
            return self.arguments["reduce"] == "sum" and self.arguments["include_self"]
        return self.name == "aten.scatter_add" or self.arguments.get("reduce") == "add"

    def linear(self) -> tuple[frozenset[int], ...]:
        """x and source together, unless they are multiplied or compared."""
        x, how = self.inputs[0], self.arguments.get("reduce")
        averages = how == "mean" and x is not None and x.spec.dtype.is_floating_point
        if self.adds() or averages or how == "sum" or (self.name == "aten.scatter" and how is None):
            return self.groups("self", "src") if "src" in self.arguments else self.groups("self", "value")
        return ()


class IndexAdd(Writing):
    """index_add, index_copy, index_fill along one dim."""

    left_out = (
        ("aten.index_add", "alpha=0)", "nothing is added"),
        ("aten.index_copy", "P, R, R -> R", "all of x is overwritten"),
        ("aten.index_copy", "R, R, P -> P", "all of x is overwritten"),
        ("aten.index_fill", "", "all of x is overwritten"),
    )

    type = "SetItem"
    torch_ops = (
        "aten.index_add",
        "aten.index_copy",
        "aten.index_fill.int_Scalar",
        "aten.index_fill.int_Tensor",
    )

    def rule(self) -> Rule:
        """Other dims stay; places may be cut where values are added."""
        x, i, s = self.slot("self"), self.slot("index"), self.slot("source")
        shape = self.shapes[0] or ()
        source = None if s is None else self.shapes[s]
        if x != 0 or i is None or not shape or not self.shapes[i] or (s is not None and not source):
            return self.whole_rule()
        dim = self.arguments["dim"] % len(shape)
        held = tuple(UNCUT if d == dim else f"d{d}" for d in range(len(shape)))
        adds = self.name == "aten.index_add"
        place = "i" if adds else UNCUT
        names: list[Any] = [()] * len(self.inputs)
        names[0], names[i] = held, (place,)
        if s is not None:
            names[s] = tuple(place if d == dim else n for d, n in enumerate(held))
        value = "value" if self.name == "aten.index_fill" else "source"
        return Rule(tuple(names), (held,), self.groups("self", value))


class SetItem(Writing):
    """x[i, :, j] = values: index_put(indices, values, accumulate)."""

    left_out = (
        ("aten.index_put", "P, S(0), R -> P", "accumulates one value at every place; seldom pending"),
    )

    torch_ops = ("aten.index_put", "aten._index_put_impl", "aten._unsafe_index_put")
    kinds = "IndexPut"

    def rule(self) -> Rule:
        """Dims of x that are not indexed stay, and those of values that stand for them."""
        indices = self.arguments["indices"]
        v = self.slot("values")
        assert v is not None
        values = self.shapes[v] or ()
        dtypes = [None if o is None else o.spec.dtype for o in self.inputs]
        named = index_names(indices, self.shapes, dtypes, 0)
        if named is None:
            return self.masked(v) or self.whole_rule()
        held, places, output = named
        sizes = self.sizes(places, held)
        tail = output[len(output) - len(values) :]
        names: list[Any] = [None] * len(self.inputs)
        names[0] = held
        names[v] = tuple(
            n if n and sizes.get(n) == size else UNCUT for n, size in zip(tail, values, strict=True)
        )
        for slot, dims in places.items():
            names[slot] = dims
        summed = {n for dims in places.values() for n in dims if n}
        # A place whose value is broadcast is written once on each device: only what values hold may be cut.
        whole = summed - set(names[v]) if self.arguments["accumulate"] else summed
        return Rule(tuple(names), (held,), (frozenset((0, v)),), frozenset(whole))

    def sizes(self, places: dict[int, tuple[str, ...]], held: tuple[str, ...]) -> dict[str, int]:
        """Size of every name."""
        found = dict(zip(held, self.shapes[0] or (), strict=True))
        for slot, dims in places.items():
            found.update(zip(dims, self.shapes[slot] or (), strict=True))
        return found

    def masked(self, v: int) -> Rule | None:
        """x[mask] = the same values wherever it is true: mask and x side by side from the first dim on."""
        indices = self.arguments["indices"]
        if self.arguments["accumulate"] or len(indices) != 1:
            return None
        mask, x, values = indices[0].index, self.shapes[0] or (), self.shapes[v] or ()
        held, masked = tuple(f"d{d}" for d in range(len(x))), len(self.shapes[mask] or ())
        rest = held[masked:]
        if len(values) > len(rest) and (len(values) > len(rest) + 1 or values[0] != 1):
            return None
        names: list[Any] = [None] * len(self.inputs)
        names[0], names[mask] = held, held[:masked]
        sizes = dict(zip(held, x, strict=True))
        tail = ("true", *rest)[len(rest) + 1 - len(values) :]
        names[v] = tuple(n if sizes.get(n) == size else UNCUT for n, size in zip(tail, values, strict=True))
        return Rule(tuple(names), (held,), (frozenset((0, v)),))
