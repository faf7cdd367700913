"""The fused operators: values, gradients, shards, errors, and what the compiler makes of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Partial, Replicate, Shard, compiled_op
from dtorch.inductor import compiling, worth
from dtorch.ops.fused.compiled import CompiledFunction

F = torch.nn.functional
SECONDS = 240.0
MESH = dtorch.init_device_mesh("cpu", (2, 2))


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unbind_dim: int = -1) -> torch.Tensor:
    """By complex numbers where cos and sin are equal within pairs."""
    half = x.shape[-1] // 2
    a, b = (x[..., ::2], x[..., 1::2]) if unbind_dim == -1 else (x[..., :half], x[..., half:])
    c, s = (
        (t[..., ::2], t[..., 1::2]) if unbind_dim == -1 else (t[..., :half], t[..., half:])
        for t in (cos, sin)
    )
    first, second = a * c[0] - b * s[0], b * c[1] + a * s[1]
    if unbind_dim == -2:
        return torch.cat([first, second], -1)
    return torch.stack([first, second], -1).flatten(-2)


CASES: dict[str, tuple[CompiledFunction, Callable[..., Any], tuple[Any, ...]]] = {
    "rotary": (compiled_op.apply_rotary_emb, rotary, ((2, 3, 6, 8), (6, 8), (6, 8))),
    "rotary halves": (compiled_op.apply_rotary_emb, rotary, ((2, 3, 6, 8), (2, 1, 6, 8), (2, 1, 6, 8), -2)),
    "modulation": (
        compiled_op.silu_linear_chunk,
        lambda e, w, b, n: F.linear(F.silu(e), w, b).chunk(n, 1),
        ((4, 6), (9, 6), (9,), 3),
    ),
    "uneven chunks, no bias": (
        compiled_op.silu_linear_chunk,
        lambda e, w, b, n: F.linear(F.silu(e), w).chunk(n, 1),
        ((4, 6), (7, 6), None, 3),
    ),
    "norm": (
        compiled_op.layer_norm_mul_add,
        lambda x, a, s, n, eps, w, b: F.layer_norm(x, n, w, b, eps) * (1 + a[:, None]) + s[:, None],
        ((4, 6, 8), (4, 8), (4, 8), [8], 1e-3, (8,), (8,)),
    ),
    "norm without weights": (
        compiled_op.layer_norm_mul_add,
        lambda x, a, s, n: F.layer_norm(x, n) * (1 + a[:, None]) + s[:, None],
        ((4, 6, 8), (4, 8), (4, 8), [8]),
    ),
}


def arguments(case: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Any]:
    """Leaves for the shapes of a case; other arguments as they are."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(x, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        if type(x) is tuple
        else x
        for x in CASES[case][2]
    ]


def results(made: Any) -> list[torch.Tensor]:
    return list(made) if isinstance(made, (list, tuple)) else [made]


def gradients(made: Any, leaves: list[Any]) -> list[torch.Tensor]:
    loss = sum((y * torch.arange(y.numel(), dtype=y.dtype).sin().view(y.shape)).sum() for y in results(made))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    return list(torch.autograd.grad(loss, tensors))


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_on_plain_tensors(case: str) -> None:
    function, expected, _ = CASES[case]
    mine = arguments(case, torch.float64)
    made, wanted = function(*mine), expected(*mine)
    torch.testing.assert_close(results(made), results(wanted))
    torch.testing.assert_close(gradients(made, mine), gradients(wanted, mine))
    assert torch.autograd.gradcheck(lambda *a: tuple(results(function(*a))), mine)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ["rotary", "norm"])
def test_halves(case: str, dtype: torch.dtype) -> None:
    function, expected, _ = CASES[case]
    mine = arguments(case, dtype)
    made = function(*mine)
    assert made.dtype is dtype
    wide = [x.detach().float() if isinstance(x, torch.Tensor) else x for x in mine]
    torch.testing.assert_close(made.float(), expected(*wide), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "placements", [(Shard(0), Shard(1)), (Replicate(), Shard(-1)), (Partial(), Shard(0))]
)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_on_a_mesh(case: str, placements: tuple[Any, Any]) -> None:
    function = CASES[case][0]
    mine = arguments(case)
    theirs = [
        dtorch.Tensor(x, device_mesh=MESH, placements=placements if i == 0 else [Replicate()] * 2)
        if isinstance(x, torch.Tensor)
        else x
        for i, x in enumerate(arguments(case))
    ]
    for x in theirs:
        if isinstance(x, torch.Tensor):
            x.requires_grad_()
    made, wanted = function(*theirs), function(*mine)
    for y, z in zip(results(made), results(wanted), strict=True):
        torch.testing.assert_close(y.to_torch(), z)
    for y, z in zip(gradients(made, theirs), gradients(wanted, mine), strict=True):
        torch.testing.assert_close(y.to_torch(), z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_one_device_is_bit_equal(case: str) -> None:
    function = CASES[case][0]
    mine = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments(case)]
    one = dtorch.init_device_mesh("cpu", 1)
    theirs = [dtorch.Tensor(x, device_mesh=one) if isinstance(x, torch.Tensor) else x for x in mine]
    for y, z in zip(results(function(*theirs)), results(function.reference(*mine)), strict=True):
        assert torch.equal(y.to_torch(), z)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda f: f.apply_rotary_emb(*[torch.ones(3, 5)] * 3), "the last dim of x (3, 5) makes no pairs"),
        (lambda f: f.apply_rotary_emb(*[torch.ones(3, 4)] * 3, 1), "use_real_unbind_dim is -1 or -2, got 1"),
        (
            lambda f: f.apply_rotary_emb(torch.ones(3, 4), torch.ones(2, 4), torch.ones(3, 4)),
            "cos (2, 4) does not fit x (3, 4)",
        ),
        (
            lambda f: f.silu_linear_chunk(torch.ones(3), torch.ones(2, 3)),
            "emb is [batch, features], got (3,)",
        ),
        (lambda f: f.silu_linear_chunk(torch.ones(1, 3), torch.ones(2, 3), None, 0), "0 chunks"),
        (
            lambda f: f.layer_norm_mul_add(torch.ones(3, 4), *[torch.ones(3, 4)] * 2, [4]),
            "x is [batch, sequence, features]",
        ),
    ],
)
def test_errors(call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(dtorch.ShapeError) as caught:
        call(dtorch.nn.functional)
    assert text in str(caught.value)


@pytest.mark.compiler
@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("case", CASES)
def test_compiled(case: str, mode: str) -> None:
    """Under "exact" the same bits, compiled or not; under "fast" within the operator's tolerance."""
    function = CASES[case][0]
    mine = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments(case)]
    with dtorch.optimize(mode):
        before = results(function(*mine))
        region = function.region(*mine)
        compiled = region.wait(SECONDS)
        after = results(function(*mine))
    assert region.state in (("compiled", "refused") if mode == "exact" else ("compiled",)), region.why()
    if mode == "exact" or not compiled:
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    for a, b in zip(before, after, strict=True):
        assert a.stride() == b.stride()
        assert (a - b).abs().max() <= function.tolerance * a.abs().max()


def test_a_call_made_often_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "CALLS", 3)
    started: list[Any] = []
    monkeypatch.setattr(compiling.COMPILER, "start", started.append)
    x, angle = torch.ones(2, 10), torch.ones(2, 10)
    for _ in range(5):
        compiled_op.apply_rotary_emb(x, angle, angle)
    assert [region.name for region in started] == ["dtorch.compiled_op.apply_rotary_emb"]


def test_nothing_is_compiled_when_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "CALLS", 1)
    monkeypatch.setattr(compiling.COMPILER, "start", pytest.fail)
    with dtorch.optimize("off"):
        compiled_op.apply_rotary_emb(*[torch.ones(3, 10)] * 3)


def test_names() -> None:
    for name in ("apply_rotary_emb", "silu_linear_chunk", "layer_norm_mul_add"):
        assert getattr(dtorch.compiled_op, name) is getattr(dtorch.nn.functional, name)
        assert getattr(torch.ops.dtorch, name).default is getattr(compiled_op, name).operator


def test_prices() -> None:
    mesh = dtorch.init_device_mesh("cpu", 2)
    emb, weight = (dtorch.ones(*shape, device_mesh=mesh) for shape in ((4, 6), (9, 6)))
    x, angle = (dtorch.ones(*shape, device_mesh=mesh) for shape in ((2, 3, 4, 8), (4, 8)))
    with dtorch.record() as graph:
        compiled_op.silu_linear_chunk(emb, weight, None, 3)
        compiled_op.apply_rotary_emb(x, angle, angle)
    linear, turn = graph.operators
    assert linear.describe() == "SiluLinearChunk([4, 6] x [9, 6] -> [4, 3], [4, 3], [4, 3], chunks=3)"
    assert linear.get_operator_cost() == dtorch.OperatorCost.compute(2 * 4 * 6 * 9)
    assert turn.get_operator_cost() == dtorch.OperatorCost.memory(4 * (2 * 2 * 3 * 4 * 8 + 2 * 4 * 8))
