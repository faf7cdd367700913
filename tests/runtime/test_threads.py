"""Large kernels on their device's own thread: which, under what settings, what errors and Ctrl-C do."""

from __future__ import annotations

import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import pytest
import torch
from torch.nn import functional as F

import dtorch
from dtorch import DeviceMesh, OperatorError, Shard
from dtorch.op.dims import Dims
from dtorch.op.operator import Operator
from dtorch.op.stream import StreamKey
from dtorch.runtime import threads
from dtorch.runtime.kernel import Kernel
from dtorch.runtime.threads import ThreadState, run_together

MESH = DeviceMesh("cpu", [0, 1])
KEYS = [StreamKey("cpu", i, "compute") for i in range(2)]
PLANNED = pytest.mark.parametrize("runs", [0, 1, 2, 3], ids=["at once", "interpreted", "planned", "again"])


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_num_cores", lambda: 2)


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel counts as large."""
    monkeypatch.setattr(threads, "LARGE_SECONDS", 0.0)


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(operator, thread) of each kernel that is called by `Kernel.compute`."""
    found: list[tuple[str, str]] = []
    compute = Kernel.compute

    def noting(self: Kernel, inputs: Any, outputs: Any) -> None:
        found.append((self.operator.type, threading.current_thread().name))
        compute(self, inputs, outputs)

    monkeypatch.setattr(Kernel, "compute", noting)
    return found


def on(values: torch.Tensor, graph: dtorch.Graph, *placements: Any) -> dtorch.Tensor:
    return dtorch.Tensor(values, MESH, list(placements) or None, graph=graph)


# -- which kernels ----------------------------------------------------------------------


def test_large_kernels_run_there_and_small_ones_here(
    graph: dtorch.Graph, where: list[tuple[str, str]]
) -> None:
    x = on(torch.randn(1024, 1024), graph, Shard(0))
    w = on(torch.randn(1024, 1024), graph)
    (x @ w)[:, :2].relu().to_torch()
    assert {name for kind, name in where if kind == "Matmul"} == {"dtorch cpu:0", "dtorch cpu:1"}
    assert {name for kind, name in where if kind != "Matmul"} == {"MainThread"}


def test_a_product_of_whole_operands_has_one_kernel_and_stays(
    graph: dtorch.Graph, where: list[tuple[str, str]], everything: None
) -> None:
    (on(torch.randn(8, 8), graph) @ on(torch.randn(8, 8), graph)).to_torch()
    assert {name for _, name in where} == {"MainThread"}


def test_nothing_is_handed_over_where_torchs_threads_have_all_cores(
    graph: dtorch.Graph, where: list[tuple[str, str]], everything: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_num_cores", lambda: 1)
    (on(torch.randn(8, 8), graph, Shard(0)) @ on(torch.randn(8, 8), graph)).to_torch()
    assert {name for _, name in where} == {"MainThread"}


@pytest.mark.parametrize("call", [torch.bernoulli, lambda p: F.dropout(p, 0.5)], ids=["bernoulli", "dropout"])
def test_random_numbers_are_drawn_here(
    graph: dtorch.Graph, where: list[tuple[str, str]], everything: None, call: Callable[..., torch.Tensor]
) -> None:
    values = torch.full((64, 3), 0.5)
    torch.manual_seed(3)
    wanted = call(values)
    torch.manual_seed(3)
    assert torch.equal(call(on(values, graph, Shard(0))).to_torch(), wanted)


def test_a_users_kernel_stays(graph: dtorch.Graph, everything: None) -> None:
    """It may not bear to run beside itself."""
    found = []

    @torch.library.custom_op("threads_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        found.append(threading.current_thread().name)
        return x * 2

    doubled.register_fake(torch.empty_like)

    class Doubled(Operator):
        rules: ClassVar = {"threads_test.doubled": Dims("x[...] -> y[...]")}

    x = on(torch.randn(4, 3), graph, Shard(0))
    assert doubled(x).placements == [Shard(0)]
    assert found == ["MainThread"] * 2


@PLANNED
def test_both_kernels_run_at_the_same_time(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch, everything: None, runs: int
) -> None:
    """Each waits inside for the other."""
    graph.constructor.eager = runs == 0
    meeting = threading.Barrier(2, timeout=60)
    compute = Kernel.compute

    def met(self: Kernel, inputs: Any, outputs: Any) -> None:
        if self.operator.type == "Matmul":
            meeting.wait()
        compute(self, inputs, outputs)

    monkeypatch.setattr(Kernel, "compute", met)
    a, b = torch.randn(6, 4), torch.randn(4, 5)
    for _ in range(1 + runs):
        y = on(a, graph, Shard(0)) @ on(b, graph)
        torch.testing.assert_close(y.to_torch(), a @ b)


# -- values and settings ----------------------------------------------------------------


def program(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """Products, attention, convolution, sums, several outputs, writes and a backward."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = F.gelu(x @ w).view(4, 3, 2, 8)
    z = F.scaled_dot_product_attention(y, y, y, is_causal=True).flatten(1)
    values, places = (z * 1.5).topk(3, dim=1)
    z.exp().mean().backward()
    with torch.no_grad():
        x.grad.mul_(3.0).add_(x)
        best, second = z.chunk(2, 1)
    return [values, places, best, second, x.grad, w.grad, torch.var_mean(z, 1)[0], z.cumsum(1)]


@PLANNED
def test_values_are_those_of_one_thread(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch, everything: None, runs: int
) -> None:
    graph.constructor.eager = runs == 0
    x, w = torch.randn(12, 16), torch.randn(16, 16)
    found = {}
    for cores in (1, 2):
        monkeypatch.setattr(threads, "_num_cores", lambda n=cores: n)
        for _ in range(1 + runs):
            results = [t.detach().to_torch() for t in program(on(x, graph, Shard(0)), on(w, graph))]
        found[cores] = results
        dtorch.plan.cache.forget()
    for one, two in zip(found[1], found[2], strict=True):
        assert torch.equal(one, two)
    for mine, plain in zip(found[2], program(x, w), strict=True):
        torch.testing.assert_close(mine, plain.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "setting",
    [
        nullcontext,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.device("meta"),
        torch._C._AutoDispatchBelowADInplaceOrView,
    ],
    ids=["nothing", "no_grad", "inference_mode", "autocast", "device", "below autograd"],
)
def test_a_thread_takes_over_the_callers_state(setting: Callable[[], AbstractContextManager[Any]]) -> None:
    found: list[ThreadState] = []
    run_together(KEYS, [lambda: None] * 2)
    with setting():
        here = ThreadState.present()
        run_together(KEYS, [lambda: found.append(ThreadState.present())] * 2)
    assert [str(state) for state in found] == [str(here)] * 2
    run_together(KEYS, [lambda: found.append(ThreadState.present())] * 2)
    assert [str(state) for state in found[2:]] == [str(ThreadState.present())] * 2


def test_a_thread_takes_over_the_number_of_threads_and_what_becomes_of_denormals() -> None:
    found: list[Any] = []
    small = torch.full((4,), 1e-40)
    run_together(KEYS, [lambda: None] * 2)
    try:
        torch.set_num_threads(3)
        run_together(KEYS, [lambda: found.append(torch.get_num_threads())] * 2)
        torch.set_num_threads(1)
        run_together(KEYS, [lambda: found.append(torch.get_num_threads())] * 2)
        if torch.set_flush_denormal(True):
            run_together(KEYS, [lambda: found.append(bool((small * 0.5).any()))] * 2)
            torch.set_flush_denormal(False)
            run_together(KEYS, [lambda: found.append(bool((small * 0.5).any()))] * 2)
    finally:
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)
    assert found[:4] == [3, 3, 1, 1]
    assert found[4:] in ([], [False, False, True, True])


@PLANNED
@pytest.mark.parametrize("mode", ["autocast", "inference_mode", "double", "deterministic"])
def test_settings_of_the_program_hold(graph: dtorch.Graph, everything: None, runs: int, mode: str) -> None:
    graph.constructor.eager = runs == 0
    x, w = torch.randn(6, 4), torch.randn(4, 4)
    settings: dict[str, Any] = {
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "inference_mode": torch.inference_mode,
        "double": lambda: _set(torch.set_default_dtype, torch.float64, torch.float32),
        "deterministic": lambda: _set(torch.use_deterministic_algorithms, True, False),
    }

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with settings[mode]():
            y = (x @ w).softmax(-1) + torch.arange(4)
            y[:2] += (x > 0)[:2] / 3
            return y

    for _ in range(1 + runs):
        found = run(on(x, graph, Shard(0)), on(w, graph))
        assert torch.equal(found.to_torch(), run(x, w))


@contextmanager
def _set(setter: Callable[[Any], None], value: Any, before: Any) -> Iterator[None]:
    setter(value)
    yield
    setter(before)


# -- errors -----------------------------------------------------------------------------


@PLANNED
def test_an_error_reads_as_it_does_on_one_thread(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch, everything: None, runs: int
) -> None:
    graph.constructor.eager = runs == 0

    def taken(row: int) -> dtorch.Tensor:
        x = on(torch.randn(4, 6), graph, Shard(1))
        return x.index_select(0, on(torch.tensor([0, row]), graph))

    texts = []
    for cores in (1, 2):
        monkeypatch.setattr(threads, "_num_cores", lambda n=cores: n)
        for _ in range(runs):
            taken(1).to_torch()
        with pytest.raises(IndexError) as caught:
            taken(99).to_torch()
        texts.append(str(caught.value))
        dtorch.plan.cache.forget()
    assert texts[0] == texts[1]
    assert re.search(r"in IndexSelect\(.*\n  called from .*test_threads", texts[1])


def test_the_error_is_that_of_the_first_device_and_the_others_have_ended() -> None:
    ended = []

    def second() -> None:
        time.sleep(0.05)
        ended.append(2)
        raise ValueError("second")

    def first() -> None:
        time.sleep(0.1)
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        run_together(KEYS, [first, second])
    assert ended == [2]


def test_nothing_holds_a_call_once_it_has_ended_or_failed() -> None:
    class Held:
        pass

    def reference(fails: bool) -> weakref.ref[Held]:
        held = Held()

        def call(held: Held = held) -> None:
            if fails:
                raise ValueError

        try:
            run_together(KEYS, [call, lambda: None])
        except ValueError:
            assert fails
        return weakref.ref(held)

    assert reference(False)() is None
    assert reference(True)() is None


# -- Ctrl-C -----------------------------------------------------------------------------


def _press_ctrl_c() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_an_interrupt_comes_when_what_has_begun_has_ended_and_the_rest_never_runs() -> None:
    ran = []
    others_turn_over = threading.Event()

    def slow() -> None:
        others_turn_over.wait(60)
        time.sleep(0.2)  # Python sees a signal late that comes while a thread is about to wait
        _press_ctrl_c()
        time.sleep(0.2)
        ran.append("slow")

    def other() -> None:
        ran.append("other")
        others_turn_over.set()

    def later() -> None:
        ran.append("later")

    with pytest.raises(KeyboardInterrupt):
        run_together([KEYS[0], KEYS[1], KEYS[0]], [slow, other, later])
    assert sorted(ran) == ["other", "slow"]
    run_together(KEYS, [later, later])
    assert ran[2:] == ["later", "later"]


@pytest.mark.parametrize("runs", [1, 2, 3], ids=["interpreted", "planned", "again"])
def test_an_interrupted_write_does_not_look_whole(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch, everything: None, runs: int
) -> None:
    def run() -> tuple[dtorch.Tensor, dtorch.Tensor, dtorch.Tensor]:
        x = on(torch.arange(6.0), graph, Shard(0))
        y = x + 1.0
        x.add_(10.0)
        return x, y, y * 2.0

    for _ in range(runs):
        [t.to_torch() for t in run()]
    x, y, z = run()
    compute, calls = Kernel.compute, []

    def interrupted(self: Kernel, inputs: Any, outputs: Any) -> None:
        compute(self, inputs, outputs)
        calls.append(self)
        if len(calls) == 4:
            _press_ctrl_c()
            time.sleep(0.05)

    monkeypatch.setattr(Kernel, "compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph.sync()
    monkeypatch.undo()
    assert torch.equal(y.to_torch(), torch.arange(6.0) + 1)
    assert torch.equal(z.to_torch(), torch.arange(6.0) * 2 + 2)
    with pytest.raises(OperatorError, match=r"interrupted while .* wrote it\n  called from .*test_threads"):
        x.to_torch()
