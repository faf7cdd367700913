"""reshape and flatten: a view where the global strides allow one, else a copy.

Shapes      x [...] -> y [...] with as many elements; flatten: dims from start to end are one
FLOPs       none; a view touches nothing, a copy x and y
Placements  as view (`view.py`)

Under autograd torch decides by the same strides, and calls view, or clone and _unsafe_view, itself. Below
inference_mode the two arrive whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch

from dtorch.op.call import MetaFailed, run_on_meta
from dtorch.op.operator import Local
from dtorch.op.param import Slot
from dtorch.op.priced import Priced
from dtorch.ops.standard.view import View


class Reshape(View):
    """reshape(shape)."""

    torch_ops: ClassVar[Sequence[str]] = ("aten.reshape",)

    @cached_property
    def is_view(self) -> bool:
        """Whether the global strides allow a view."""
        x = self.inputs[0]
        assert x is not None
        shape = self.infer_output_meta_info()[0].shape  # type: ignore[union-attr]
        try:
            run_on_meta(torch.ops.aten.view.default, (Slot(0), list(shape)), {}, [x.spec])
        except MetaFailed:
            return False
        return True

    def view_of(self) -> int | None:
        """x, or nothing."""
        return 0 if self.is_view else None

    def localize(self, coord: tuple[int, ...]) -> Local:
        """Local sizes; a copy also where the local part would do without."""
        output = self.outputs[0]
        assert output is not None
        size = list(output.layout.local_shape(coord))
        func = torch.ops.aten.view if self.is_view else torch.ops.aten._reshape_copy
        return Local(coord, func.default, (Slot(0), size), {})

    def at(self, coord: tuple[int, ...]) -> Priced:
        """A device copies where the whole is copied."""
        found = super().at(coord)
        vars(found)["is_view"] = self.is_view
        return found

    def traffic_bytes(self) -> int:
        """None for a view."""
        return 0 if self.is_view else self.operand_bytes()


class Flatten(Reshape):
    """flatten(start_dim, end_dim)."""

    torch_ops: ClassVar[Sequence[str]] = ("aten.flatten.using_ints",)
