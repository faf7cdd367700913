"""The file format: what operators, graphs and plans look like when they are written.

Typed, and tagged by `type`; nothing in it can be code. Meshes, specs and operators stand once each in tables,
and are referred to by their place there. `VERSION` counts up when a record changes in a way that older
readers would misread.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

import msgspec

from dtorch.op.param import Slot

VERSION = 1
Index = Annotated[int, msgspec.Meta(ge=0)]

# Arguments. Whatever JSON and msgpack have stands for itself; the rest are records.
Value = Union[
    None, bool, int, float, str,
    "ListOf", "TupleOf", "DictOf", "Special", "Complex", "Torch", "Device", "Mesh", "Layout", "Param", Slot,
]  # fmt: skip


class ListOf(msgspec.Struct, frozen=True, tag="list"):
    """A list."""

    items: list[Value]


class TupleOf(msgspec.Struct, frozen=True, tag="tuple"):
    """A tuple."""

    items: list[Value]


class DictOf(msgspec.Struct, frozen=True, tag="dict"):
    """A dict with names as keys."""

    items: dict[str, Value]


class Special(msgspec.Struct, frozen=True, tag="float"):
    """A float that JSON has no number for."""

    value: Literal["nan", "inf", "-inf"]


class Complex(msgspec.Struct, frozen=True, tag="complex"):
    """A complex number, its parts as `float.hex` writes them."""

    real: str
    imag: str


class Torch(msgspec.Struct, frozen=True, tag="torch"):
    """A dtype, memory format or (sparse) layout of torch, by its name there."""

    name: str


class Device(msgspec.Struct, frozen=True, tag="device"):
    """A torch device."""

    name: str


class Sheet(msgspec.Struct, frozen=True):
    """A device or a link by its data sheet: the name of its class, and its fields."""

    kind: str
    fields: dict[str, Any]


class Description(msgspec.Struct, frozen=True):
    """The devices of a described mesh, all alike, and what joins them along each axis."""

    device: Sheet
    links: list[Sheet]


class Mesh(msgspec.Struct, frozen=True, tag="mesh"):
    """A device mesh; of shape [] it is one device."""

    device_type: str
    shape: list[int]
    device_ids: list[int]
    dim_names: list[str] | None
    description: Description | None = None


class Layout(msgspec.Struct, frozen=True, tag="layout"):
    """Factors of each dim, as (size, axes that cut it), and pending axes."""

    mesh_shape: list[int]
    dims: list[list[tuple[int, list[int]]]]
    partial: list[int]


class Param(msgspec.Struct, frozen=True, tag="param"):
    """Parameters of an operator that is no torch call, by the name of their type."""

    name: str
    fields: dict[str, Value]


class TorchParam(msgspec.Struct, frozen=True, tag="call"):
    """A torch call; tensors are slots."""

    op: str
    args: list[Value]
    kwargs: dict[str, Value]


class Spec(msgspec.Struct, frozen=True):
    """A distributed tensor without its values."""

    shape: list[int]
    stride: list[int]
    dtype: str
    layout: Layout
    mesh: Index


class Meta(msgspec.Struct, frozen=True):
    """Output of an operator: as torch would report it, and how it is spread; None for a plain value."""

    spec: Index
    offset: int


class Operator(msgspec.Struct, frozen=True):
    """An operator, inferred: its type, parameters, and the specs of its operands.

    Attributes:
        type: the operator type.
        param: its parameters.
        inputs: None for an absent one and for numbers that each call gives anew.
        outputs: None where only a run tells.
    """

    type: str
    param: TorchParam | Param
    inputs: list[Index | None]
    outputs: list[Meta | None] | None


class Constant(msgspec.Struct, frozen=True):
    """A plain tensor that the program held: its values row by row, little end first."""

    shape: list[int]
    dtype: str
    data: bytes


class Free(msgspec.Struct, frozen=True, tag="free"):
    """A number among an operator's inputs (a learning rate); None stands for a random generator."""

    value: Value


class Node(msgspec.Struct, frozen=True):
    """One use of an operator in a graph.

    Attributes:
        operator: which.
        inputs, outputs: specs as the program had them; None for absent operands, and for plain values.
        cause: for an implicit conversion, the operator that needed it.
        in_backward: whether autograd issued it.
        reads: operand numbers; None where the node only shows what another one implies (a conversion that its
            consumer asks for).
        makes: operand numbers of the outputs, None for plain values.
        place: file and line of the program that made the call; None where nobody told.
    """

    operator: Index
    inputs: list[Index | None]
    outputs: list[Index | None]
    cause: Index | None
    in_backward: bool
    reads: list[Index | Free] | None
    makes: list[Index | None]
    place: str | None = None


class OperatorBody(msgspec.Struct, frozen=True, tag="operator"):
    """A file of one operator: the last of the table."""


class GraphBody(msgspec.Struct, frozen=True, tag="graph"):
    """A file of one graph.

    Attributes:
        nodes: in the order of the program.
        operands: number -> spec, of the operands from outside.
        inputs: numbers of those that a run is given, in this order.
        outputs: numbers of those that it gives.
        results: specs of the outputs.
        constants: number -> value, of the plain tensors that took part.
    """

    nodes: list[Node]
    operands: dict[str, Index]
    inputs: list[Index]
    outputs: list[Index]
    results: list[Index]
    constants: dict[str, Constant]


class PlanNode(msgspec.Struct, frozen=True):
    """One operator of a plan, by the numbers of its operands; `kept` are the outputs that become operands."""

    operator: Index
    inputs: list[int]
    outputs: list[int]
    kept: list[Index]


class PlanBody(msgspec.Struct, frozen=True, tag="plan"):
    """A file of one plan.

    Attributes:
        nodes: in order.
        outside: specs of the operands from outside, numbered -1, -2, ...; None for a number.
        results: numbers of the operands that it gives.
    """

    nodes: list[PlanNode]
    outside: list[Index | None]
    results: list[int]


class Document(msgspec.Struct, frozen=True):
    """A whole file."""

    format: Literal["dtorch"]
    version: int
    meshes: list[Mesh]
    specs: list[Spec]
    operators: list[Operator]
    body: OperatorBody | GraphBody | PlanBody
