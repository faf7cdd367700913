"""Operators to bytes and JSON and back, of every type; damaged, newer and foreign files are refused."""

from __future__ import annotations

import hashlib
import random
import warnings
from functools import cache
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dtorch
from dtorch import SerializationError
from dtorch.graph.build import Surroundings, build
from dtorch.layout import Layout
from dtorch.op import document, records, registry
from dtorch.op.operand import Operand
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam, Slot, TorchCall, key_of
from dtorch.op.records import VERSION
from dtorch.op.serialize import value_of, value_record
from dtorch.ops.standard.convert import Convert, ConvertParam
from dtorch.ops.system.get_tensor import GetTensor, GetTensorParam
from dtorch.ops.system.memory import Memory, MemoryParam
from dtorch.ops.system.nvtx import Nvtx, NvtxParam
from dtorch.ops.system.sync import Sync, SyncParam
from dtorch.runtime.runner import LocalRunner
from dtorch.spec import Spec
from dtorch.testing.calls import Call
from dtorch.testing.local import parts_of, roles_of
from dtorch.testing.samples import calls_of, samples
from tests.support import cases

MESHES = (
    dtorch.init_device_mesh("cpu", (2,)),
    dtorch.init_device_mesh("cpu", (3,), mesh_dim_names=("tp",)),
    dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")),
    dtorch.DeviceMesh("cpu"),
)
AROUND = Surroundings("auto", False, torch.float32)


@cache
def calls_by_type() -> dict[str, list[Call]]:
    """Operator type -> the calls of it in all samples."""
    found: dict[str, list[Call]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of some of its own functions
        for name in samples():
            for call in calls_of(name):
                found.setdefault(call.operator_class.type, []).append(call)
    x = torch.ones(5, 4, dtype=torch.float64)
    found["Dropout"] = [
        Call.of(torch.ops.aten.native_dropout.default, x, 0.5, True),
        Call.of(torch.ops.aten.bernoulli.p, x, 0.25),
    ]
    return found


TYPES = sorted(name for name, cls in registry.types().items() if cls.__module__.startswith("dtorch.ops"))


@cache
def spread_over(shape: tuple[int, ...], mesh: Any, roles: tuple[Any, ...]) -> Layout:
    return Layout.from_placements(mesh.shape, shape, [r if isinstance(r, str) else f"S{r}" for r in roles])


def specs_of(call: Call, mesh: Any, choose: random.Random) -> list[Spec | None]:
    """Random placements for each input."""
    specs: list[Spec | None] = []
    for x in call.inputs:
        if x is None:
            specs.append(None)
            continue
        roles = tuple(choose.choice(roles_of(x)) for _ in mesh.shape)
        layout = spread_over(tuple(x.shape), mesh, roles)
        specs.append(Spec(tuple(x.shape), x.stride(), x.dtype, layout, mesh))
    return specs


def own_operator(type_name: str, spec: Spec) -> Operator | None:
    """Types that no torch call makes."""
    made: Operator
    controls = {
        "Sync": Sync(SyncParam(), []),
        "Memory": Memory(MemoryParam("stats", True), []),
        "Nvtx": Nvtx(NvtxParam("range_push", "a step"), []),
    }
    if type_name in controls:
        made = controls[type_name]
    elif type_name == "GetTensor":
        made = GetTensor(GetTensorParam(), [Operand(spec)])
    else:
        return None
    made.infer()
    return made


def assert_same(back: Operator, operator: Operator) -> None:
    assert type(back) is type(operator)
    assert back.describe() == operator.describe()
    assert key_of(back.param) == key_of(operator.param)
    assert back.layouts == operator.layouts
    assert [y and y.spec for y in back.outputs] == [y and y.spec for y in operator.outputs]
    assert back.output_metas == (operator.output_metas if operator.outputs else ())
    assert back.streams == operator.streams
    assert back.price() == operator.price()
    assert back.to_bytes() == operator.to_bytes()


@pytest.mark.parametrize("type_name", TYPES)
@settings(max_examples=cases(12), deadline=None)
@given(data=st.data())
def test_every_type_comes_back_as_it_was(type_name: str, data: Any) -> None:
    mesh = data.draw(st.sampled_from(MESHES))
    choose = random.Random(data.draw(st.integers(0, 2**32 - 1)))
    plain = Spec((4, 3), (3, 1), torch.float32, Layout.replicate(mesh.shape, (4, 3)), mesh)
    operator = own_operator(type_name, plain)
    if operator is None:
        call = data.draw(st.sampled_from(calls_by_type()[type_name]))
        recipe = build(call.param, specs_of(call, mesh, choose), {}, AROUND)
        if recipe.reduce_first or recipe.fault is not None:
            return  # nothing is inferred yet: pending sums come first
        operator = recipe.operator
    assert_same(Operator.from_bytes(operator.to_bytes()), operator)
    assert_same(Operator.from_json(operator.to_json()), operator)


@pytest.mark.parametrize(
    "type_name", ["Matmul", "Softmax", "Normalization", "Conv", "CrossEntropy", "Scan", "Reshape", "Dropout"]
)
def test_a_loaded_operator_runs_as_the_original(type_name: str) -> None:
    runner, choose = LocalRunner(), random.Random(1)
    for call in calls_by_type()[type_name][:20]:
        recipe = build(call.param, specs_of(call, MESHES[2], choose), {}, AROUND)
        operator = recipe.operator
        if not operator.outputs or call.written:
            continue
        back = Operator.from_bytes(operator.to_bytes())
        generator = torch.Generator().manual_seed(2)
        parts = [
            None if x is None or layout is None else parts_of(x, layout, MESHES[2], generator)
            for x, layout in zip(call.inputs, operator.layouts, strict=True)
        ]
        one, other = (_run(runner.prepare(o, o.layouts), parts) for o in (operator, back))
        for mine, theirs in zip(one, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def _run(program: Any, parts: Any) -> Any:
    torch.manual_seed(0)
    return program.run(parts)


@given(source=st.sampled_from(MESHES[:3]), target=st.sampled_from(MESHES[:3]), implicit=st.booleans())
def test_redistribution(source: Any, target: Any, implicit: bool) -> None:
    layouts = [
        Layout.from_placements(m.shape, (6, 4), p)
        for m, p in ((source, ["P"] * source.ndim), (target, ["S1"] * target.ndim))
    ]
    spec = Spec((6, 4), (1, 6), torch.bfloat16, layouts[0], source)
    operator = Convert(ConvertParam(layouts[1], target, implicit), [Operand(spec)])
    operator.infer()
    back = Operator.from_json(operator.to_json())
    assert_same(back, operator)
    assert isinstance(back, Convert)
    assert (back.plan, back.implicit, back.target_mesh) == (operator.plan, implicit, target)


def test_described_devices() -> None:
    mesh = dtorch.described_mesh(
        "h100-sxm", (2, 8), axis_links=("ib-ndr", "nvlink"), mesh_dim_names=("a", "b")
    )
    x = dtorch.randn(32, 16, device_mesh=mesh, placements=["S0", "S1"])
    w = dtorch.randn(16, 8, device_mesh=mesh, placements=["R", "S0"])
    with dtorch.record() as graph:
        y = x @ w
    for loaded in (
        dtorch.LogicalGraph.from_bytes(graph.to_bytes(inputs=[x, w], outputs=[y])),
        dtorch.LogicalGraph.from_json(graph.to_json(inputs=[x, w], outputs=[y])),
    ):
        assert str(loaded) == str(graph)
        assert loaded.operators[0].mesh == mesh
        assert loaded.operators[0].price_max() == graph.operators[0].price_max()
        assert loaded.run(x, w)[0].placements == y.placements
    one = dtorch.described_mesh("h100-sxm")
    assert value_of(value_record(one)) == one
    text = graph.to_json().replace('"kind": "Link"', '"kind": "Wire"')
    with pytest.raises(SerializationError, match="no kind of device or link is called Wire here"):
        dtorch.LogicalGraph.from_json(text)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.complex_numbers(),
        st.text(),
        st.sampled_from([torch.float32, torch.bool, torch.complex64, torch.channels_last, torch.strided]),
        st.sampled_from([torch.device("cpu"), torch.device("cuda:3"), MESHES[2]]),
        st.builds(Slot, st.integers(0, 9), st.none() | st.floats(allow_nan=False, allow_infinity=False)),
    ),
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)


@given(VALUES)
def test_arguments_keep_type_and_bits(value: Any) -> None:
    for codec in (msgspec.json, msgspec.msgpack):
        try:
            encoded = codec.encode(value_record([value]))
        except UnicodeEncodeError:
            return  # half a character, which no file has
        again = value_of(codec.decode(encoded, type=records.ListOf))[0]
        assert key_of(again) == key_of(value)


def test_what_is_no_plain_value_cannot_be_written() -> None:
    for value in (torch.ones(2), torch.Generator(), object(), [lambda: 0]):
        with pytest.raises(SerializationError, match="cannot be written"):
            value_record(value)
    with pytest.raises(SerializationError, match="cannot be written"):
        matmul(2**70).to_bytes()


# -- damaged, newer, foreign --------------------------------------------------------------------------------


def matmul(extra: int = 0) -> Operator:
    layout = Layout.from_placements((2,), (4, 6), ["S0"])
    whole = Layout.replicate((2,), (6, 3))
    specs = [
        Spec((4, 6), (6, 1), torch.float32, layout, MESHES[0]),
        Spec((6, 3), (3, 1), torch.float32, whole, MESHES[0]),
    ]
    operator = registry.class_by_type("Matmul")(
        TorchCall("aten.mm.default", (Slot(0), Slot(1)), {}), [Operand(s) for s in specs]
    )
    operator.infer()
    if extra:
        operator.param = TorchCall("aten.mm.default", (Slot(0), Slot(1), extra), {})
    return operator


@given(st.data())
def test_a_damaged_file_is_refused(data: Any) -> None:
    whole = matmul().to_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    place, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << bit
    for damaged in (cut, bytes(flipped), whole + b"\0", b"", b"PK\3\4", whole[::-1]):
        with pytest.raises(SerializationError):
            Operator.from_bytes(damaged)


@given(st.data())
def test_a_damaged_text_is_refused_or_another_operator(data: Any) -> None:
    """JSON has no checksum, so that a person may change it; what is taken is well formed."""
    text = matmul().to_json()
    place = data.draw(st.integers(0, len(text) - 1))
    changed = text[:place] + data.draw(st.sampled_from(list('0129-."{}[]xn'))) + text[place + 1 :]
    for damaged in (text[:place], changed):
        try:
            operator = Operator.from_json(damaged)
        except SerializationError:
            continue
        assert isinstance(operator, Operator)


def test_a_newer_file_says_so() -> None:
    whole, text = matmul().to_bytes(), matmul().to_json()
    newer = whole[:7] + (VERSION + 1).to_bytes(2, "little") + whole[9:]
    with pytest.raises(SerializationError, match=f"format {VERSION + 1}, this dtorch reads up to {VERSION}"):
        Operator.from_bytes(newer)
    with pytest.raises(SerializationError, match="a newer one wrote it"):
        Operator.from_json(text.replace(f'"version": {VERSION}', '"version": 99', 1))
    with pytest.raises(SerializationError, match="which there never was"):
        Operator.from_json(text.replace(f'"version": {VERSION}', '"version": 0', 1))


TAMPERED = {
    "another program's": (b'{"format": "keras", "version": 1}', "no file of dtorch but of 'keras'"),
    "pickle": (b"\x80\x04\x95", "not well formed"),
    "a list": (b"[]", "not well formed"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_foreign_texts(name: str) -> None:
    text, match = TAMPERED[name]
    with pytest.raises(SerializationError, match=match):
        Operator.from_json(text)


CHANGES = {
    "no such operator": ("aten.mm.default", "aten.mmm.default", "no operator 'aten.mmm.default' here"),
    "no operator at all": ("aten.mm.default", "aten.__class__.mro", "torch has no operator"),
    "a function of torch": ("aten.mm.default", "load_library.__call__.x", "torch has no operator"),
    "another type": ('"type": "Matmul"', '"type": "Softmax"', "of type Matmul here, of Softmax in the file"),
    "no such dtype": ("torch.float32", "torch.load", "torch has no 'torch.load' here"),
    "a dtype that is none": ('"dtype": "torch.float32"', '"dtype": "torch.strided"', "torch has no"),
    "a slot beyond": ('"index": 1', '"index": 7', "slot 7 of an operator with 2 inputs"),
    "a spec beyond": ('"inputs": [0, 1]', '"inputs": [0, 9]', "IndexError"),
    "a spec before": ('"inputs": [0, 1]', '"inputs": [0, -1]', "ValidationError"),
    "no such field": ('"mesh": 0', '"mesh": "0"', "ValidationError"),
    "a mesh too small": ('"device_ids": [0, 1]', '"device_ids": [0]', "1 devices on a mesh of shape"),
    "a dim lost": ('"shape": [4, 6]', '"shape": [4]', "ShapeError"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_text_that_contradicts_itself(name: str) -> None:
    before, after, match = CHANGES[name]
    text = matmul().to_json()
    assert before in text
    with pytest.raises(SerializationError, match=match):
        Operator.from_json(text.replace(before, after))


def test_reading_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = matmul().to_bytes()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("something ran")

    monkeypatch.setattr("dtorch.op.operator.run_on_meta", refuse)
    monkeypatch.setattr(Operator, "infer", refuse)
    monkeypatch.setattr(torch._ops.OpOverload, "__call__", refuse)
    assert Operator.from_bytes(data).describe() == "Matmul([4, 6] x [6, 3] -> [4, 3])"


def test_a_checksum_that_fits_does_not_help_a_malformed_file() -> None:
    payload = msgspec.msgpack.encode({"format": "dtorch", "version": 1})
    head = document.MAGIC + VERSION.to_bytes(2, "little")
    with pytest.raises(SerializationError, match="not well formed"):
        Operator.from_bytes(head + hashlib.sha256(payload).digest() + payload)


# -- operators of a user ------------------------------------------------------------------------------------


class ScaleByParam(OpParam, frozen=True):
    factor: float
    names: tuple[str, ...] = ()


class ScaleBy(dtorch.operators.CustomOperator):
    param_type = ScaleByParam
    dims = dtorch.operators.Dims("x[...] -> y[...]", linear="x")

    def infer_output_meta_info(self) -> list[Any]:
        spec = self.inputs[0].spec  # type: ignore[union-attr]
        return [dtorch.operators.OutputMeta(spec.shape, spec.stride, spec.dtype)]

    def compute(self, inputs: Any, outputs: list[Any], local: Any) -> None:
        outputs.append(inputs[0] * self.values.factor)


def test_parameters_of_a_user() -> None:
    spec = matmul().inputs[0].spec  # type: ignore[union-attr]
    operator = ScaleBy(ScaleByParam(2.5, ("a", "b")), [Operand(spec)])
    operator.infer()
    assert_same(Operator.from_bytes(operator.to_bytes()), operator)
    text = operator.to_json()
    for before, after, match in (
        ('"factor": 2.5', '"factor": "x"', "ScaleByParam of other fields"),
        ("ScaleByParam", "ScaleByOtherParam", "import the module that defines it first"),
    ):
        with pytest.raises(SerializationError, match=match):
            Operator.from_json(text.replace(before, after))
