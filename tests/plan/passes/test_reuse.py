"""Results written over operands that die: the same bits, and nothing seen that should not be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, OperatorError, Replicate, Shard
from dtorch.op.operand import Failed
from dtorch.plan import cache, codegen
from dtorch.plan.passes import reuse

MESH = DeviceMesh("cpu", [0, 1])
FULL = torch.linspace(0.1, 0.9, 4 * 6).reshape(4, 6)
CALLS: dict[str, Any] = {
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y, value=0.3),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.3),
    "clamp": lambda x, y: x.clamp(0.2, 0.6),
    "clamp_max": lambda x, y: x.clamp_max(0.6),
    "clamp_min": lambda x, y: x.clamp_min(0.2),
    "gelu": lambda x, y: torch.nn.functional.gelu(x),
    "gelu_backward": lambda x, y: torch.ops.aten.gelu_backward(x, y),
    "hardtanh": lambda x, y: torch.nn.functional.hardtanh(x, -0.5, 0.5),
    "leaky_relu": lambda x, y: torch.nn.functional.leaky_relu(x, 0.1),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "pow": lambda x, y: x.pow(1.7),
    "sigmoid_backward": lambda x, y: torch.ops.aten.sigmoid_backward(x, y),
    "silu": lambda x, y: torch.nn.functional.silu(x),
    "silu_backward": lambda x, y: torch.ops.aten.silu_backward(x, y),
    "tanh_backward": lambda x, y: torch.ops.aten.tanh_backward(x, y),
    "threshold_backward": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.3),
    **{name: getattr(torch, name) for name in ("add", "div", "maximum", "minimum", "mul", "sub")},
}


def call(name: str, x: Any, y: Any) -> Any:
    function = CALLS.get(name)
    return function(x, y) if function else getattr(torch, name)(x)


def reused(plans: list[Any]) -> int:
    return sum(change.by == "reuse" for plan in plans for change in plan.rewritten.changes)


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize("name", sorted(n.removeprefix("aten.") for n in reuse.ELEMENT_WISE))
def test_every_operator_keeps_every_bit(graph: dtorch.Graph, name: str, placement: Any) -> None:
    x = dtorch.Tensor(FULL, MESH, [placement], graph=graph)
    expected = call(name, FULL * FULL, FULL + FULL)
    with cache.watched() as plans:
        for _ in range(3):
            found = call(name, x * x, x + x)
            assert torch.equal(found.to_torch(), expected)
    assert reused(plans[-1:]) == 1


def keeps(x: Any) -> Any:
    a = x * x
    return a, a.exp()


def keeps_a_view(x: Any) -> Any:
    a = x * x
    return a.t(), a.exp()


def reads_later(x: Any) -> Any:
    a = x * x
    b = a.exp()
    return b.mm(a.t())


def reads_a_view_beside(x: Any) -> Any:
    a = x @ x.t()
    return torch.add(a, a.t()).mm(x)


def changes_dtype(x: Any) -> Any:
    return torch.add((x * x), x.double()).sum(0)


def broadcasts(x: Any) -> Any:
    return (x[:1] * x[:1]) + x


@pytest.mark.parametrize(
    "function", [keeps, keeps_a_view, reads_later, reads_a_view_beside, changes_dtype, broadcasts]
)
def test_what_is_still_looked_at_is_left_alone(graph: dtorch.Graph, function: Any) -> None:
    x = dtorch.Tensor(FULL, MESH, [Replicate()], graph=graph)
    expected = function(FULL)
    with cache.watched() as plans:
        for _ in range(3):
            found = function(x)
            graph.sync()
            if isinstance(found, tuple):
                for mine, theirs in zip(found, expected, strict=True):
                    assert torch.equal(mine.to_torch(), theirs)
            else:
                assert torch.equal(found.to_torch(), expected)
    assert not reused(plans)


def test_small_results_are_left_alone(graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "MIN_BYTES", 2**16)
    x = dtorch.Tensor(FULL, MESH, [Replicate()], graph=graph)
    with cache.watched() as plans:
        for _ in range(2):
            (x * x).exp().to_torch()
    assert not reused(plans)


def test_an_interrupt_behind_the_write_leaves_no_wrong_value(
    graph: dtorch.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the call that wrote and the line that takes its result, the operand is neither old nor new."""
    x = dtorch.Tensor(FULL, MESH, [Replicate()], graph=graph)
    armed: list[bool] = []

    def interrupting(func: Any, args: Any, kwargs: Any, specs: Any) -> Any:
        found = function_of(func, args, kwargs, specs)

        def written(*args: Any, **kwargs: Any) -> Any:
            made = found(*args, **kwargs)
            if armed:
                armed.clear()
                raise KeyboardInterrupt
            return made

        return written if "out" in kwargs else found

    function_of = codegen.function_of
    monkeypatch.setattr(codegen, "function_of", interrupting)
    with cache.watched():
        for _ in range(2):
            first, second = x * 3, (x * x).exp()
            graph.sync()
        assert torch.equal(second.to_torch(), (FULL * FULL).exp())
        first, second = x * 3, (x * x).exp()
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            graph.sync()
    assert torch.equal(first.to_torch(), FULL * 3)
    with pytest.raises(OperatorError, match="interrupted while Exp"):
        second.to_torch()
    assert isinstance(second._operand.parts, Failed)
