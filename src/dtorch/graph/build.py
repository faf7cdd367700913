"""Building a recipe on a miss: find the class, choose conversions, infer, decide what outputs become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from dtorch.errors import DtorchError, ShapeError, UnsupportedError
from dtorch.graph import described
from dtorch.graph.confirm import refuse_implicit
from dtorch.graph.recipe import OutputPlan, Recipe, without_spec
from dtorch.layout import Layout
from dtorch.op import registry
from dtorch.op.call import MetaFailed, metas, run_on_meta
from dtorch.op.choice import Choice
from dtorch.op.factory import class_for
from dtorch.op.operand import Operand, prototype
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam, Slot, TorchCall, fill
from dtorch.op.schema import Schema, functional_of_in_place
from dtorch.spec import Spec


class Surroundings(NamedTuple):
    """What a recipe depends on beside the call.

    Attributes:
        policy: the redistribution policy.
        in_backward: whether a backward runs.
        default_dtype: torch's, at the time of the call.
    """

    policy: str
    in_backward: bool
    default_dtype: torch.dtype


def build(
    param: OpParam, specs: Sequence[Spec | None], held: Mapping[int, Sequence[Layout]], around: Surroundings
) -> Recipe:
    """Make the recipe of a call.

    Args:
        param: the operator's parameters; for a torch call the overload and its arguments.
        specs: of the operands, None for absent ones.
        held: layouts in which an operand is held already.
        around: policy and backward.

    Raises:
        PlacementError: the policy is "error" and an input would need communication.
        whatever torch raises for illegal shapes, dtypes or arguments.
    """
    operator = class_for(param)(param, [prototype(spec) for spec in specs])
    operator.check_input()
    schema = operator.schema if isinstance(param, TorchCall) else None
    written = () if schema is None else _slots(operator, schema.written)
    fault = None
    try:
        recipe = _by_rule(operator, written, held)
    except Exception as error:
        if schema is None or (isinstance(error, DtorchError) and not isinstance(error, ShapeError)):
            raise
        # Where meta kernels are too lenient, a rule is the first to meet an illegal call. A real run on whole
        # tensors raises torch's own error then; where it raises none the rule is at fault, and that surfaces.
        recipe, fault = None, error
    if recipe is None:
        general = registry.class_by_type("General")(param, operator.inputs)
        _check_kept_shapes(general)
        recipe = _general(general, written)
        recipe.fault = fault
    recipe.written = written
    if schema is not None:
        recipe.single = len(schema.returned) < 2 and not _returns_list(schema)
        recipe.returns = list if _returns_list(schema) else tuple
    if around.policy == "error":
        refuse_implicit(recipe, specs)
    if recipe.outputs is not None and not recipe.reduce_first:
        _add_targets(recipe, [None if s is None else s.layout for s in specs], around.in_backward)
    if any(s is not None and s.mesh.description is not None for s in specs):
        described.complete(recipe)
    return recipe


def _by_rule(
    operator: Operator, written: tuple[int, ...], held: Mapping[int, Sequence[Layout]]
) -> Recipe | None:
    """The recipe by the operator's own rule; None where only the general path can run it."""
    if operator.type == "General":
        return None
    try:
        operator.output_metas = tuple(operator.infer_output_meta_info())
    except MetaFailed:
        return None  # the call is illegal, or the meta kernel missing or stricter than the real one
    choice = operator.place(frozenset(written), held)
    recipe = Recipe(operator)
    if choice is None:
        recipe.reduce_first = tuple(i for i in written if operator.inputs[i].layout.partial)  # type: ignore[union-attr]
        if recipe.reduce_first:
            return recipe
        recipe.write_back = written
        choice = operator.place(frozenset(), held)
        if choice is None:
            return None
    recipe.operator = _convert_inputs(operator, choice)
    recipe.conversions = _conversions(operator, choice)
    recipe.write_back = tuple(i for i in recipe.write_back if any(i == j for j, _ in recipe.conversions))
    recipe.operator.infer()
    recipe.outputs = _output_plans(recipe)
    return recipe


def _convert_inputs(operator: Operator, choice: Choice) -> Operator:
    if all(a is b for a, b in zip(choice.inputs, operator.layouts, strict=True)):
        operator.choice = choice
        return operator
    inputs = [
        None if x is None or layout is None else Operand(_with_layout(x.spec, layout))
        for x, layout in zip(operator.inputs, choice.inputs, strict=True)
    ]
    converted = type(operator)(operator.param, inputs)
    converted.choice = choice
    return converted


def _with_layout(spec: Spec, layout: Layout) -> Spec:
    return Spec(spec.shape, spec.stride, spec.dtype, layout, spec.mesh)


def _conversions(operator: Operator, choice: Choice) -> tuple[tuple[int, Layout], ...]:
    return tuple(
        (i, target)
        for i, (have, target) in enumerate(zip(operator.layouts, choice.inputs, strict=True))
        if target is not None and target is not have
    )


def _general(operator: Operator, written: tuple[int, ...]) -> Recipe:
    """Everything whole, run once, outputs as they come."""
    recipe = Recipe(operator)
    layouts = tuple(
        None if x is None else Layout.replicate(x.spec.mesh.shape, x.shape) for x in operator.inputs
    )
    choice = Choice(layouts, ())
    recipe.conversions = _conversions(operator, choice)
    recipe.write_back = tuple(i for i in written if any(i == j for j, _ in recipe.conversions))
    recipe.operator = _convert_inputs(operator, choice)
    recipe.operator.infer_operator_assign_info()
    arguments = _argument_plans(recipe.operator)
    if arguments and all(plan is not None for plan in arguments):
        recipe.outputs = tuple(plan for plan in arguments if plan is not None)
    return recipe


def _argument_plans(operator: Operator) -> list[OutputPlan | None]:
    """For each return of the torch operator: the argument that it is, or None."""
    if not isinstance(operator.param, TorchCall):
        return []
    plans: list[OutputPlan | None] = []
    for name in operator.schema.returned:
        slot = None if name is None else operator.arguments[name]
        plans.append(OutputPlan("argument", slot.index) if isinstance(slot, Slot) else None)
    return plans


def _output_plans(recipe: Recipe) -> tuple[OutputPlan, ...]:
    operator = recipe.operator
    arguments = _argument_plans(operator)
    view_of = operator.view_of()
    converted = any(i == view_of for i, _ in recipe.conversions)
    plans = []
    for number, (meta, output) in enumerate(zip(operator.output_metas, operator.outputs, strict=True)):
        plan = arguments[number] if number < len(arguments) else None
        if plan is not None:
            plans.append(plan)
        elif meta is None or output is None:
            plans.append(without_spec(operator, number))
        elif view_of is not None:
            plan = OutputPlan("copy" if converted else "view", view_of, output.spec, None, meta.offset)
            plans.append(_moved(plan, operator))
        else:
            plans.append(OutputPlan("fresh", -1, output.spec))
    return tuple(plans)


def _moved(plan: OutputPlan, operator: Operator) -> OutputPlan:
    """The plan of a view that starts where each call says: without the start that it was inferred with."""
    found = operator.moved_by()
    if found is None:
        return plan
    (name, step), slot = found, operator.slot(found[0])
    assert slot is not None
    offset = plan.offset - step * operator.a_value(name)
    return msgspec.structs.replace(plan, offset=offset, moved_by=(slot, step))


def _check_kept_shapes(operator: Operator) -> None:
    """Refuse in-place forms that would give the tensor they write another shape, as torch's addbmm_ does.

    Most of torch's raise then, and are left to do so; meta kernels know neither.
    """
    functional = functional_of_in_place(operator.call.func) if operator.returned_inputs() else None
    if functional is None:
        return
    call, specs = operator.call, [None if x is None else x.spec for x in operator.inputs]
    try:
        made = metas(run_on_meta(functional, call.args, call.kwargs, specs))
    except MetaFailed:
        return
    for number, written in operator.returned_inputs().items():
        meta, shape = made[number], operator.shapes[written]
        if meta is not None and meta.shape != shape and _runs_on_zeros(call, specs):
            raise UnsupportedError(
                f"{operator.describe()} would make the {list(shape or ())} tensor that it writes "
                f"{list(meta.shape)}; use the out-of-place form"
            )


def _runs_on_zeros(call: TorchCall, specs: Sequence[Spec | None]) -> bool:
    """Whether torch raises nothing for zeros of these shapes."""
    zeros = [None if s is None else torch.zeros(s.shape, dtype=s.dtype) for s in specs]
    try:
        call.func(*fill(call.args, zeros), **fill(call.kwargs, zeros))
    except Exception:
        return False
    return True


def _add_targets(recipe: Recipe, given: Sequence[Layout | None], in_backward: bool) -> None:
    assert recipe.outputs is not None
    if all(plan.source != "fresh" for plan in recipe.outputs):
        return
    targets = recipe.operator.output_targets(given, in_backward)
    recipe.outputs = tuple(
        msgspec.structs.replace(plan, target=target)
        if target is not None and plan.source == "fresh"
        else plan
        for plan, target in zip(recipe.outputs, targets, strict=True)
    )


def _slots(operator: Operator, names: Sequence[str]) -> tuple[int, ...]:
    """Inputs that the named arguments hold, lists included."""
    found: list[int] = []

    def collect(value: Any) -> None:
        if isinstance(value, Slot):
            found.append(value.index)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)

    for name in names:
        collect(operator.arguments.get(name))
    return tuple(found)


def _returns_list(schema: Schema) -> bool:
    returns = schema.func._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
