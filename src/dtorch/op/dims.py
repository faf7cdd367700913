"""The dims notation: what the dims of an operator's tensors mean, in one line.

    x[... m k], w[... k n] -> y[... m n]

A name on both sides may be cut wherever it is held; a name missing on the right is contracted, so cutting it
leaves a pending sum. Marks: `d!` the kernel needs all of d; `d~` it needs only statistics over d and combines
them itself, so outputs without d come out whole; `d'` is d at another scale, cut where d is, into chunks of
its own size, and the kernel fetches what it lacks (windows, halos); `...` are leading dims, right-aligned and
broadcast; `b[n]?` is an input that may be absent. Two things are said beside the line: `linear`, the groups
of inputs in which the result is jointly linear, and `flops`, a sum of products of sizes.

`Rule` is the notation made concrete for given ranks; operators whose dims depend on parameters build one
directly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import NamedTuple

from dtorch.errors import PlacementError, ShapeError
from dtorch.op.signature import Place, PlacementSignature, Role, Row

UNCUT = ""
"""Name of a dim that no axis may cut: broadcast from size 1, or without meaning of its own."""

Names = tuple[str, ...]


class Dims(NamedTuple):
    """A dims line with what is said beside it.

    Attributes:
        line: such as `self[m k], mat2[k n] -> y[m n]`; tensors bear the names of torch's arguments.
        linear: groups of tensors in which the result is jointly linear, each group in one string.
        flops: a sum of products of sizes.
    """

    line: str
    linear: tuple[str, ...] = ()
    flops: str | None = None


@dataclass(frozen=True)
class Rule:
    """The dims of one operator's tensors.

    Attributes:
        inputs: names of each input's dims; None for an absent input.
        outputs: names of each output's dims.
        linear: groups of input numbers in which the outputs are jointly linear.
        whole: names the kernel needs uncut (`d!`).
        stats: names over which the kernel combines statistics itself (`d~`).
        flops: formula, or None where the operator is bound by memory.
        sizes: name -> global size.
    """

    inputs: tuple[Names | None, ...]
    outputs: tuple[Names, ...]
    linear: tuple[frozenset[int], ...] = ()
    whole: frozenset[str] = frozenset()
    stats: frozenset[str] = frozenset()
    flops: str | None = None
    sizes: dict[str, int] = field(default_factory=dict, compare=False)

    def signature(self) -> PlacementSignature:
        """The table of legal placements on one mesh axis."""
        rows = [self._row("R")]
        names = dict.fromkeys(unscaled(n) for dims in self.inputs if dims for n in dims)
        for name in names:
            if name and name not in self.whole and self._cuttable(name):
                rows.append(self._cut(name))
        for group in self.linear:
            if all(self.inputs[i] is not None for i in group):
                rows.append(self._row("P", group))
        return PlacementSignature(len(self.inputs), len(self.outputs), rows, self._scaled())

    def _cuttable(self, name: str) -> bool:
        return all(
            dims is None or list(map(unscaled, dims)).count(name) < 2
            for dims in (*self.inputs, *self.outputs)
        )

    def _scaled(self) -> frozenset[Place]:
        sides = (("in", self.inputs), ("out", self.outputs))
        places = {
            (side, i, d): name
            for side, tensors in sides
            for i, dims in enumerate(tensors)
            for d, name in enumerate(dims or ())
        }
        scaled = {unscaled(name) for name in places.values() if name != unscaled(name)}
        return frozenset(place for place, name in places.items() if unscaled(name) in scaled)

    def _cut(self, name: str) -> Row:
        in_every_group = frozenset.intersection(*self.linear) if self.linear else frozenset()
        contracted = all(_dim_of(name, dims) is None for dims in self.outputs) and name not in self.stats
        inputs: list[Role] = []
        for i, dims in enumerate(self.inputs):
            held = None if dims is None else _dim_of(name, dims)
            if dims is None or held is not None:
                inputs.append(held)
            else:
                pending = i in in_every_group and self._sums(name)
                inputs.append("P" if pending else "R")
        outputs: list[Role] = []
        for dims in self.outputs:
            whole = "R" if name in self.stats and not contracted else "P"
            kept = _dim_of(name, dims)
            outputs.append(whole if kept is None else kept)
        return Row(tuple(inputs), tuple(outputs))

    def _sums(self, name: str) -> bool:
        return name not in self.stats and any(_dim_of(name, dims) is None for dims in self.outputs)

    def _row(self, role: str, group: frozenset[int] = frozenset()) -> Row:
        inputs = tuple(None if d is None else ("P" if i in group else "R") for i, d in enumerate(self.inputs))
        return Row(inputs, (role,) * len(self.outputs))

    def evaluate_flops(self, sizes: dict[str, int] | None = None) -> int | None:
        """Value of the FLOP formula for the global sizes, or for given (local) ones."""
        if self.flops is None:
            return None
        return evaluate(self.flops, self.sizes if sizes is None else sizes)


def unscaled(name: str) -> str:
    """The name that `d'` is another scale of."""
    return name.removesuffix("'")


def _dim_of(name: str, dims: Names) -> int | None:
    """Where a dim, or another scale of it, stands among the names of a tensor."""
    return next((d for d, held in enumerate(dims) if unscaled(held) == name), None)


def evaluate(formula: str, sizes: dict[str, int]) -> int:
    """Evaluate a sum of products such as `2 ... m n k`; `...` is the product of the batch dims.

    Raises:
        ShapeError: the formula names a dim that the operator does not have.
    """
    total = 0
    for product in formula.split("+"):
        value = 1
        for factor in product.split():
            if factor.isdigit():
                value *= int(factor)
            elif factor == "...":
                value *= prod(size for name, size in sizes.items() if name.startswith("."))
            elif factor in sizes:
                value *= sizes[factor]
            else:
                raise ShapeError(f"the formula `{formula}` names dim {factor}, known are {sorted(sizes)}")
        total += value
    return total


@dataclass(frozen=True)
class Tensor:
    """One tensor of a parsed line: its name, its tokens, whether it may be absent."""

    name: str
    dims: Names
    optional: bool


@dataclass(frozen=True)
class Line:
    """A parsed dims line, not yet tied to ranks."""

    text: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    whole: frozenset[str]
    stats: frozenset[str]


_TENSOR = re.compile(r"\s*(\w+)\[([^\]]*)\](\?)?\s*(,|$)")


@cache
def parse(text: str) -> Line:
    """Parse a dims line.

    Raises:
        PlacementError: the line is not of the form `x[a b], w[b c] -> y[a c]`.
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise PlacementError(f"a dims line needs an arrow, such as `x[m k] -> y[m]`: `{text}`")
    marks: dict[str, set[str]] = {"!": set(), "~": set()}
    inputs, outputs = _tensors(left, marks, text), _tensors(right, marks, text)
    return Line(text, inputs, outputs, frozenset(marks["!"]), frozenset(marks["~"]))


def _tensors(side: str, marks: dict[str, set[str]], text: str) -> tuple[Tensor, ...]:
    found, position = [], 0
    side = side.strip()
    while position < len(side):
        match = _TENSOR.match(side, position)
        if match is None:
            raise PlacementError(f"cannot read `{side[position:]}` in the dims line `{text}`")
        tokens = []
        for token in match[2].split():
            if token[-1] in marks:
                marks[token[-1]].add(token[:-1])
                token = token[:-1]
            tokens.append(token)
        found.append(Tensor(match[1], tuple(tokens), match[3] is not None))
        position = match.end()
    return tuple(found)


def concretize(
    text: str,
    shapes: Sequence[Sequence[int] | None],
    linear: Sequence[str] = (),
    flops: str | None = None,
) -> Rule:
    """Tie a dims line to the shapes of an operator's inputs.

    Args:
        text: the dims line.
        shapes: shape of each input; None for an absent one.
        linear: groups of tensor names, each group in one string: `("x b", "w b")`.
        flops: FLOP formula over the line's names.

    Raises:
        ShapeError: a named dim has two sizes, or a tensor has another rank than the line says.
        PlacementError: a required input is absent.
    """
    line = parse(text)
    shapes = [*shapes, *[None] * (len(line.inputs) - len(shapes))]
    sizes: dict[str, int] = {}
    for tensor, shape in zip(line.inputs, shapes, strict=True):
        if shape is not None:
            _read_sizes(tensor, shape, sizes, text)
        elif not tensor.optional:
            raise PlacementError(f"input {tensor.name} of `{text}` is absent")
    batch = tuple(sorted((n for n in sizes if n.startswith(".")), key=lambda n: -int(n[1:])))
    inputs = tuple(
        None if shape is None else _names(tensor, shape, sizes)
        for tensor, shape in zip(line.inputs, shapes, strict=True)
    )
    outputs = tuple(
        tuple(n for token in tensor.dims for n in (batch if token == "..." else (token,)))
        for tensor in line.outputs
    )
    number = {tensor.name: i for i, tensor in enumerate(line.inputs)}
    groups = tuple(
        frozenset(number[name] for name in group.split() if shapes[number[name]] is not None)
        for group in linear
    )
    groups = tuple(group for group in groups if group)
    return Rule(inputs, outputs, groups, line.whole, line.stats, flops, sizes)


def _read_sizes(tensor: Tensor, shape: Sequence[int], sizes: dict[str, int], text: str) -> None:
    n_batch = len(shape) - sum(token != "..." for token in tensor.dims)
    if n_batch < 0 or (n_batch and "..." not in tensor.dims):
        wanted = " ".join(tensor.dims)
        raise ShapeError(f"{tensor.name} has {len(shape)} dims, `{text}` says [{wanted}]")
    position = 0
    for token in tensor.dims:
        if token == "...":
            for i in range(n_batch):
                name, size = f".{n_batch - i}", shape[position + i]
                if sizes.setdefault(name, size) == 1:
                    sizes[name] = size
                if size not in (1, sizes[name]):
                    raise ShapeError(
                        f"leading dim -{name[1:]} of {tensor.name} is {size}, elsewhere {sizes[name]}"
                    )
            position += n_batch
            continue
        size = shape[position]
        position += 1
        if sizes.setdefault(token, size) != size:
            raise ShapeError(f"dim {token} of {tensor.name} is {size}, elsewhere it is {sizes[token]}")


def _names(tensor: Tensor, shape: Sequence[int], sizes: dict[str, int]) -> Names:
    n_batch = len(shape) - sum(token != "..." for token in tensor.dims)
    names: list[str] = []
    for token in tensor.dims:
        if token == "...":
            for i in range(n_batch):
                name = f".{n_batch - i}"
                names.append(name if shape[len(names)] == sizes[name] else UNCUT)
        else:
            names.append(token)
    return tuple(names)


def broadcast_names(shapes: Sequence[Sequence[int] | None]) -> tuple[tuple[Names | None, ...], Names]:
    """Names of right-aligned, broadcast tensors: those of each input, and of the output."""
    rule = concretize(
        ", ".join(f"t{i}[...]?" for i in range(len(shapes))) + " -> y[...]",
        shapes,
    )
    return rule.inputs, rule.outputs[0]


def local_sizes(rule: Rule, shapes: Sequence[Sequence[int] | None]) -> dict[str, int]:
    """Sizes of a rule's names on one device, read from its local input shapes."""
    sizes: dict[str, int] = {}
    for names, shape in zip(rule.inputs, shapes, strict=True):
        if names is None or shape is None:
            continue
        for name, size in zip(names, shape, strict=True):
            if name:
                sizes[name] = size
    return {name: sizes.get(name, size) for name, size in rule.sizes.items()}
