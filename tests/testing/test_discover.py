"""Rules found by trial: right ones, all of them, used once accepted; what trial cannot tell is said."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import dtorch
from dtorch import OperatorError, Partial, Replicate, Shard
from dtorch.op import registry
from dtorch.op.dims import concretize
from dtorch.op.operator import Operator
from dtorch.testing import judge
from dtorch.testing.calls import Call
from dtorch.testing.notation import dims_of
from dtorch.testing.oracle import judge_call

GRID = dtorch.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def made(name: str, schema: str, kernel: Any, fake: Any = None) -> Any:
    """A new operator of torch."""
    op = torch.library.custom_op(f"trial::{name}", kernel, mutates_args=(), schema=schema)
    if fake is not None:
        op.register_fake(fake)
    return op


same = lambda x, *rest: torch.empty_like(x)  # noqa: E731
dots = made("dots", "(Tensor x, Tensor z) -> Tensor", lambda x, z: x @ z.T, lambda x, z: x @ z.T)
unit = made("unit", "(Tensor x, int dim) -> Tensor", lambda x, dim: x / x.norm(dim=dim, keepdim=True), same)
curve = made("curve", "(Tensor x) -> Tensor", lambda x: x.sin() + x, same)
shift = made(
    "shift", "(Tensor x, Tensor? b, float s) -> Tensor",
    lambda x, b, s: x * s if b is None else x * s + b, same,
)  # fmt: skip
pair = made(
    "pair", "(Tensor x) -> (Tensor, Tensor)", lambda x: (x.sum(0), x.t().contiguous()),
    lambda x: (x.new_empty(x.shape[1]), x.new_empty(x.shape[1], x.shape[0])),
)  # fmt: skip
joined = made(
    "joined",
    "(Tensor[] parts) -> Tensor",
    lambda parts: torch.cat(parts, 1),
    lambda parts: torch.cat(parts, 1),
)
largest = made("largest", "(Tensor x) -> Tensor", lambda x: x.amax(1), lambda x: x.amax(1))
spread = made("spread", "(Tensor x) -> Tensor", lambda x: x.softmax(0).cumsum(1), same)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


FOUND = {
    "dots": (dots, (normal(4, 6), normal(5, 6)), "x[a b], z[c b] -> y[a c]", ("x", "z")),
    "unit of rows": (unit, (normal(4, 6), 1), "x[a b!] -> y[a b!]", ()),
    "unit of columns": (unit, (normal(4, 6), 0), "x[b! a] -> y[b! a]", ()),
    "curve": (curve, (normal(4, 5, 7),), "x[a b c] -> y[a b c]", ()),
    "shift without": (shift, (normal(4, 5), None, 3.0), "x[a b] -> y[a b]", ("x",)),
    "pair": (pair, (normal(4, 5),), "x[a b] -> y0[b], y1[b a]", None),
    "joined": (joined, ([normal(4, 5), normal(4, 7)],), None, None),
    "largest": (largest, (normal(4, 5),), "x[a b!] -> y[a]", ()),
    "spread": (spread, (normal(4, 5),), "x[a! b!] -> y[a! b!]", ()),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_is_what_the_judge_finds(name: str) -> None:
    """A class with these rules has none that is wrong, and misses none."""
    op, example, line, linear = FOUND[name]
    rules = dtorch.discover_rules(op, example)
    (signature,) = rules.signatures()
    call = Call.of(op._opoverload, *example)

    class Tried(Operator, abstract=True):
        def get_placement_signature(self) -> Any:
            return signature

    verdict = judge_call(call, operator_class=Tried, engine=False)
    assert not verdict.wrong, str(verdict)
    assert not verdict.missing, str(verdict)
    dims = dims_of(call, signature)
    if linear is not None:
        assert dims == (line, linear, None)
        shapes = [x.shape for x in call.inputs if x is not None]
        meant = concretize(dims.line, shapes, dims.linear).signature()
        assert {row.outputs for row in meant.rows} == {row.outputs for row in signature.rows}
        assert line in str(rules)


def test_accepted_rules_are_used_for_calls_like_the_examples() -> None:
    op = made("used", "(Tensor x, float s) -> Tensor", lambda x, s: (x * s).clone(), same)
    x = dtorch.Tensor(normal(6, 4), device_mesh=GRID, placements=[Shard(0), Partial()])
    whole = [Replicate(), Replicate()]
    assert op(x, 2.0).placements == whole
    rules = dtorch.discover_rules(op, (normal(5, 4), 2.0), (normal(4, 6), 2.0))
    assert op(x, 2.0).placements == whole
    assert rules.accept() is rules
    y = op(x, 2.0)
    assert y.placements == [Shard(0), Partial()]
    assert torch.equal(y.to_torch(), x.to_torch() * 2)
    narrow = dtorch.Tensor(normal(6, 4).float(), device_mesh=GRID, placements=[Shard(0), Partial()])
    assert op(narrow, 2.0).placements == [Shard(0), Partial()]
    for other in (op(x, 3.0), op(x.unsqueeze(0), 2.0), op(x[:1], 2.0)):
        assert other.placements == whole
    dtorch.discover_rules(op, (normal(5, 4), 3.0)).accept()
    assert op(x, 3.0).placements == op(x, 2.0).placements == [Shard(0), Partial()]
    assert not judge(op._opoverload, normal(4, 5), 2.0).wrong


def test_gradients_go_through_accepted_rules() -> None:
    op = made("curved", "(Tensor x) -> Tensor", lambda x: x.sin(), same)
    op.register_autograd(
        lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    dtorch.discover_rules(op, normal(4, 5)).accept()
    verdict = judge(op._opoverload, normal(4, 5))
    assert (verdict.listed, verdict.wrong, verdict.missing) == (3, [], [])
    x = dtorch.Tensor(normal(6, 4), device_mesh=GRID, placements=["S0", "S1"], requires_grad=True)
    op(x).sum().backward()
    assert x.grad is not None
    assert x.grad.placements == [Shard(0), Shard(1)]
    assert torch.allclose(x.grad.to_torch(), normal(6, 4).cos())


def test_a_rule_must_hold_in_every_example() -> None:
    """Blocks of 2 rows are cut by chance in 8 rows over 2 devices, not in 10."""
    op = made(
        "blocks", "(Tensor x) -> Tensor",
        lambda x: torch.cat([b - b.mean(0) for b in x.split(2)]) if len(x) else x.clone(), same,
    )  # fmt: skip
    (row,) = dtorch.discover_rules(op, normal(12, 5)).signatures()[0].rows[1:2]
    assert row.inputs == (0,)
    rows = dtorch.discover_rules(op, normal(12, 5), normal(10, 5)).signatures()[0].rows
    assert (0,) not in [r.inputs for r in rows]
    assert (1,) in [r.inputs for r in rows]


DOUBTS = {
    "equal sizes": ((normal(5, 5),), "dims 0 and 1 of x have one size in every example"),
    "small sizes": ((normal(2, 5),), r"dims \[0\] of x are smaller than 3 in every example"),
    "zeros": ((torch.zeros(4, 5),), "values are not generic"),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_what_examples_cannot_tell_is_said(name: str) -> None:
    example, text = DOUBTS[name]
    with pytest.warns(UserWarning, match=text):
        rules = dtorch.discover_rules(curve, example)
    assert "note: " in str(rules)


def test_another_example_settles_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dtorch.discover_rules(curve, normal(5, 5), normal(4, 5)).notes == []


noisy = made("noisy", "(Tensor x) -> Tensor", lambda x: x + torch.rand(()), same)
unknown = made("unknown", "(Tensor x) -> Tensor", lambda x: x + 1)
lying = made("lying", "(Tensor x) -> Tensor", lambda x: x + 1, lambda x: x.new_empty(3))
writing = torch.library.custom_op(
    "trial::writing", lambda x: x.zero_() and None, mutates_args=("x",), schema="(Tensor(a!) x) -> ()"
)
REFUSED: dict[str, tuple[Any, tuple, str]] = {
    "not deterministic": (noisy, (normal(4, 5),), "trial.noisy is not deterministic"),
    "no fake kernel": (unknown, (normal(4, 5),), "no fake kernel .* register_fake gives it one"),
    "a fake kernel that errs": (lying, (normal(4, 5),), "its fake kernel says"),
    "writes": (writing, (normal(4, 5),), "writes its arguments"),
    "has rules": (torch.ops.aten.mm, (normal(4, 5), normal(5, 6)), "has rules already, those of Matmul"),
    "element-wise by tag": (torch.ops.aten.sin.default, (normal(4),), "has rules already"),
    "draws": (torch.ops.aten.rrelu_with_noise.default, (normal(4), normal(4)), "writes its arg|random"),
    "no tensor": (dots, (), "the example has no tensor|missing"),
    "no operator": (torch.sin, (normal(4),), "is no operator of torch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    op, example, text = REFUSED[name]
    with pytest.raises((OperatorError, RuntimeError), match=text):
        dtorch.discover_rules(op, example)


def test_no_example() -> None:
    with pytest.raises(OperatorError, match="give an example of a call"):
        dtorch.discover_rules(curve)


def test_discovered_operators_are_of_one_type() -> None:
    op = made("typed", "(Tensor x) -> Tensor", lambda x: x.sin(), same)
    dtorch.discover_rules(op, normal(4, 5)).accept()
    cls = registry.class_of(op._opoverload)
    assert (cls.type, cls.__name__) == ("Discovered", "Typed")
    x = dtorch.Tensor(normal(4, 5), device_mesh=GRID)
    with dtorch.record() as graph:
        op(x)
    assert graph.operators[0].describe() == "Typed([4, 5] -> [4, 5])"
    assert Operator.from_bytes(graph.operators[0].to_bytes()).describe() == graph.operators[0].describe()
