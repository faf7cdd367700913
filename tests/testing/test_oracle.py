"""The judge judged: deliberately wrong rules are caught, missing ones are seen, true ones pass."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dtorch.graph.constructor import GraphConstructor
from dtorch.op import registry
from dtorch.op.operator import Operator
from dtorch.op.param import TorchCall
from dtorch.op.signature import PlacementSignature, Row
from dtorch.testing import Call, Verdict, assert_rules, calls_in, judge, judge_call
from dtorch.testing.samples import Values

aten = torch.ops.aten
R = Values(7)


def call(func: Any, *args: Any, **kwargs: Any) -> Call:
    return Call.of(func, *args, **kwargs)


def cases() -> dict[str, Call]:
    """Calls whose rules are true."""
    return {
        "abs": call(aten.abs.default, R.constant(4, 5)),
        "add": call(aten.add.Tensor, R.constant(4, 5), R.constant(5)),
        "mul": call(aten.mul.Tensor, R.constant(4, 5), R.constant(4, 5)),
        "mm": call(aten.mm.default, R.constant(4, 5), R.constant(5, 7)),
        "addmm": call(aten.addmm.default, R.constant(7), R.constant(4, 5), R.constant(5, 7), beta=2, alpha=3),
        "clamp_": call(aten.clamp_.default, R.constant(4, 5), -0.5, 0.5),
        "where": call(aten.where.self, R.mask(5), R.constant(4, 5), R.constant(4, 1)),
        "view": call(aten.view.default, R.constant(4, 5, 6), [4, 30]),
        "cast": call(aten._to_copy.default, R.constant(4, 5).float(), dtype=torch.float64),
        "amax": call(aten.amax.default, R.constant(4, 5), [1]),
        "softmax": call(aten._softmax.default, R.constant(4, 5), 1, False),
        "nonzero": call(aten.nonzero.default, R.mask(4, 5)),
    }


CASES = cases()


@pytest.fixture
def forget() -> Iterator[None]:
    """Recipes built under a changed rule must not outlive the test."""
    GraphConstructor._recipes.clear()
    yield
    GraphConstructor._recipes.clear()


@pytest.mark.parametrize(
    "accident",
    [
        call(aten.maximum.default, R.positive(4, 5).detach() + 99, torch.tensor(1e-9, dtype=torch.float64)),
        call(aten.mm.default, R.constant(4, 5) * 1e-30, R.constant(5, 7)),
        call(aten.mul.Tensor, R.constant(2, 3, 2), torch.full((2, 3, 1), 2)),
    ],
    ids=["larger than all", "next to nothing", "all alike"],
)
def test_rules_that_hold_for_certain_values_are_not_missing(accident: Call) -> None:
    assert judge_call(accident).missing == []


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex32])
def test_pending_sums_of_narrow_numbers_add_up_to_the_value(dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    cast = call(aten._to_copy.default, R.constant(2, 3, 5).to(dtype), dtype=wide)
    assert all(judge_call(cast, seed=seed).wrong == [] for seed in range(8))


@pytest.mark.parametrize("name", CASES)
def test_true_rules_pass(name: str) -> None:
    verdict = judge_call(CASES[name])
    assert (verdict.wrong, verdict.missing) == ([], [])
    assert verdict.listed >= 1


# A rule added to a true table: (call, inputs, outputs).
WRONG = [
    ("abs", ("P",), ("P",)),
    ("abs", (0,), (1,)),
    ("abs", (0,), ("R",)),
    ("abs", (1,), ("P",)),
    ("add", ("P", "R"), ("P",)),
    ("add", (0, 0), (0,)),
    ("mul", ("P", "P"), ("P",)),
    ("mul", (0, 1), (0,)),
    ("mm", (1, "R"), ("P",)),
    ("mm", ("P", "P"), ("P",)),
    ("mm", (1, 0), ("R",)),
    ("mm", (0, "R"), (1,)),
    ("addmm", ("R", 1, 0), ("P",)),
    ("addmm", ("R", "P", "R"), ("P",)),
    ("clamp_", ("P",), ("P",)),
    ("where", ("R", "P", "R"), ("P",)),
    ("cast", ("P",), ("R",)),
    ("amax", (1,), ("P",)),
    ("amax", ("P",), ("P",)),
    ("softmax", ("P",), ("P",)),
    ("softmax", (1,), ("R",)),
]


def with_row(cls: type[Operator], row: Row) -> Callable[[Operator], PlacementSignature]:
    true = cls.get_placement_signature

    def get_placement_signature(self: Operator) -> PlacementSignature:
        table = true(self)
        others = [r for r in table.rows if r.inputs != row.inputs]
        return PlacementSignature(table.n_inputs, table.n_outputs, [*others, row])

    return get_placement_signature


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(("name", "inputs", "outputs"), WRONG)
def test_a_wrong_rule_is_caught(
    name: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = CASES[name].operator_class
    monkeypatch.setattr(cls, "get_placement_signature", with_row(cls, Row(inputs, outputs)))
    verdict = judge_call(CASES[name], meshes=((2,),))
    wanted = f"{', '.join(map(text, inputs))} -> {', '.join(map(text, outputs))}"
    assert [finding for finding in verdict.wrong if finding.rule == wanted], str(verdict)


def text(role: int | str) -> str:
    return f"S({role})" if isinstance(role, int) else role


@pytest.mark.usefixtures("forget")
def test_a_missing_rule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = CASES["mm"].operator_class
    true = cls.get_placement_signature

    def fewer(self: Operator) -> PlacementSignature:
        table = true(self)
        return PlacementSignature(2, 1, [row for row in table.rows if row.outputs != ("P",)])

    monkeypatch.setattr(cls, "get_placement_signature", fewer)
    verdict = judge_call(CASES["mm"], meshes=((2,),))
    assert {finding.rule for finding in verdict.missing} == {"S(1), S(0) -> P", "R, P -> P", "P, R -> P"}
    assert verdict.wrong == []
    with pytest.raises(AssertionError, match=r"missing  on \[2\]  S\(1\), S\(0\) -> P"):
        assert_rules(CASES["mm"], meshes=((2,),))
    assert_rules(CASES["mm"], meshes=((2,),), missing=False)


def test_a_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    """The rules are true, the local call is not: a view that keeps the global sizes."""
    cls = CASES["view"].operator_class
    monkeypatch.setattr(cls, "localize", lambda self, coord: self.localized(coord, size=[4, 30]))
    assert any("S(0) -> S(0)" in finding.rule for finding in judge_call(CASES["view"]).wrong)


def test_a_changed_input_is_caught(monkeypatch: pytest.MonkeyPatch, forget: None) -> None:
    cls = CASES["abs"].operator_class

    def compute(self: Operator, inputs: Any, outputs: Any, local: Any) -> None:
        outputs[:] = [inputs[0].abs_().clone()]

    monkeypatch.setattr(cls, "compute", compute)
    assert any("input 0 was changed" in finding.why for finding in judge_call(CASES["abs"]).wrong)


@torch.library.custom_op("dtorch_oracle::twice", mutates_args=())
def twice(x: torch.Tensor, scale: float) -> torch.Tensor:
    """An operator of a user: 2 x * scale along rows, plus the row's own sum."""
    return 2 * x * scale + x.sum(1, keepdim=True)


twice.register_fake(lambda x, scale: torch.empty_like(x))
twice.register_autograd(
    lambda ctx, grad: (2 * grad * ctx.scale + grad.sum(1, keepdim=True), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "scale", inputs[1]),
)


def judge_users(signature: Callable[[Operator], PlacementSignature] | None) -> Verdict:
    cls = registry.torch_operators().get("dtorch_oracle.twice")
    if cls is None:
        cls = type("OracleTwice", (Operator,), {"torch_ops": ("dtorch_oracle.twice",)})
    cls.get_placement_signature = signature or Operator.get_placement_signature  # type: ignore[method-assign]
    GraphConstructor._recipes.clear()
    return judge(torch.ops.dtorch_oracle.twice.default, R.constant(4, 5), 1.5)


def table(*rows: tuple[Any, Any]) -> Callable[[Operator], PlacementSignature]:
    def get_placement_signature(self: Operator) -> PlacementSignature:
        builder = PlacementSignature.builder(1, 1)
        for given, result in rows:
            builder.add_input(given).add_output(result).build()
        return builder.finish()

    return get_placement_signature


def test_an_operator_of_a_user() -> None:
    verdict = judge_users(table(("S0", "S0"), ("P", "P")))
    assert (verdict.listed, verdict.wrong, verdict.missing) == (3, [], [])
    verdict = judge_users(table(("S0", "S0"), ("S1", "S1")))
    assert {finding.rule for finding in verdict.wrong} >= {"S(1) -> S(1)"}
    assert {finding.rule for finding in verdict.missing} == {"P -> P"}
    verdict = judge_users(None)
    assert {finding.rule for finding in verdict.missing} == {"S(0) -> S(0)", "P -> P"}


def test_a_wrong_gradient_is_caught() -> None:
    """Autograd over an operator whose backward is not linear in what the rule says."""
    verdict = judge_call(CASES["mul"], backward=True)
    assert verdict.wrong == []
    # The same call, with a reference whose gradient is another one.
    from dtorch.mesh import DeviceMesh
    from dtorch.testing.engine import Reference
    from dtorch.testing.local import Bench

    reference = Reference(CASES["mul"])
    assert reference.gradients[1] is not None
    reference.gradients[1] = reference.gradients[1] + 1e-6
    bench = Bench(CASES["mul"], DeviceMesh("cpu", [0, 1]))
    why = reference.wrong(bench.layouts([(0,), (0,)]), bench.mesh)
    assert why is not None
    assert "gradient 1: 20 of 20 values differ" in why


def test_calls_of_a_program_are_taken_down() -> None:
    x, w = R(4, 5), R(5, 7)

    def program() -> None:
        (x @ w).relu().sum().backward()

    ops = [found.param.op for found in calls_in(program) if isinstance(found.param, TorchCall)]
    assert [op for op in ops if "detach" not in op][:3] == [
        "aten.mm.default",
        "aten.relu.default",
        "aten.sum.default",
    ]
    assert "aten.threshold_backward.default" in ops
    assert ops.count("aten.mm.default") == 3


def test_a_verdict_reads_well() -> None:
    verdict = judge(aten.cumsum.default, R.constant(4, 5), 1)
    assert str(verdict).startswith("aten.cumsum.default([4, 5], dim=1): ")
    assert "rules, " in str(verdict)
