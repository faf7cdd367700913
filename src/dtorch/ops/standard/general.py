"""Every torch operator without a rule of its own: inputs whole, run once, outputs as they come.

Shapes      those of the real run, so that data-dependent operators (nonzero, unique, item) work too
FLOPs       contractions by `general_counts.py`; what memory bounds or is free by `general_free.py`; by its
            class where that has a rule which could not serve this call; unknown otherwise
Placements  on one mesh axis

    inputs  outputs
    R       R
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from dtorch.errors import DtorchError
from dtorch.layout import Layout
from dtorch.op import registry
from dtorch.op.call import MetaFailed
from dtorch.op.cost import OperatorCost
from dtorch.op.modes import ASKS_GRAD_MODE
from dtorch.op.operand import Operand
from dtorch.op.operator import Local, Operator
from dtorch.op.param import Slot, TorchCall
from dtorch.op.priced import metas_of, touched
from dtorch.ops.standard.general_counts import COUNTS
from dtorch.ops.standard.general_free import FREE, MEMORY_BOUND, PICKED


class General(Operator):
    """The general path; the conversions it asks for are visible nodes."""

    left_out = (("", "", "no rule is written: the operator runs whole, exactly and visibly"),)

    def is_torch_call(self, local: Local) -> bool:
        """Whether a plan may make torch's call itself."""
        return self.name not in ASKS_GRAD_MODE and super().is_torch_call(local)

    def compute(self, inputs: Sequence[Any], outputs: list[Any], local: Local) -> None:
        """torch's own, under the grad mode of the call where the kernel asks for it."""
        named = ASKS_GRAD_MODE.get(self.name)
        with torch.set_grad_enabled(torch.is_grad_enabled() if named is None else self.arguments[named]):
            super().compute(inputs, outputs, local)

    def get_operator_cost(self) -> OperatorCost:
        """By the count, by the class that has a rule, or by bytes; unknown where nobody has said."""
        try:
            if self.own is not None:
                return self.own.get_operator_cost()
            flops = self.flops()
        except (MetaFailed, DtorchError):  # sizes that only a run tells, or a call that a rule refuses
            return OperatorCost.unknown()
        if flops is not None:
            return OperatorCost.compute(flops)
        if self.name in FREE or self.schema.view_of is not None:
            return OperatorCost()
        if self.name in MEMORY_BOUND or self.name.startswith("aten._foreach_"):
            return OperatorCost.from_operands(self.inputs, self.results)
        return OperatorCost.unknown()

    def flops(self) -> int | None:
        """The count of the operator, or its class's."""
        if self.own is not None:
            return self.own.flops()
        count = COUNTS.get(self.name)
        flops = None if count is None else count(self)
        return None if flops is None else self.real_operations() * flops

    def traffic_bytes(self) -> int:
        """Nothing for what is free and for views; else every operand, of the first what is picked of it."""
        if self.own is not None:
            return self.own.traffic_bytes()
        if not isinstance(self.param, TorchCall) or self.name in FREE or self.schema.view_of is not None:
            return 0
        read, first = PICKED.get(self.name), self.inputs[0] if self.inputs else None
        if read is None or first is None:
            return self.operand_bytes()
        return self.operand_bytes() - touched(first) + read(self) * first.spec.itemsize

    @cached_property
    def own(self) -> Operator | None:
        """For prices: the operator of the class whose rule could not serve this call."""
        if not isinstance(self.param, TorchCall):
            return None
        cls = registry.class_of(self.param.func)
        if cls is General:
            return None
        operator = cls(self.param, self.inputs)
        operator.outputs, operator.output_metas = self.results, metas_of(self.results)
        return operator

    @cached_property
    def results(self) -> tuple[Operand | None, ...]:
        """The outputs, as they came, or as torch infers them; none where only a run tells."""
        if self.outputs or not isinstance(self.param, TorchCall):
            return self.outputs
        try:
            found = self.infer_output_meta_info()
        except MetaFailed:
            return ()
        shape = self.mesh.shape
        return tuple(
            None if m is None else Operand(self._spec(m, Layout.replicate(shape, m.shape))) for m in found
        )

    def result(self) -> tuple[int, ...]:
        """Shape of the first output.

        Raises:
            MetaFailed: only a run would tell.
        """
        first = self.results[0] if self.results else None
        if first is None:
            raise MetaFailed(RuntimeError(f"{self.name} tells its output's size only when it runs"))
        return first.shape

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Shape of the tensor that an argument holds."""
        return self.shapes[self.arguments[name].index] or ()

    def shapes_of(self, name: str) -> list[tuple[int, ...]]:
        """Shapes of the tensors in a list."""
        return [self.shapes[item.index] or () for item in self.arguments[name] if isinstance(item, Slot)]
