"""Calls that were made before, recorded in C, against the same calls recorded by the Python functions."""

import os
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Graph, Shard, native
from dtorch.dispatch import dispatch, made_before
from dtorch.graph.confirm import line_of
from dtorch.graph.pending import Pending
from dtorch.op.operand import Operand, Scalar

pytestmark = [
    pytest.mark.recorded,
    pytest.mark.skipif(
        native.loaded("again") is None, reason="compiled when dtorch is installed; make native"
    ),
]
aten = torch.ops.aten
ROOT = Path(__file__).parents[2]
MESH = DeviceMesh("cpu", [0, 1])


@pytest.fixture
def held(graph: Graph) -> SimpleNamespace:
    """Tensors of one graph."""

    def made(*shape: int, at: Any = "S0", dtype: torch.dtype = torch.float32) -> dtorch.Tensor:
        full = torch.arange(torch.Size(shape).numel()).view(shape).to(dtype)
        return dtorch.Tensor(full, device_mesh=MESH, placements=[at], graph=graph)

    x = made(4, 6)
    return SimpleNamespace(
        x=x,
        y=made(4, 6),
        z=made(4, 6, at="S1"),
        w=made(6, 3, at="R"),
        i=made(4, dtype=torch.int64),
        t=x.t(),
        row=x[:, 1],
    )


CALLS: dict[str, Callable[[SimpleNamespace], tuple[Any, tuple, dict | None]]] = {
    "two tensors": lambda h: (aten.add.Tensor, (h.x, h.y), None),
    "one twice": lambda h: (aten.mul.Tensor, (h.x, h.x), None),
    "an integer": lambda h: (aten.sum.dim_IntList, (h.x, [1], True), None),
    "a tuple": lambda h: (aten.permute.default, (h.x, (1, 0)), None),
    "no dims": lambda h: (aten.flip.default, (h.x, []), None),
    "None": lambda h: (aten.clamp.default, (h.x, None, 2), None),
    "a factor that is free": lambda h: (aten.mul.Scalar, (h.x, 0.5), None),
    "a factor of zero": lambda h: (aten.mul.Scalar, (h.x, 0.0), None),
    "minus zero": lambda h: (aten.mul.Scalar, (h.x, -0.0), None),
    "infinity": lambda h: (aten.mul.Scalar, (h.x, float("inf")), None),
    "not a number": lambda h: (aten.mul.Scalar, (h.x, float("nan")), None),
    "a float that is not free": lambda h: (aten.leaky_relu.default, (h.x, 0.3), None),
    "a keyword": lambda h: (aten.add.Tensor, (h.x, h.y), {"alpha": 0.25}),
    "an integer by keyword": lambda h: (aten.add.Tensor, (h.x, h.y), {"alpha": 2}),
    "a dtype": lambda h: (aten.cumsum.default, (h.x, 1), {"dtype": torch.float64}),
    "a memory format": lambda h: (aten.clone.default, (h.x,), {"memory_format": torch.contiguous_format}),
    "true and false": lambda h: (aten.argmax.default, (h.x, 1, True), None),
    "a text": lambda h: (aten.gelu.default, (h.x,), {"approximate": "tanh"}),
    "a view": lambda h: (aten.view.default, (h.x, [24]), None),
    "a transposed view": lambda h: (aten.t.default, (h.x,), None),
    "a view of a view": lambda h: (aten.t.default, (h.t,), None),
    "a view with an offset": lambda h: (aten.unsqueeze.default, (h.row, 0), None),
    "a slice that starts anywhere": lambda h: (aten.slice.Tensor, (h.x, 1, 2, 5), None),
    "an index on a whole dim": lambda h: (aten.select.int, (h.x, 1, -2), None),
    "a slice of all": lambda h: (aten.slice.Tensor, (h.x, 1, 0, 6), None),
    "a list of tensors": lambda h: (aten.cat.default, ([h.x, h.y, h.x], 1), None),
    "a list of numbers": lambda h: (aten.constant_pad_nd.default, (h.x, [0, 0, 0, 0], 1.5), None),
    "mixed items": lambda h: (aten.index.Tensor, (h.w, [None, h.i.to(torch.int64) % 3]), None),
    "a complex number": lambda h: (aten.mul.Scalar, (h.x, 1j), None),
    "a product": lambda h: (aten.mm.default, (h.x, h.w), None),
    # What Python has to answer.
    "several outputs": lambda h: (aten.max.dim, (h.x, 1), None),
    "in place": lambda h: (aten.add_.Tensor, (h.x, h.y), None),
    "a plain tensor": lambda h: (aten.add.Tensor, (h.x, torch.ones(6)), None),
    "a conversion": lambda h: (aten.add.Tensor, (h.x, h.z), None),
    "values": lambda h: (aten.nonzero.default, (h.x,), None),
}


def nodes_of(graph: Graph, number: Callable[[Any], int]) -> list[Any]:
    """What is pending, comparable: recipes, who reads what, values of numbers, and what comes out."""

    def input_of(value: Any) -> Any:
        return repr(value.parts.value) if isinstance(value, Scalar) else number(value)

    def output_of(operand: Operand) -> Any:
        shared = None if operand.shared is None else number(operand.shared)
        return operand.spec, operand.offset, shared, operand.parts

    found = []
    for recipe, inputs, outputs, place in graph.constructor.pending.nodes:
        assert type(inputs) is list
        assert type(outputs) is tuple
        found.append((recipe, [input_of(x) for x in inputs], [output_of(x) for x in outputs], line_of(place)))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_records_what_python_records(name: str, held: SimpleNamespace, graph: Graph) -> None:
    func, args, kwargs = CALLS[name](held)
    for _ in range(3):  # confirmed by then, and recorded
        dispatch(func, (), args, kwargs)
        graph.constructor.flush()
    seen: dict[int, int] = {}
    kept = []

    def number(value: Any) -> int:
        kept.append(value)
        return seen.setdefault(id(value), len(seen))

    answers = []
    for door in (dispatch, made_before):
        seen.clear()
        for tensor in vars(held).values():
            number(tensor._operand)
        result = door(func, (), args, kwargs)
        line = nodes_of(graph, number)
        results = result if isinstance(result, (list, tuple)) else [result]
        looks = [(r.shape, r.stride(), r.dtype, r.storage_offset(), r.requires_grad) for r in results]
        answers.append((line, pending_bytes(graph), looks, [r.to_torch() for r in results]))
    (line, nbytes, looks, values), (line_c, nbytes_c, looks_c, values_c) = answers
    assert line == line_c
    assert nbytes == nbytes_c
    assert looks == looks_c
    if name != "in place":  # done twice
        torch.testing.assert_close(values, values_c, rtol=0, atol=0, equal_nan=True)


def pending_bytes(graph: Graph) -> int:
    """Bytes of what is pending."""
    return graph.constructor.pending.nbytes


@contextmanager
def only_in_c(slow: Callable[..., Any]) -> Iterator[None]:
    """Inside, what is passed on to Python arrives at `slow`."""
    module = native.loaded("again")
    module.install({**native.installed, "slow": slow})
    try:
        yield
    finally:
        module.install(native.installed)


IN_PYTHON = ("several outputs", "in place", "a plain tensor", "a conversion", "values", "a complex number")


@pytest.mark.parametrize("name", CALLS)
def test_answers_what_it_can(name: str, held: SimpleNamespace, graph: Graph) -> None:
    """Else the test above would compare Python with itself."""
    func, args, kwargs = CALLS[name](held)
    for _ in range(3):
        dispatch(func, (), args, kwargs)
    passed: list[Any] = []

    def slow(func: Any, *rest: Any) -> Any:
        passed.append(func)
        return dispatch(func, *rest)

    with only_in_c(slow):
        made_before(func, (), args, kwargs)
    assert bool(passed) == (name in IN_PYTHON)


def test_names_the_line_of_the_user(held: SimpleNamespace, graph: Graph) -> None:
    for _ in range(3):
        torch.add(held.x, held.y)
    graph.constructor.flush()
    here, line = torch.add(held.x, held.y), sys._getframe().f_lineno
    assert f"test_again.py:{line}" in graph.listing()
    del here


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_views_of_normal_and_of_inference_tensors(mode: Any, held: SimpleNamespace) -> None:
    for _ in range(3):
        with mode():
            view = held.x.view(24)
            sum_ = held.x + held.y
            again = sum_.view(24)
            assert (view.is_inference(), sum_.is_inference(), again.is_inference()) == (
                False,
                mode is torch.inference_mode,
                mode is torch.inference_mode,
            )


@pytest.mark.parametrize("limit", ["max_bytes", "max_nodes"])
def test_runs_when_much_is_pending(
    limit: str, held: SimpleNamespace, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.x.add(held.y).neg()
    monkeypatch.setattr(Pending, limit, 8 * held.x._operand.nbytes if limit == "max_bytes" else 8)
    inputs = [torch.add(held.x, held.y) for _ in range(40)]
    graph.sync()
    kept, most = [], 0
    while inputs:
        kept.append(inputs.pop().neg())
        most = max(most, len(graph.constructor.pending.nodes))
    assert most == (8 if limit == "max_nodes" else 13)  # looked at when 9 have been counted, and then 5 more
    torch.testing.assert_close(kept[20].to_torch(), -(held.x.to_torch() + held.y.to_torch()))


def test_changed_settings_are_seen(held: SimpleNamespace, graph: Graph) -> None:
    for _ in range(3):
        held.i / 2
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        wide = held.i / 2
    finally:
        torch.set_default_dtype(before)
    assert (wide.dtype, (held.i / 2).dtype) == (torch.float64, torch.float32)


def test_a_recorder_sees_every_call(held: SimpleNamespace) -> None:
    for _ in range(3):
        torch.add(held.x, held.y)
    with held.x.graph.record() as recorded:
        torch.add(held.x, held.y)
    assert [operator.kind_name() for operator in recorded.operators] == ["Add"]


@pytest.mark.parametrize("failing", ["make_wrapper", "forbid_data_pointer", "Scalar"])
def test_what_is_raised_inside_arrives_and_frees_the_lock(
    failing: str, held: SimpleNamespace, graph: Graph
) -> None:
    def fails(*_: Any) -> Any:
        raise KeyboardInterrupt(failing)

    for _ in range(3):
        aten.mul.Scalar(held.x, 0.5)
    module = native.loaded("again")
    module.install({**native.installed, failing: fails})
    try:
        with pytest.raises(KeyboardInterrupt, match=failing):
            made_before(aten.mul.Scalar, (), (held.x, 0.5))
    finally:
        module.install(native.installed)
    assert not graph.lock._is_owned()  # type: ignore[attr-defined]
    torch.testing.assert_close((held.x * 0.5).to_torch(), held.x.to_torch() * 0.5)


def test_wrong_arguments_are_told_as_by_torch(held: SimpleNamespace) -> None:
    torch.add(held.x, held.y)
    with pytest.raises(RuntimeError, match="size"):
        torch.add(held.x, held.w)
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        held.x.view(5)


def test_nothing_is_left_behind(held: SimpleNamespace, graph: Graph) -> None:
    """References that are never given back would show as memory; those given back twice crash."""
    names = [name for name in CALLS if name not in IN_PYTHON]
    calls = [CALLS[name](held) for name in names]

    def rounds(count: int) -> None:
        for _ in range(count):
            for func, args, kwargs in calls:
                made_before(func, (), args, kwargs)
            graph.constructor.flush()

    def counts() -> list[int]:
        shared = [native.installed["true_key"], native.installed["false_key"], held.x._operand.spec, graph]
        return [sys.getrefcount(value) for value in shared]

    rounds(20)
    before = counts()
    tracemalloc.start()
    try:
        rounds(20)
        first = tracemalloc.get_traced_memory()[0]
        rounds(200)
        second = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert second - first < 16 * 2**10
    after = counts()
    assert all(abs(b - a) < 20 for a, b in zip(before, after, strict=True)), (before, after)


def test_threads_lose_no_node(graph: Graph) -> None:
    x = dtorch.Tensor(torch.ones(4), device_mesh=MESH, placements=[Shard(0)], graph=graph)
    for _ in range(3):
        x + x
    found: list[torch.Tensor] = []

    def add() -> None:
        total = x
        for n in range(300):
            total = total + x
            if n % 50 == 0:
                total.to_torch()
        found.append(total.to_torch())

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [value.tolist() for value in found] == [[301.0] * 4] * 4


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((24,), {}),
        ((2, -1), {}),
        (((3, 8),), {}),
        (([24],), {}),
        ((torch.Size([24]),), {}),
        ((torch.int32,), {}),
        ((), {"size": (24,)}),
        ((), {"dtype": torch.int32}),
    ],
    ids=str,
)
def test_views_as_torch_does(args: tuple, kwargs: dict, held: SimpleNamespace) -> None:
    expected = held.x.to_torch().view(*args, **kwargs)
    found = held.x.view(*args, **kwargs)
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert torch.equal(found.to_torch(), expected)


@pytest.mark.parametrize("args", [(5,), (2, 2), (), (1,) * 65, (True,), ("a",), (2, None)], ids=str)
def test_views_refuse_what_torch_refuses(args: tuple, held: SimpleNamespace) -> None:
    with pytest.raises((RuntimeError, TypeError)) as theirs:
        held.x.to_torch().view(*args)
    with pytest.raises(theirs.type):
        held.x.view(*args)


def test_views_under_placements_are_python_s_and_say_so(held: SimpleNamespace) -> None:
    assert held.x.view([Shard(1)]).placements == (Shard(1),)
    assert "placements" in (dtorch.Tensor.view.__doc__ or "")


def test_can_be_left_unused() -> None:
    code = "from dtorch.dispatch import dispatch, made_before; print(made_before is dispatch)"
    env = {**os.environ, "DTORCH_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_what_is_older_than_its_source_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = native.loaded("again")
    monkeypatch.setattr(module, "__file__", os.devnull)
    os_stat = os.stat(os.devnull).st_mtime
    monkeypatch.setattr(native, "_made_at", lambda path: 0.0 if str(path) == os.devnull else os_stat)
    with pytest.warns(UserWarning, match="make native"):
        assert native.loaded("again") is None


def test_a_wheel_holds_no_source_that_could_be_newer(tmp_path: Path) -> None:
    """pip writes both within a millisecond, in any order."""
    code = "from setuptools import setup; setup()"
    made = [sys.executable, "-W", "ignore", "-c", code, "-q", "build", "-b", str(tmp_path / "build")]
    wheel = [*made, "bdist_wheel", "-d", str(tmp_path), "-b", str(tmp_path / "kept")]
    subprocess.run(wheel, cwd=ROOT, capture_output=True, text=True, check=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for module in ("_again", "_look"):
        assert any(f"native/{module}." in name for name in names)
    assert not [name for name in names if name.endswith(".c")]
