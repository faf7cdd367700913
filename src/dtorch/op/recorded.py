"""Base of operators that stand for calls inferred before: a recorded graph, a fused region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dtorch.errors import ShapeError
from dtorch.layout import Layout
from dtorch.op.call import OutputMeta
from dtorch.op.choice import Choice
from dtorch.op.operator import Operator
from dtorch.op.signature import PlacementSignature, Row
from dtorch.spec import Spec


class Recorded(Operator, abstract=True):
    """Has the shapes, dtypes and layouts of its calls, and no others."""

    @property
    def given(self) -> tuple[Spec | None, ...]:
        """Specs of the inputs; None for numbers."""
        raise NotImplementedError

    @property
    def made(self) -> tuple[Spec, ...]:
        """Specs of the outputs."""
        raise NotImplementedError

    def require_input_same_dtype(self) -> bool:
        """Each input has the dtype of the calls."""
        return False

    def check_input(self) -> None:
        """Shapes, dtypes and mesh are those of the calls."""
        super().check_input()
        specs = [None if x is None else x.spec for x in self.inputs]
        have = [None if s is None else (s.shape, s.dtype, s.mesh) for s in specs]
        want = [None if s is None else (s.shape, s.dtype, s.mesh) for s in self.given]
        if have != want:
            raise ShapeError(f"inputs {specs} for a {self.type} of calls on {list(self.given)}")

    def infer_output_meta_info(self) -> list[OutputMeta | None]:
        """As the calls give them."""
        return [OutputMeta(s.shape, s.stride, s.dtype) for s in self.made]

    def infer_output_size(self) -> int:
        """As many as the calls give to others."""
        return len(self.made)

    def get_placement_signature(self) -> PlacementSignature:
        """One row for each mesh axis, that of the calls."""
        rows = [
            Row(
                tuple(None if s is None else s.layout.role(axis) for s in self.given),
                tuple(s.layout.role(axis) for s in self.made),
            )
            for axis in range(self.mesh.ndim)
        ]
        return PlacementSignature(len(self.given), len(self.made), rows)

    def place(
        self, pinned: frozenset[int] = frozenset(), held: Mapping[int, Sequence[Layout]] = {}
    ) -> Choice | None:
        """The layouts of the calls."""
        given = tuple(None if s is None else s.layout for s in self.given)
        return Choice(given, tuple(s.layout for s in self.made))

    def skip_placement_inference(self) -> bool:
        """Layouts are those of the calls, on one device too."""
        return False
