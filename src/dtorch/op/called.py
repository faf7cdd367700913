"""What an operator is, before anything is inferred: parameters, operands, and the torch call behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import torch

from dtorch.errors import PlacementError
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op import document
from dtorch.op.operand import Operand
from dtorch.op.param import OpParam, Slot, TorchCall, holds_slot
from dtorch.op.schema import Schema, base_name, has_tag, schema_of

if TYPE_CHECKING:
    from dtorch.op.operator import Operator

_SHOWN = {
    "size", "shape", "dtype", "device", "layout", "pin_memory", "memory_format", "requires_grad", "generator",
}  # fmt: skip
"""Arguments that the outputs show, or that say nothing about the operator."""

_PLAIN = (bool, int, float, str, list, tuple, torch.dtype)


class Called:
    """Parameters and operands: what no family overrides, but for `view_of`, `moved_by` and `draws`.

    Attributes:
        type: the operator type's name.
        kinds: names in tables and texts that are not the torch name in camel case: one for all operators of
            the class, or by torch operator.
        inner: the recorded graph that the operator stands for, if it does.
        param: the parameters; a `TorchCall` where torch has the operator.
        inputs: operands, None for absent optional ones and for numbers that each call gives anew.
    """

    type: ClassVar[str] = "General"
    inner: Any = None
    kinds: ClassVar[Mapping[str, str] | str] = {}

    def __init__(self, param: OpParam, inputs: Sequence[Operand | None]) -> None:
        self.param = param
        self.inputs = tuple(inputs)

    @property
    def call(self) -> TorchCall:
        """The torch call behind the operator.

        Raises:
            TypeError: the operator is not a torch call.
        """
        if not isinstance(self.param, TorchCall):
            raise TypeError(f"{self.type} is no torch call")
        return self.param

    @cached_property
    def schema(self) -> Schema:
        """Aliasing facts of the torch operator."""
        return schema_of(self.call.func)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments by name, defaults filled in, tensors as slots."""
        return self.schema.bind(self.call.args, self.call.kwargs)

    @cached_property
    def name(self) -> str:
        """Base name of the torch operator, `aten.add` for `aten.add_.Tensor`; the type if there is none."""
        return base_name(self.call.func) if isinstance(self.param, TorchCall) else self.type

    @property
    def shapes(self) -> list[tuple[int, ...] | None]:
        """Global shape of each input."""
        return [None if x is None else x.spec.shape for x in self.inputs]

    @property
    def layouts(self) -> list[Layout | None]:
        """Layout of each input."""
        return [None if x is None else x.spec.layout for x in self.inputs]

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the operands.

        Raises:
            PlacementError: the operator has no input.
        """
        for operand in self.inputs:
            if operand is not None:
                return operand.spec.mesh
        raise PlacementError(f"{self.type} has no input, so its mesh must be given")

    def kind_name(self) -> str:
        """How the operator is called in tables: by its field's name, ReLU, else torch's in camel case."""
        if not isinstance(self.param, TorchCall):
            return self.type
        if isinstance(self.kinds, str):
            return self.kinds
        if self.name in self.kinds:
            return self.kinds[self.name]
        return "".join(word[:1].upper() + word[1:] for word in self.name.split(".")[1].split("_"))

    def inputs_text(self) -> str:
        """The inputs as `describe()` shows them: `[4, 8] x [8, 6]`."""
        return " x ".join(str(list(shape)) for shape in self.shapes if shape is not None)

    def parameters(self) -> dict[str, Any]:
        """Arguments that are no tensors and differ from their defaults, by name, less those outputs show."""
        if isinstance(self.param, TorchCall):
            found = {name: self.arguments.get(name) for name in self.schema.names if name not in _SHOWN}
            # Packed weights are no parameters to show, and refuse to be compared.
            found = {name: v for name, v in found.items() if not isinstance(v, torch.ScriptObject)}
            defaults = {**dict.fromkeys(found), **self.schema.defaults}
            return {name: v for name, v in found.items() if v != defaults[name] and not holds_slot(v)}
        fields = msgspec.structs.fields(self.param)
        found = {f.name: v for f in fields if (v := getattr(self.param, f.name)) != f.default}
        return {name: v for name, v in found.items() if isinstance(v, _PLAIN)}

    def view_of(self) -> int | None:
        """The input that the outputs view, or None; an output that is the input (in-place) is no view."""
        name = self.schema.view_of if isinstance(self.param, TorchCall) else None
        return None if name is None else self.arguments[name].index

    def makes_its_outputs(self) -> bool:
        """Whether a torch call writes nothing it is given, and its outputs share no storage with it."""
        return isinstance(self.param, TorchCall) and not self.schema.written and self.view_of() is None

    def draws(self) -> bool:
        """Whether the operator draws random numbers; torch's stream is drawn from when the call is made."""
        if not isinstance(self.param, TorchCall) or not has_tag(
            self.param.func, torch.Tag.nondeterministic_seeded
        ):
            return False
        return self.arguments.get("dropout_p") != 0.0  # attention draws for its dropout alone

    def draws_alone(self) -> bool:
        """Whether what the operator draws depends on no value: it may be drawn before the operator runs."""
        return False

    def to_bytes(self) -> bytes:
        """The operator, inferred, as a file; `dtorch.operators.Operator.from_bytes` reads it.

        Raises:
            SerializationError: an argument is no plain value.
        """
        from dtorch.op import serialize

        return document.to_bytes(serialize.operator_to_document(self))  # type: ignore[arg-type]

    def to_json(self) -> str:
        """The same as readable JSON.

        Raises:
            SerializationError: an argument is no plain value.
        """
        from dtorch.op import serialize

        return document.to_json(serialize.operator_to_document(self))  # type: ignore[arg-type]

    @staticmethod
    def from_bytes(data: bytes) -> Operator:
        """The operator of a file, inferred as it was; nothing is run.

        Raises:
            SerializationError: the file is damaged, newer, or names operators that are not registered here.
        """
        from dtorch.op import serialize

        return serialize.operator_from_document(document.from_bytes(data))

    @staticmethod
    def from_json(text: str | bytes) -> Operator:
        """The operator of a JSON file.

        Raises:
            SerializationError: as `from_bytes`.
        """
        from dtorch.op import serialize

        return serialize.operator_from_document(document.from_json(text))

    def slot(self, name: str) -> int | None:
        """The input that a named argument holds, None where it is absent or a plain value."""
        value = self.arguments.get(name) if isinstance(self.param, TorchCall) else None
        return value.index if isinstance(value, Slot) else None

    def a_value(self, name: str) -> Any:
        """An argument that is a plain value; where each call gives it anew, one such value."""
        value = self.arguments[name]
        return value.sample if isinstance(value, Slot) else value

    def moved_by(self) -> tuple[str, int] | None:
        """The argument, given anew by each call, by which outputs start later in what they view.

        And its step in elements; None where they always start at the same place.
        """
        return None

    def returned_inputs(self) -> dict[int, int]:
        """Output number -> the input that it is, for in-place forms."""
        if not isinstance(self.param, TorchCall) or not self.schema.written:
            return {}
        slots = {n: self.slot(name) for n, name in enumerate(self.schema.returned) if name is not None}
        return {n: i for n, i in slots.items() if i is not None}
