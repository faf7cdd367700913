"""cat and stack: tensors side by side along one dim.

    y[i1 + ... + ik] = x1[i1], x2[i2], ...

Shapes      cat: x_i [... n_i ...] -> y [... sum n_i ...]; stack: k times x [...] -> y [... k ...]
            cat skips 1-D tensors without elements, as torch does
FLOPs       bound by memory
Placements  on one mesh axis, d the cat dim, e any other

    every x                    y
    R                          R
    S(e)                       S(e)
    P                          P       also P and R mixed: a whole value counts once
    S(d), all cut alike        S(d)    one block for each x, each cut as x was; never communicates
    S(d), all others empty     S(d)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dtorch.layout import Layout
from dtorch.op.choice import Choice
from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Operator


class Concat(Operator):
    """cat(tensors, dim) and stack(tensors, dim)."""

    torch_ops = ("aten.cat", "aten.stack")

    def rule(self) -> Rule:
        """Every dim but the one put together stays as it is."""
        stacked = self.name == "aten.stack"
        output = self.output_metas[0]
        assert output is not None
        dim = self.arguments["dim"] % max(len(output.shape), 1)
        names = tuple(UNCUT if d == dim else f"d{d}" for d in range(len(output.shape)))
        held = (*names[:dim], *names[dim + 1 :]) if stacked else names
        inputs = [held if len(s or ()) == len(held) else (UNCUT,) * len(s or ()) for s in self.shapes]
        filled = [i for i, s in enumerate(self.shapes) if inputs[i] and s and len(s) == len(names) and s[dim]]
        if not stacked and len(filled) == 1:
            # Beside it there are only empty tensors (a new cache, say): the output is that one input.
            names = inputs[filled[0]] = tuple(f"d{d}" for d in range(len(names)))
        return Rule(tuple(inputs), (names,), (frozenset(range(len(inputs))),))

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """Tensors cut alike along the dim stay where they are; else by the rule."""
        layout = self.layouts[0]
        if self.name == "aten.cat" and layout is not None and all(other is layout for other in self.layouts):
            dim = self.arguments["dim"] % max(layout.ndim, 1)
            if layout.ndim and layout.axes_of(dim):
                blocks = layout.with_dim(dim, ((len(self.inputs), ()), *layout.dims[dim]))
                return Choice(tuple(self.layouts), (blocks,))
        return super().place(pinned, held)

    def owed(self, number: int, layout: Layout) -> int:
        """Nothing where no input is cut on a pending axis: one reduction of y costs what those of x would."""
        cut = {axis for x in self.layouts if x is not None for axis in x.cut_axes}
        return super().owed(number, layout) if cut & set(layout.partial) else 0
