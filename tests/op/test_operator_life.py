"""The life of an operator: every step a subclass may fill in is asked, in its place, and refusals say why."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch

import dtorch
from dtorch import DeviceMesh, Layout, Partial, Replicate, Shard
from dtorch.errors import OperatorError, PlacementError
from dtorch.graph.logical_graph import LogicalGraph
from dtorch.op import registry
from dtorch.op.call import OutputMeta
from dtorch.op.cost import OperatorCost
from dtorch.op.operator import Dims, Operator
from dtorch.op.param import OpParam, Slot, TorchCall
from dtorch.op.signature import PlacementSignature
from dtorch.op.stream import StreamKey
from dtorch.operators import OperatorFactory, add_operator, operand
from dtorch.runtime.runner import LocalRunner
from tests.op_life import CLIP, MESH, ONE, OTHER, LifeClip, X, made, on, variant


@pytest.fixture
def record() -> Iterator[LogicalGraph]:
    with dtorch.Graph.default_graph().record() as graph:
        yield graph


# -- the order of steps


def test_steps_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noting(step: str) -> Callable[..., Any]:
        true = getattr(LifeClip, step)

        def noted(self: Operator, *args: Any) -> Any:
            asked.append(step)
            return true(self, *args)

        return noted

    steps = [
        "infer_output",
        "check_input",
        "require_input_same_dtype",
        "check_input_same_dtype",
        "check_input_all_distributed_or_not",
        "check_input_same_device_mesh",
        "check_input_distributed_spec",
        "infer_output_meta_info",
        "infer_output_size",
        "skip_placement_inference",
        "infer_output_placements",
        "get_placement_signature",
        "infer_operator_assign_info",
        "update_operand_topology",
    ]
    for step in steps:
        monkeypatch.setattr(LifeClip, step, noting(step))
    OperatorFactory.new_operator(CLIP, [operand(on(MESH, Shard(0)))])
    assert asked == steps


# -- each step overridden


def test_infer_output_meta_info_is_honoured() -> None:
    def rows(self: Operator) -> list[OutputMeta | None]:
        return [OutputMeta((4,), (1,), torch.float32)]

    def compute(self: Operator, inputs: Any, outputs: list[Any], local: Any) -> None:
        outputs[:] = [inputs[0].sum(1)]

    def signature(self: Operator) -> PlacementSignature:
        return PlacementSignature.builder(1, 1).add_input("S0").add_output("S0").build().finish()

    _, param = variant(
        "LifeRowSum", infer_output_meta_info=rows, compute=compute, get_placement_signature=signature
    )
    y = add_operator(param, on(MESH, Shard(0)))
    assert y.placements == [Shard(0)]
    assert torch.equal(y.to_torch(), X.sum(1))


def test_what_was_inferred_is_compared_with_what_comes_out() -> None:
    def wrong(self: Operator) -> list[OutputMeta | None]:
        return [OutputMeta((4, 5), (5, 1), torch.float64)]

    _, param = variant("LifeWrongMeta", infer_output_meta_info=wrong)
    with pytest.raises(
        OperatorError,
        match=r"output 0 at \(0,\) is \(2, 5\) torch.float32, its layout says \(2, 5\) torch.float64",
    ):
        add_operator(param, on(MESH, Shard(0)))


def test_describe_is_honoured() -> None:
    cls, param = variant("LifeDescribed", describe=lambda self: "clip to [-2, 3]")
    assert made(on(MESH), cls=cls, param=param).describe() == "clip to [-2, 3]"


@pytest.mark.parametrize(
    ("call", "inputs", "text"),
    [
        (("aten.add.Tensor", (Slot(0), Slot(1))), [(4, 8), (8,)], "Add([4, 8] x [8] -> [4, 8])"),
        (("aten.add.Tensor", (Slot(0), 2.0)), [(4, 8)], "Add([4, 8] -> [4, 8], other=2.0)"),
        (
            ("aten.sum.dim_IntList", (Slot(0), [0, 1], True)),
            [(2, 3)],
            "Sum([2, 3] -> [1, 1], dim=[0, 1], keepdim=True)",
        ),
    ],
)
def test_describe_by_default(call: Any, inputs: list[Any], text: str) -> None:
    param = TorchCall(call[0], call[1], {})
    operator = OperatorFactory.new_operator(param, [operand(on(MESH, of=torch.randn(s))) for s in inputs])
    assert operator.describe() == text


def test_infer_output_size_is_honoured(record: LogicalGraph) -> None:
    def two(self: Operator) -> list[OutputMeta | None]:
        spec = self.inputs[0].spec  # type: ignore[union-attr]
        return [OutputMeta(spec.shape, spec.stride, spec.dtype)] * 2

    def compute(self: Operator, inputs: Any, outputs: list[Any], local: Any) -> None:
        outputs[:] = [inputs[0] + 1, inputs[0] - 1]

    def signature(self: Operator) -> PlacementSignature:
        return (
            PlacementSignature.builder(1, 2)
            .add_input("S0")
            .add_output("S0")
            .add_output("S0")
            .build()
            .finish()
        )

    steps = {"infer_output_meta_info": two, "compute": compute, "get_placement_signature": signature}
    _, param = variant("LifeTwo", infer_output_size=lambda self: 2, **steps)
    more, less = add_operator(param, on(MESH, Shard(0)))
    assert torch.equal(more.to_torch(), X + 1)
    assert torch.equal(less.to_torch(), X - 1)
    # The base says one output, for operators that are no torch call.
    cls, param = variant("LifeTwoByMistake", **steps)
    with pytest.raises(PlacementError, match="LifeTwoByMistake gives 2 outputs, its rule says 1"):
        made(on(MESH), cls=cls, param=param).infer()


def test_no_output() -> None:
    seen = []

    def compute(self: Operator, inputs: Any, outputs: list[Any], local: Any) -> None:
        seen.append(local.coord)

    _, param = variant(
        "LifeSink",
        infer_output_meta_info=lambda self: [],
        infer_output_size=lambda self: 0,
        get_placement_signature=lambda self: (
            PlacementSignature.builder(1, 0).add_input("S0").build().finish()
        ),
        compute=compute,
    )
    assert add_operator(param, on(MESH, Shard(0))) == ()
    assert seen == [(0,), (1,)]


def test_skip_placement_inference_is_honoured() -> None:
    def never(self: Operator) -> PlacementSignature:
        raise AssertionError("asked")

    cls, param = variant(
        "LifeSkips", skip_placement_inference=lambda self: True, get_placement_signature=never
    )
    operator = made(on(MESH), cls=cls, param=param)
    operator.infer()
    assert operator.outputs[0].layout is Layout.replicate((2,), (4, 5))  # type: ignore[union-attr]


def test_placement_inference_is_skipped_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(on(ONE)).skip_placement_inference()
    assert not made(on(MESH)).skip_placement_inference()
    monkeypatch.delattr(LifeClip, "get_placement_signature")
    made(on(ONE)).infer()


def test_get_placement_signature_is_honoured() -> None:
    rows = PlacementSignature.builder(1, 1).add_input("S1").add_output("S1").build().finish()
    cls, param = variant("LifeColumns", get_placement_signature=lambda self: rows)
    good, bad = on(MESH, Shard(1)), on(MESH, Shard(0))
    operator = made(good, cls=cls, param=param)
    operator.infer()
    assert operator.outputs[0].layout is operand(good).layout  # type: ignore[union-attr]
    with pytest.raises(PlacementError, match=r"LifeColumns\(\[4, 5\] -> \[4, 5\], .* has no rule for"):
        made(bad, cls=cls, param=param).infer()


def test_by_default_only_whole_inputs_are_legal(record: LogicalGraph) -> None:
    _, param = variant("LifeWhole", get_placement_signature=Operator.get_placement_signature)
    y = add_operator(param, on(MESH, Shard(0)))
    assert y.placements == [Replicate()]
    assert torch.equal(y.to_torch(), X.clamp(-2, 3))
    assert [c.implicit for c in record.communications() if c.kind == "all_gather"] == [True]


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1), Partial()], ids=str)
def test_compute_is_honoured(placement: Any) -> None:
    y = add_operator(CLIP, on(MESH, placement))
    assert torch.equal(y.to_torch(), X.clamp(-2, 3))
    assert y.placements == [Replicate() if placement.is_partial() else placement]


def test_compute_by_default_calls_torch() -> None:
    param = TorchCall("aten.clamp.default", (Slot(0), -2, 3), {})
    operator = OperatorFactory.new_operator(param, [operand(on(MESH, Shard(0)))])
    outputs: list[Any] = []
    operator.compute([X[:2]], outputs, operator.localize((0,)))
    assert torch.equal(outputs[0], X[:2].clamp(-2, 3))


def test_an_operator_without_compute_says_so() -> None:
    _, param = variant("LifeIdle", compute=Operator.compute)
    with pytest.raises(NotImplementedError, match="LifeIdle has no compute"):
        add_operator(param, on(MESH))


def test_localize_is_honoured() -> None:
    """Each device's call may differ: here by what is added."""

    class LifeNumbered(Operator):
        def get_placement_signature(self) -> PlacementSignature:
            return PlacementSignature.builder(1, 1).add_input("S0").add_output("S0").build().finish()

        def localize(self, coord: tuple[int, ...]) -> Any:
            return self.localized(coord, other=100.0 * coord[0])

    operator = LifeNumbered(
        TorchCall("aten.add.Tensor", (Slot(0), 1.0), {"alpha": 2}), [operand(on(MESH, Shard(0)))]
    )
    operator.infer()
    runner = LocalRunner()
    (found,) = runner.run(runner.prepare(operator, operator.layouts), [operand(on(MESH, Shard(0))).parts])
    assert torch.equal(found[0], X[:2])
    assert torch.equal(found[1], X[2:] + 200)


def test_arguments_are_replaced_by_name() -> None:
    call = TorchCall("aten.add.Tensor", (Slot(0), 1.0), {"alpha": 2})
    local = made(on(MESH), param=call).localized((1,), alpha=3, other=7.0)
    assert (local.args, local.kwargs, local.coord) == ((Slot(0), 7.0), {"alpha": 3}, (1,))
    local = made(on(MESH), param=TorchCall("aten.add.Tensor", (Slot(0), 1.0), {})).localized((0,), alpha=3)
    assert (local.args, local.kwargs) == ((Slot(0), 1.0), {"alpha": 3})


def test_needs_siblings_is_honoured() -> None:
    """The kernel combines the shards' sums itself."""

    def compute_group(self: Operator, inputs: Any, outputs: Any, group: Any) -> None:
        totals = group.all_reduce([x.sum() for (x,) in inputs], (0,), "sum")
        for (x,), out, total in zip(inputs, outputs, totals, strict=True):
            out[:] = [x / total]

    positive = X.abs() + 1
    _, param = variant("LifeShare", needs_siblings=True, compute_group=compute_group)
    for placement in (Shard(0), Shard(1)):
        y = add_operator(param, on(MESH, placement, of=positive))
        assert y.placements == [placement]
        torch.testing.assert_close(y.to_torch(), positive / positive.sum())
    _, param = variant("LifeShareByMistake", needs_siblings=True)
    with pytest.raises(
        NotImplementedError, match="LifeShareByMistake says needs_siblings but has no compute_group"
    ):
        add_operator(param, on(MESH, Shard(0)))


def test_require_input_same_dtype_is_honoured() -> None:
    inputs = [on(MESH), on(MESH, of=X.double())]
    two = {"get_placement_signature": lambda self: PlacementSignature.builder(2, 1).finish()}
    cls, param = variant("LifeStrictTypes", **two)
    with pytest.raises(
        TypeError,
        match=r"LifeStrictTypes wants inputs of one dtype, got \['torch.float32', 'torch.float64'\]",
    ):
        made(*inputs, cls=cls, param=param).infer()
    cls, param = variant("LifeMixedTypes", require_input_same_dtype=lambda self: False, **two)
    made(*inputs, cls=cls, param=param).infer()
    # Operators of torch follow torch's promotion.
    assert (on(MESH) + on(MESH, of=X.double())).dtype is torch.float64


def test_infer_operator_assign_info_is_honoured() -> None:
    operator = made(on(OTHER))
    operator.infer()
    assert operator.streams == (StreamKey("cpu", 2, "compute"), StreamKey("cpu", 3, "compute"))

    def assign(self: Operator) -> None:
        self.streams = (StreamKey("cpu", 7, "communicate"),)

    cls, param = variant("LifeElsewhere", infer_operator_assign_info=assign)
    operator = made(on(OTHER), cls=cls, param=param)
    operator.infer()
    assert operator.streams == (StreamKey("cpu", 7, "communicate"),)


def test_update_operand_topology_is_honoured() -> None:
    source = operand(on(MESH))
    operator = OperatorFactory.new_operator(CLIP, [source])
    assert source.consumers == (operator,)
    assert operator.outputs[0].producer is operator  # type: ignore[union-attr]
    cls, param = variant("LifeUnlinked", update_operand_topology=lambda self: None)
    source = operand(on(MESH))
    operator = OperatorFactory.new_operator(param, [source])
    assert type(operator) is cls
    assert source.consumers == ()


def test_get_operator_cost_is_honoured(record: LogicalGraph) -> None:
    operator = made(on(MESH))
    operator.infer()
    assert operator.get_operator_cost() == OperatorCost.from_operands(operator.inputs, operator.outputs)
    assert operator.get_operator_cost() == OperatorCost.memory(2 * 4 * 5 * 4)
    _, param = variant("LifePriced", get_operator_cost=lambda self: OperatorCost.compute(123))
    add_operator(param, on(MESH))
    assert [node.operator.price().flops for node in record.nodes] == [123]


def test_flops_come_from_the_dims_line() -> None:
    class LifeProduct(Operator):
        rules: ClassVar[dict[str, Dims]] = {
            "dtorch_life.product": Dims("self[m k], mat2[k n] -> y[m n]", ("self", "mat2"), "2 m k n")
        }

        @property
        def name(self) -> str:  # type: ignore[override]
            return "dtorch_life.product"

    call = TorchCall("aten.mm.default", (Slot(0), Slot(1)), {})
    operator = LifeProduct(call, [operand(on(MESH)), operand(on(MESH, of=X.t().contiguous()))])
    operator.infer()
    assert operator.get_operator_cost() == OperatorCost.compute(2 * 4 * 5 * 4)


# -- factory and runner


def test_the_factory_finds_classes() -> None:
    assert type(OperatorFactory.new_operator(CLIP, [operand(on(MESH))])) is LifeClip

    class LifeNobodysParam(OpParam, frozen=True):
        """Of no class."""

    with pytest.raises(KeyError, match="no operator of type LifeNobodys; there are "):
        OperatorFactory.new_operator(LifeNobodysParam(), [])


def test_the_factory_does_not_convert() -> None:
    with pytest.raises(PlacementError, match="has no rule for"):
        OperatorFactory.new_operator(CLIP, [operand(on(MESH, Partial()))])


def test_a_program_runs_each_distinct_shard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    true = LifeClip.compute

    def compute(self: Operator, inputs: Any, outputs: list[Any], local: Any) -> None:
        seen.append(local.coord)
        true(self, inputs, outputs, local)  # type: ignore[arg-type]

    monkeypatch.setattr(LifeClip, "compute", compute)
    grid = DeviceMesh("cpu", [[0, 1], [2, 3]])
    add_operator(CLIP, on(grid, Shard(0), Replicate()))
    assert seen == [(0, 0), (1, 0)]
    assert isinstance(dtorch.Graph.default_graph().constructor.runner, LocalRunner)


def test_types_are_registered_by_existing() -> None:
    assert registry.types()["LifeClip"] is LifeClip
    assert registry.class_by_type("LifeClip") is LifeClip
