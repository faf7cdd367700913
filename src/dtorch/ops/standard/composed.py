"""What operators share that have a tensor dim composed of two, `(g r)`: heads in groups, channels in groups.

Only the outer of the two can be cut by chunks, and only where they end at its boundaries. So rules are stated
and matched on the tensors with such dims split, as a `view` would split them; an axis in the way of that view
becomes Replicate. Grouped attention has more query heads than key heads, yet query[b (g r) s e] and
key[b g t e] are cut alike: both at g.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property

from dtorch import redistribute
from dtorch.layout import Layout
from dtorch.layout.factors import Factors
from dtorch.op.choice import Choice, choose
from dtorch.op.dims import Names, Rule
from dtorch.op.signature import PlacementSignature, Role, Row
from dtorch.ops.standard.pending import PendingRows

Nested = tuple[Names, ...]
"""For each dim of a tensor the names it is composed of, outermost first: (("b",), ("g", "r"), ("s",))."""


class Composed(PendingRows, abstract=True):
    """Base of operators with composed dims."""

    @abstractmethod
    def nested(self) -> tuple[Sequence[Nested | None], Sequence[Nested]]:
        """What the dims of inputs and outputs are composed of."""

    def named_inputs(self, known: Mapping[str, Nested]) -> list[Nested | None]:
        """The same for the inputs in their order, from what it is for arguments by name."""
        found: list[Nested | None] = [None] * len(self.inputs)
        for name, nested in known.items():
            if (slot := self.slot(name)) is not None:
                found[slot] = nested
        return found

    def nested_gradients(self, *wanted: Nested) -> list[Nested]:
        """The same for the outputs of a backward; those not asked for have no dims."""
        return [dims if meta is not None else () for dims, meta in zip(wanted, self.metas, strict=True)]

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Size of every name."""

    def whole(self) -> frozenset[str]:
        """Names that no axis may cut."""
        return frozenset()

    def statistic(self) -> frozenset[str]:
        """Names over which the kernel combines statistics."""
        return frozenset()

    def linear(self) -> tuple[frozenset[int], ...]:
        """Groups of inputs in which the outputs are jointly linear."""
        return ()

    def rule(self) -> Rule:
        """The rule of the split tensors."""
        inputs, outputs = self.nested()
        return Rule(
            tuple(None if x is None else _flat(x) for x in inputs),
            tuple(map(_flat, outputs)),
            self.linear(),
            self.whole(),
            self.statistic(),
            self.formula(),
            self.sizes(),
        )

    def formula(self) -> str | None:
        """FLOPs over the names, None where memory bounds the operator."""
        return None

    @cached_property
    def split_signature(self) -> PlacementSignature:
        """Legal rows of the split tensors."""
        rule = self.cached_rule
        assert rule is not None
        found = rule.signature()
        return found.with_rows([*found.rows, *self.pending_rows()])

    def get_placement_signature(self) -> PlacementSignature:
        """Legal rows as a user sees them, of the tensors as they are."""
        inputs, outputs = self.nested()
        rows = [
            Row(
                tuple(
                    None if x is None else _outer(role, x) for role, x in zip(row.inputs, inputs, strict=True)
                ),
                tuple(_outer(role, x) for role, x in zip(row.outputs, outputs, strict=True)),
            )
            for row in self.split_signature.rows
        ]
        return PlacementSignature(len(inputs), len(outputs), rows)

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """Choose on the split tensors, then compose their dims again."""
        outputs = [() if m is None else m.shape for m in self.metas]
        sources, nested = self.nested()
        split = [self._split(x, shape) for x, shape in zip(nested, outputs, strict=True)]

        def cost(i: int, target: Layout) -> int:
            operand, names = self.inputs[i], sources[i]
            assert operand is not None
            assert names is not None
            composed, size = _composed(target, names), operand.spec.itemsize
            return min(redistribute.cost(have, composed, size) for have in (operand.layout, *held.get(i, ())))

        def owed(number: int, layout: Layout) -> int:
            return self.owed(number, _composed(layout, nested[number]))

        choice = choose(self.split_signature, self.split_layouts, split, cost, owed, pinned)
        if choice is None:
            return None
        return Choice(
            tuple(
                None if lay is None or names is None else _composed(lay, names)
                for lay, names in zip(choice.inputs, sources, strict=True)
            ),
            tuple(_composed(lay, names) for lay, names in zip(choice.outputs, nested, strict=True)),
            choice.price,
        )

    @cached_property
    def split_layouts(self) -> list[Layout | None]:
        """Layouts of the split inputs, without the axes that do not cut at boundaries."""
        found: list[Layout | None] = []
        for layout, names in zip(self.layouts, self.nested()[0], strict=True):
            if layout is None or names is None:
                found.append(None)
                continue
            dims: list[Factors] = []
            for factors, size, one in zip(layout.dims, layout.shape, names, strict=True):
                # Dim by dim: a view of all would carry cuts from one dim of size 1 to another.
                alone, sizes = Layout.of(layout.mesh_shape, (factors,)), self._split((one,), (size,))
                split = alone.drop(alone.blocking_axes(sizes)).view(sizes)
                assert split is not None, "what is in the way of splitting was dropped"
                dims += split.dims
            found.append(Layout.of(layout.mesh_shape, dims, layout.partial))
        return found

    def seen_layouts(self) -> Sequence[Layout | None]:
        """The layouts that `rule()` speaks of."""
        return self.split_layouts

    def local_sizes(self, coord: tuple[int, ...]) -> dict[str, int]:
        """Size of every name on one device."""
        sizes = dict(self.sizes())
        for layout, names in zip(self.split_layouts, self.nested()[0], strict=True):
            if layout is not None and names is not None:
                shape = layout.local_shape(coord)
                sizes.update({n: size for n, size in zip(_flat(names), shape, strict=True) if n})
        return sizes

    def _split(self, nested: Nested, shape: Sequence[int]) -> tuple[int, ...]:
        sizes = self.sizes()
        return tuple(
            size
            for names, n in zip(nested, shape, strict=True)
            for size in ([n] if len(names) == 1 else [sizes[name] for name in names])
        )


def _flat(nested: Nested) -> Names:
    return tuple(name for names in nested for name in names)


def _outer(role: Role, nested: Nested) -> Role:
    """The dim that holds split dim `role`."""
    if not isinstance(role, int):
        return role
    return [dim for dim, names in enumerate(nested) for _ in names][role]


def _composed(layout: Layout, nested: Nested) -> Layout:
    """The layout of a tensor whose dims are composed of those of `layout`."""
    split = iter(layout.dims)
    dims = [tuple(factor for _ in names for factor in next(split)) for names in nested]
    return Layout.of(layout.mesh_shape, dims, layout.partial)
