"""Regions: right before and after they are compiled, refused with a reason, and of no harm to the program."""

import logging
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from dtorch.inductor import compiling
from dtorch.inductor.listing import Listing, Meta, Refusal, compute, list_calls
from dtorch.inductor.region import Region

SRC = Path(__file__).parents[2] / "src"
SECONDS = 240.0

F = torch.nn.functional
OTHER = torch.ones(3)


def fresh_number() -> float:
    """A constant that no region on this disk has: `random` alone is seeded."""
    return random.SystemRandom().uniform(1, 2)


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) and x.stride() == y.stride() and x.dtype == y.dtype
        for x, y in zip(a, b, strict=True)
    )


def chain(factor: float):
    def run(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        (x,) = xs
        for _ in range(3):
            x = x * factor + 0.01
        return [x]

    return run


@pytest.mark.compiler
def test_runs_at_once_and_the_same_when_compiled() -> None:
    x = torch.randn(5, 7)
    region = Region(chain(1.01), [x], name="a chain", mode="exact")
    before = region([x])
    assert region.state == "idle"
    assert region.wait(SECONDS), region.why()
    assert equal(before, chain(1.01)([x]))
    assert equal(before, region([x]))


def test_running_statistics_are_listed_as_written() -> None:
    """The schema of native_batch_norm does not say so."""

    def run(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        x, mean, variance = xs
        return [torch.native_batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5)[0]]

    inputs = [torch.randn(5, 3), torch.zeros(3), torch.ones(3)]
    assert list_calls(run, list(map(Meta.of, inputs))).written == (1, 2)


@pytest.mark.compiler
def test_inputs_of_other_shapes_and_strides_run_uncompiled() -> None:
    region = Region(chain(1.01), [torch.randn(5, 7)], name="a chain", mode="exact")
    assert region.wait(SECONDS), region.why()
    others = (
        torch.randn(4, 7),
        torch.randn(7, 5).t(),
        torch.randn(5, 7).double(),
        torch.randn(5, 7)._neg_view(),
        torch.nn.Parameter(torch.randn(5, 7), requires_grad=False),
    )
    for x in (torch.randn(5, 7), *others, torch.randn(5, 7), *others):
        assert equal(region([x]), chain(1.01)([x]))
    resized = torch.randn(5, 7)
    region([resized])
    assert equal(region([resized.resize_(7, 5)]), chain(1.01)([resized]))


@pytest.mark.compiler
@pytest.mark.parametrize("missing", ["function", "arguments"])
def test_inputs_are_checked_without_torchs_private_look(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "function":
        monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    else:
        monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", lambda *tensors: None)
    region = Region(chain(1.01), [torch.randn(5, 7)], name="a chain", mode="exact")
    assert region.wait(SECONDS), region.why()
    for x in (torch.randn(5, 7), torch.randn(4, 7), torch.randn(5, 7)):
        assert equal(region([x]), chain(1.01)([x]))


@pytest.mark.compiler
def test_a_region_in_a_region_is_listed_as_its_calls() -> None:
    x = torch.randn(5, 7)
    inner = Region(chain(1.01), [x], name="a chain", mode="exact")
    assert inner.wait(SECONDS), inner.why()
    listing = list_calls(lambda xs: [inner(xs)[0].neg()], [Meta.of(x)])
    assert [call.name for call in listing.calls].count("aten.mul.Tensor") == 3
    assert equal(compute(listing)([x]), [chain(1.01)([x])[0].neg()])


@pytest.mark.compiler
def test_equal_regions_share_their_code() -> None:
    inputs = [Meta((5, 7), (7, 1), "float32")]
    first, second = (Region(chain(1.01), inputs, name="a chain", mode="exact") for _ in range(2))
    assert first.wait(SECONDS)
    asked = []
    compiling.COMPILER.process.ask, ask = asked.append, compiling.COMPILER.process.ask  # type: ignore[method-assign]
    try:
        assert second.wait(SECONDS)
    finally:
        compiling.COMPILER.process.ask = ask  # type: ignore[method-assign]
    assert asked == []


@pytest.mark.compiler
def test_writes_views_and_results_that_share_storage() -> None:
    def run(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        a, b = xs
        a.add_(b)
        turned = a.t()
        turned.mul_(2)
        c = a * b
        return [turned, c[1:], c, b[:, 1], a.neg()]

    mine = [torch.randn(4, 6), torch.randn(4, 6)]
    theirs, shared = [x.clone() for x in mine], torch.randn(4, 6)
    region = Region(run, mine, name="writes", mode="exact")
    assert region.wait(SECONDS), region.why()
    expected, got = run(mine), region(theirs)
    assert equal(expected, got)
    assert equal(mine, theirs)
    assert got[0].data_ptr() == theirs[0].data_ptr()
    assert got[1].untyped_storage().data_ptr() == got[2].untyped_storage().data_ptr()
    same = shared.clone()
    assert equal(run([shared, shared]), region([same, same]))  # overlapping: uncompiled


@pytest.mark.compiler
def test_exact_refuses_by_name_and_fast_admits_within_rounding() -> None:
    def run(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.softmax(xs[0] * 2, -1)]

    x = torch.randn(8, 9)
    exact, fast = (Region(run, [x], name="softmax", mode=mode) for mode in ("exact", "fast"))
    assert not exact.wait(SECONDS)
    assert (exact.state, exact.reason) == (
        "refused",
        "aten._softmax.default gives other bits when compiled on this build of torch",
    )
    assert equal(exact([x]), run([x]))
    assert fast.wait(SECONDS), fast.why()
    torch.testing.assert_close(fast([x])[0], run([x])[0], rtol=2e-5, atol=2e-5)


def test_off_compiles_nothing() -> None:
    region = Region(chain(1.01), [torch.randn(3)], name="a chain", mode="off")
    assert not region.wait(SECONDS)
    assert region.why() == "off"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda xs: [torch.dropout(xs[0], 0.5, True)], "draws random numbers"),
        (lambda xs: [xs[0] * xs[0].sum().item()], "without values"),
        (lambda xs: [xs[0].nonzero()], "without values"),
        (lambda xs: [xs[0] + torch.ones(3).to(torch.complex64)], "complex"),
        (lambda xs: [xs[0] + OTHER], "no input|without values"),
        (lambda xs: [1.0], "something else than tensors"),
        (lambda xs: [xs[0].view(torch.int32)], "another dtype"),
        (lambda xs: [xs[0] + torch.ones(4)], "cannot run without values"),
    ],
    ids=["random", "item", "nonzero", "complex", "outside", "number", "bytes", "error"],
)
def test_what_cannot_be_compiled_is_refused(function, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        list_calls(function, [Meta((3,), (1,), "float32")])


def test_a_listing_computes_the_same_also_after_json() -> None:
    def run(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        x, i = xs
        return [F.layer_norm(x, (4,)), x[i], *torch.var_mean(x, 0), torch.full_like(x, float("inf"))]

    inputs = [torch.randn(5, 4), torch.tensor([1, 0, 3])]
    listing = list_calls(run, [Meta.of(x) for x in inputs])
    again = Listing.from_dict(listing.to_dict())
    assert again == listing
    assert equal(compute(again)(list(inputs)), run(inputs))


@pytest.mark.compiler
def test_the_programs_state_is_left_alone() -> None:
    """While a region nobody has compiled is compiled, the program draws the numbers it would have drawn."""
    torch.manual_seed(3)
    expected = [torch.rand(4) for _ in range(400)]
    torch.manual_seed(3)
    region = Region(chain(fresh_number()), [Meta((11,), (1,), "float32")], name="new", mode="fast")
    before = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads())
    region.start()
    drawn = [torch.rand(4)]
    while region.state in ("waiting", "compiling") and len(drawn) < 400:
        time.sleep(0.05)
        drawn.append(torch.rand(4))
    assert region.wait(SECONDS), region.why()
    assert equal(drawn, expected[: len(drawn)])
    assert (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()) == before


# ---- in processes of their own


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(SRC), **env},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


REGION = """
import torch
from dtorch.inductor import compiling
from dtorch.inductor.region import Region
x = torch.arange(12.0)
region = Region(lambda xs: [xs[0] * {factor} + 3], [x], name="the region", mode="exact")
"""


@pytest.mark.compiler
def test_a_second_process_compiles_nothing() -> None:
    factor = fresh_number()
    code = REGION.format(factor=factor) + (
        "asked = []\n"
        "ask = compiling.COMPILER.process.ask\n"
        "compiling.COMPILER.process.ask = lambda request: asked.append(1) or ask(request)\n"
        "print(region.wait(200), region.why(), len(asked), region([x])[0].sum().item())\n"
    )
    first, second = run_python(code), run_python(code)
    total = (torch.arange(12.0) * factor + 3).sum().item()
    assert (first.stdout, second.stdout) == (
        f"True compiled 1 {total}\n",
        f"True compiled 0 {total}\n",
    ), first.stderr + second.stderr


def test_without_a_compiler_there_is_one_warning_and_the_same_result() -> None:
    code = REGION.format(factor=fresh_number()) + (
        "other = Region(lambda xs: [xs[0] - 5.25], [x], name='another', mode='fast')\n"
        "print(region.wait(200), other.wait(200), other.state, torch.equal(other([x])[0], x - 5.25))\n"
    )
    done = run_python(code, CXX="/nowhere/g++", DTORCH_OPTIMIZE="exact")
    assert done.stdout == "False False failed True\n", done.stderr
    assert done.stderr.count("runs uncompiled") == 1, done.stderr
    assert "the region could not be compiled" in done.stderr


def test_what_takes_too_long_is_given_up() -> None:
    code = REGION.format(factor=fresh_number()) + "print(region.wait(200), region.why())\n"
    done = run_python(code, DTORCH_COMPILE_SECONDS="1")
    assert done.stdout == "False failed: it took longer than 1 s\n", done.stderr


def test_the_interpreter_ends_while_something_is_compiled() -> None:
    code = REGION.format(factor=fresh_number()) + (
        "import time\n"
        "region.start()\n"
        "while compiling.COMPILER.process._process is None:\n"
        "    time.sleep(0.05)\n"
        "print(compiling.COMPILER.process._process.pid)\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.compiler
def test_a_forked_process_goes_on_uncompiled() -> None:
    code = REGION.format(factor=fresh_number()) + (
        "import os\n"
        "region.start()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    ok = not region.wait(20) and 'forked' in region.why() and region([x])[0].sum() > 0\n"
        "    os._exit(0 if ok else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), region.wait(200))\n"
    )
    assert run_python(code).stdout == "0 True\n"


def test_import_leaves_inductor_alone() -> None:
    done = run_python("import sys, dtorch; print('torch._inductor' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    compiler = compiling._Compiler()
    with caplog.at_level(logging.WARNING, "dtorch"):
        compiler.warn("one", "why")
        compiler.warn("two", "why")
    assert len(caplog.records) == 1
    assert "one could not be compiled" in caplog.text


@pytest.mark.compiler
def test_a_place_out_of_range_ends_no_process() -> None:
    """With several threads compiled code checks places inside of a parallel loop; what it raises ends all."""
    code = """
        import torch
        from dtorch.inductor.region import Region

        torch.set_num_threads(2)
        table, ids = torch.randn(1000, 512), torch.arange(1000)
        look_up = lambda x: [torch.nn.functional.embedding(x[0], x[1]) * 2]
        region = Region(look_up, [ids, table], name="a table", mode="exact")
        print(region.wait(200), torch.equal(region([ids, table])[0], table * 2))
        ids[500] = 1000
        try:
            region([ids, table])
        except IndexError as error:
            print(error)
        computed = Region(lambda x: look_up([x[0] + 1, x[1]]), [ids, table], name="computed", mode="exact")
        print(computed.wait(200), computed.reason.partition(",")[0])
        counted = Region(lambda x: look_up([torch.arange(9), x[0]]), [table], name="counted", mode="exact")
        print(counted.wait(200))
    """
    done = run_python(code)
    assert done.stdout.splitlines() == [
        "True True",
        "index out of range in self",
        "False aten.embedding.default looks up places that are computed",
        "True",
    ], done.stderr


@pytest.mark.recorded
def test_an_unusable_cache_folder_is_told_once_and_not_used() -> None:
    code = """
    import torch, dtorch
    mesh = dtorch.init_device_mesh("cpu", (2,))
    step, x = dtorch.capture(lambda x: x * 2 + 1), dtorch.ones(4, 2, device_mesh=mesh)
    for _ in range(5):
        assert step(x).to_torch().tolist() == [[3.0, 3.0]] * 4
    assert step.why().startswith("replayed"), step.why()
    """
    done = run_python(code, TORCHINDUCTOR_CACHE_DIR="/proc/nothing")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("TORCHINDUCTOR_CACHE_DIR=/proc/nothing cannot be made or written") == 1
