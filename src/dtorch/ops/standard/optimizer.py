"""One step of a fused optimizer on one parameter: Adam, AdamW, SGD, Adagrad.

    p = p - lr update(g, states, step)

Shapes      parameter, gradient and states [...]; step []
FLOPs       bound by memory
Placements  on one mesh axis, for every dim d

    parameter   gradient    states      step
    R           R           R           R
    S(d)        S(d)        S(d)        R

The parameter's layout counts: gradient and states are brought to it, a pending gradient is reduced first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dtorch.layout import Layout
from dtorch.op.call import OutputMeta
from dtorch.op.choice import Choice
from dtorch.op.dims import UNCUT, Rule
from dtorch.op.operator import Local, Operator
from dtorch.op.param import Slot
from dtorch.ops.standard.statistics import dim_names


class FusedOptimizer(Operator):
    """The fused optimizers, called with lists of one."""

    torch_ops = ("aten._fused_adam", "aten._fused_adamw", "aten._fused_sgd", "aten._fused_adagrad")
    free_scalars: ClassVar[Mapping[str, Sequence[str]]] = {
        **dict.fromkeys(torch_ops[:2], ("lr", "beta1", "beta2", "weight_decay", "eps")),
        "aten._fused_sgd": ("lr", "momentum", "dampening", "weight_decay"),
        "aten._fused_adagrad": ("lr", "lr_decay", "weight_decay", "eps"),
    }

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """Nothing comes out; the parameter and its states are written."""
        return []

    def rule(self) -> Rule:
        """Everything of the parameter's shape in lists that are written goes with it."""
        names: list[tuple[str, ...]] = [(UNCUT,) * len(shape or ()) for shape in self.shapes]
        for argument in self.schema.written:
            for i in self.listed(argument):
                if self.shapes[i] == self.shapes[self.parameter]:
                    names[i] = dim_names(len(names[i]))
        return Rule(tuple(names), ())

    @property
    def parameter(self) -> int:
        """The input that is the parameter."""
        return self.listed("self")[0]

    def listed(self, argument: str) -> list[int]:
        """The inputs in a list argument."""
        return [item.index for item in self.arguments[argument] if isinstance(item, Slot)]

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """Everything as the parameter; None where that would move what is written."""
        self.output_metas = ()
        layout, rule = self.layouts[self.parameter], self.cached_rule
        assert layout is not None
        assert rule is not None
        target = layout.without_partial()
        targets: list[Layout | None] = []
        for have, names in zip(self.layouts, rule.inputs, strict=True):
            if have is None:  # a number
                targets.append(None)
                continue
            along = bool(names) and UNCUT not in (names or ())
            targets.append(target if along else Layout.replicate(have.mesh_shape, have.shape))
        # A gradient is only written where it is unscaled, and may move otherwise.
        moves = frozenset(self.listed("grads")) if self.arguments.get("grad_scale") is None else frozenset()
        if any(targets[i] is not self.layouts[i] for i in pinned - moves):
            return None
        return Choice(tuple(targets), ())

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, on the shard."""
        assert local.call is not None
        local.call(inputs)
