"""Operators to records and back. Reading infers nothing and runs nothing: all is in the file.

A name in a file only looks up what this process has registered: a torch operator, an operator type, the
parameters of one. What is not there is an error.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from dtorch import mesh_description
from dtorch.errors import SerializationError
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.mesh_description import Description
from dtorch.op import document, records, registry
from dtorch.op.call import OutputMeta
from dtorch.op.choice import Choice
from dtorch.op.factory import class_for
from dtorch.op.operand import Operand
from dtorch.op.param import OpParam, Slot, TorchCall, overload
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.op.operator import Operator

_NAMED = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout))
}
_OVERLOAD = re.compile(r"[A-Za-z]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*")


class Writer:
    """Collects the tables of a file."""

    def __init__(self) -> None:
        self.meshes: dict[DeviceMesh, int] = {}
        self.specs: dict[Spec, int] = {}
        self.operators: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other object takes the id of one
        self._meshes: list[records.Mesh] = []
        self._specs: list[records.Spec] = []
        self._operators: list[records.Operator] = []

    def document(self, body: Any) -> records.Document:
        """The file."""
        return records.Document("dtorch", records.VERSION, self._meshes, self._specs, self._operators, body)

    def mesh(self, mesh: DeviceMesh) -> int:
        """The place of a mesh in its table."""
        if mesh not in self.meshes:
            self.meshes[mesh] = len(self._meshes)
            self._meshes.append(_mesh_record(mesh))
        return self.meshes[mesh]

    def spec(self, spec: Spec) -> int:
        """The place of a spec in its table."""
        if spec not in self.specs:
            self.specs[spec] = len(self._specs)
            shape, stride, dtype = list(spec.shape), list(spec.stride), str(spec.dtype)
            record = records.Spec(shape, stride, dtype, _layout_record(spec.layout), self.mesh(spec.mesh))
            self._specs.append(record)
        return self.specs[spec]

    def maybe(self, spec: Spec | None) -> int | None:
        """The place of a spec; None stays None."""
        return None if spec is None else self.spec(spec)

    def operator(self, operator: Operator) -> int:
        """The place of an operator in its table; the same object stands there once."""
        if id(operator) not in self.operators:
            record = self._operator_record(operator)
            self.operators[id(operator)] = len(self._operators)
            self._operators.append(record)
            self._kept.append(operator)
        return self.operators[id(operator)]

    def _output(self, meta: OutputMeta | None, spec: Spec) -> records.Meta:
        """What is known of an output; without metadata a run has told its spec."""
        if meta is None:
            return records.Meta(self.spec(spec), 0)
        return records.Meta(
            self.spec(Spec(meta.shape, meta.stride, meta.dtype, spec.layout, spec.mesh)), meta.offset
        )

    def _operator_record(self, operator: Operator) -> records.Operator:
        inputs = [None if x is None else self.spec(x.spec) for x in operator.inputs]
        outputs: list[records.Meta | None] | None = None
        if operator.outputs:
            metas = operator.output_metas or (None,) * len(operator.outputs)
            outputs = [
                None if output is None else self._output(meta, output.spec)
                for meta, output in zip(metas, operator.outputs, strict=True)
            ]
        return records.Operator(operator.type, param_record(operator.param), inputs, outputs)


def param_record(param: OpParam) -> records.TorchParam | records.Param:
    """Parameters as a record.

    Raises:
        SerializationError: they hold something that is no plain value.
    """
    if isinstance(param, TorchCall):
        return records.TorchParam(param.op, [value_record(v) for v in param.args], _records(param.kwargs))
    fields = {name: getattr(param, name) for name in type(param).__struct_fields__}
    return records.Param(type(param).__name__, _records(fields))


def _records(values: dict[str, Any]) -> dict[str, records.Value]:
    return {name: value_record(value) for name, value in values.items()}


def value_record(value: Any) -> Any:
    """An argument as a record.

    Raises:
        SerializationError: it is no plain value (a tensor, a generator, a user's object).
    """
    kind = type(value)
    if value is None or kind in (bool, int, str, Slot):
        return value
    if kind is float:
        return value if math.isfinite(value) else records.Special(repr(value))  # type: ignore[arg-type]
    if kind is list:
        return records.ListOf([value_record(item) for item in value])
    if kind is tuple or kind is torch.Size:
        return records.TupleOf([value_record(item) for item in value])
    if kind is dict:
        return records.DictOf(_records(value))
    if kind is complex:
        return records.Complex(value.real.hex(), value.imag.hex())
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return records.Torch(str(value))
    if kind is torch.device:
        return records.Device(str(value))
    if kind is DeviceMesh:
        return _mesh_record(value)
    if kind is Layout:
        return _layout_record(value)
    if isinstance(value, OpParam) and kind is not TorchCall:
        return param_record(value)
    raise SerializationError(f"an argument of type {kind.__name__} cannot be written: {value!r}")


def _mesh_record(mesh: DeviceMesh) -> records.Mesh:
    names = None if mesh.dim_names is None else list(mesh.dim_names)
    described, there = None, mesh.description
    if there is not None:
        described = records.Description(_sheet(there.device), [_sheet(link) for link in there.links])
    return records.Mesh(mesh.device_type, list(mesh.shape), list(mesh.device_ids), names, described)


def _sheet(value: Any) -> records.Sheet:
    return records.Sheet(type(value).__name__, msgspec.to_builtins(value))


def _layout_record(layout: Layout) -> records.Layout:
    dims = [[(n, list(axes)) for n, axes in factors] for factors in layout.dims]
    return records.Layout(list(layout.mesh_shape), dims, list(layout.partial))


class Reader:
    """Makes the tables of a file into specs and operators; use it inside `document.reading()`."""

    def __init__(self, file: records.Document) -> None:
        meshes = [_mesh(record) for record in file.meshes]
        self.specs = [
            Spec(r.shape, r.stride, torch_value(r.dtype, torch.dtype), _layout(r.layout), meshes[r.mesh])
            for r in file.specs
        ]
        self.operators = [self._operator(record) for record in file.operators]

    def maybe(self, place: int | None) -> Spec | None:
        """The spec at a place; None stays None."""
        return None if place is None else self.specs[place]

    def _operator(self, record: records.Operator) -> Operator:
        param = param_of(record.param)
        general = registry.class_by_type("General")
        cls = general if record.type == general.type else class_for(param)
        if cls.type != record.type:
            raise SerializationError(f"{param} is of type {cls.type} here, of {record.type} in the file")
        _check_slots(param, len(record.inputs))
        operator = cls(param, [None if i is None else Operand(self.specs[i]) for i in record.inputs])
        if record.outputs is not None:
            specs = [None if m is None else self.specs[m.spec] for m in record.outputs]
            operator.output_metas = tuple(
                None if m is None or s is None else OutputMeta(s.shape, s.stride, s.dtype, m.offset)
                for m, s in zip(record.outputs, specs, strict=True)
            )
            operator.outputs = tuple(None if s is None else Operand(s) for s in specs)
            if all(s is not None for s in specs):
                operator.choice = Choice(
                    tuple(operator.layouts), tuple(s.layout for s in specs if s is not None)
                )
        operator.infer_operator_assign_info()
        return operator


def _check_slots(value: Any, count: int) -> None:
    if isinstance(value, TorchCall):
        value = [*value.args, *value.kwargs.values()]
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_slots(item, count)
    elif isinstance(value, Slot) and not 0 <= value.index < count:
        raise SerializationError(f"slot {value.index} of an operator with {count} inputs")


def param_of(record: records.TorchParam | records.Param) -> OpParam:
    """The parameters of a record.

    Raises:
        SerializationError: this process has no such torch operator, or no such type.
    """
    if isinstance(record, records.TorchParam):
        _check_overload(record.op)
        return TorchCall(record.op, tuple(value_of(v) for v in record.args), _values(record.kwargs))
    found = next((cls for cls in _param_types(OpParam) if cls.__name__ == record.name), None)
    if found is None:
        raise SerializationError(
            f"no operator here has parameters of type {record.name}; import the module that defines it first"
        )
    fields = _values(record.fields)
    try:
        return msgspec.convert(fields, found)
    except msgspec.ValidationError as error:
        raise SerializationError(f"{record.name} of other fields than it has here: {error}") from error


def _param_types(base: type[OpParam]) -> list[type[OpParam]]:
    below = [cls for child in base.__subclasses__() for cls in (child, *_param_types(child))]
    return [cls for cls in below if cls is not TorchCall]


def _check_overload(name: str) -> None:
    try:
        found = overload(name) if _OVERLOAD.fullmatch(name) else None
    except (AttributeError, RuntimeError):
        found = None
    if not isinstance(found, torch._ops.OpOverload):
        raise SerializationError(
            f"torch has no operator {name!r} here; import the module that registers it first"
        )


def _values(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value_of(value) for name, value in fields.items()}


def value_of(record: Any) -> Any:
    """The argument of a record.

    Raises:
        SerializationError: it names something that torch does not have.
    """
    match record:
        case records.ListOf(items):
            return [value_of(item) for item in items]
        case records.TupleOf(items):
            return tuple(value_of(item) for item in items)
        case records.DictOf(items):
            return _values(items)
        case records.Special(value):
            return float(value)
        case records.Complex(real, imag):
            return complex(float.fromhex(real), float.fromhex(imag))
        case records.Torch(name):
            return torch_value(name)
        case records.Device(name):
            return torch.device(name)
        case records.Mesh():
            return _mesh(record)
        case records.Layout():
            return _layout(record)
        case records.Param():
            return param_of(record)
        case _:
            return record


def torch_value(name: str, kind: Any = object) -> Any:
    """The dtype, memory format or layout of a name (`torch.float32`).

    Raises:
        SerializationError: there is none.
    """
    found = _NAMED.get(name)
    if found is None or not isinstance(found, kind):
        raise SerializationError(f"torch has no {name!r} here")
    return found


def _mesh(record: records.Mesh) -> DeviceMesh:
    ids: Any = list(record.device_ids)
    if math.prod(record.shape) != len(ids):
        raise SerializationError(f"{len(ids)} devices on a mesh of shape {record.shape}")
    if record.shape:
        for size in record.shape[:0:-1]:
            ids = [ids[i : i + size] for i in range(0, len(ids), size)]
        mesh = DeviceMesh(record.device_type, ids, record.dim_names)
    else:
        mesh = DeviceMesh(f"{record.device_type}:{ids[0]}" if ids[0] else record.device_type)
    there = record.description
    if there is None:
        return mesh
    return mesh.described(Description(_described(there.device), tuple(map(_described, there.links))))


def _described(sheet: records.Sheet) -> Any:
    """The device or link of a data sheet."""
    known = mesh_description.kinds()
    if sheet.kind not in known:
        raise SerializationError(f"no kind of device or link is called {sheet.kind} here")
    return msgspec.convert(sheet.fields, known[sheet.kind])


def _layout(record: records.Layout) -> Layout:
    return Layout.of(record.mesh_shape, record.dims, record.partial)


def operator_to_document(operator: Operator) -> records.Document:
    """A file of one operator."""
    writer = Writer()
    writer.operator(operator)
    return writer.document(records.OperatorBody())


def operator_from_document(file: records.Document) -> Operator:
    """The operator of a file.

    Raises:
        SerializationError: the file is of something else, or names what is not there.
    """
    with document.reading():
        check_body(file, records.OperatorBody)
        if len(file.operators) != 1:
            raise SerializationError(f"a file of one operator has {len(file.operators)}")
        return Reader(file).operators[0]


def check_body(file: records.Document, kind: type) -> None:
    """Refuse a file of another kind."""
    if not isinstance(file.body, kind):
        have, want = (
            msgspec.inspect.type_info(k).tag  # type: ignore[attr-defined]
            for k in (type(file.body), kind)
        )
        raise SerializationError(f"this is the file of a {have}, not of a {want}")
