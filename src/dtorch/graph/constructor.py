"""The door into a graph: every call becomes an operator here, and runs.

`call` looks the key up (torch operator, arguments, specs); on a miss `build.py` makes the recipe. Running at once,
a recipe converts what must be converted, runs the program, carries writes back and names the outputs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dtorch import redistribute
from dtorch.errors import PlacementError
from dtorch.graph import aliasing
from dtorch.graph.build import Surroundings, build
from dtorch.graph.confirm import confirm, explain
from dtorch.graph.logical_graph import Node
from dtorch.graph.recipe import OutputPlan, Recipe
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.call import meta_of
from dtorch.op.operand import Operand, Parts, Upstream, copied
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam, TorchCall
from dtorch.ops.standard.convert import Convert, ConvertParam
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.graph import Graph

MAX_RECIPES = 20_000
"""Recipes kept, least recently built first to go; a Llama training step has about 300."""

Results = list[Any]
"""Per output: an Operand, an int (the input that it is), or a plain value."""


class GraphConstructor:
    """Adds operators to one graph. Recipes are shared by all graphs, since they hold no values."""

    _recipes: OrderedDict[Any, Recipe] = OrderedDict()
    _converts: OrderedDict[Any, Convert] = OrderedDict()
    _lock = threading.Lock()

    def __init__(self, graph: Graph, runner: Any) -> None:
        self.graph = graph
        self.runner = runner

    # -- adding ---------------------------------------------------------------------------------------------

    def call(self, call: TorchCall, key: Any, operands: Sequence[Operand]) -> tuple[Recipe, Results]:
        """Run a torch call on operands; the caller holds the graph's lock.

        Args:
            call: the overload and its arguments, tensors as slots into `operands`.
            key: hashable value that determines `call`.
            operands: the tensors.

        Returns:
            The recipe, and for each output an operand, the number of the input it is, or a plain value.
        """
        for operand in operands:
            if operand.buffer.upstream is not None:
                aliasing.refresh(self, operand)
        around = self._surroundings()
        held = _held(operands)
        full_key = (key, tuple([o.spec for o in operands]), held, around)
        recipe = self._recipes.get(full_key)
        if recipe is None:
            recipe = build(call, [o.spec for o in operands], dict(held), around)
            self._keep(full_key, recipe)
        if recipe.reduce_first:
            for i in recipe.reduce_first:
                aliasing.reduce_in_place(self, operands[i])
            return self.call(call, key, operands)
        return recipe, self._run(recipe, operands, around.in_backward)

    def add_operator(self, param: OpParam, operands: Sequence[Operand | None]) -> list[Any]:
        """Create, infer and run an operator of dtorch's own or of a user; its class is found by `param`.

        Raises:
            PlacementError: the policy is "error" and an input would need communication.
        """
        if isinstance(param, TorchCall):
            present = [o for o in operands if o is not None]
            return self.call(param, (param.op, repr(param.args), repr(param.kwargs)), present)[1]
        present = [o for o in operands if o is not None]
        around = self._surroundings()
        recipe = build(param, [None if o is None else o.spec for o in operands], dict(_held(present)), around)
        return self._run(recipe, operands, around.in_backward)

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.graph.policy, torch._C._current_graph_task_id() != -1, torch.get_default_dtype())

    def _keep(self, key: Any, recipe: Recipe) -> None:
        with self._lock:
            self._recipes[key] = recipe
            if len(self._recipes) > MAX_RECIPES:
                self._recipes.popitem(last=False)

    @classmethod
    def forget(cls) -> None:
        """Drop all recipes, as in a new process."""
        with cls._lock:
            cls._recipes.clear()
            cls._converts.clear()

    # -- running --------------------------------------------------------------------------------------------

    def _run(self, recipe: Recipe, operands: Sequence[Operand | None], in_backward: bool) -> Results:
        operator = recipe.operator
        parts: list[Parts | None] = [None if o is None else o.parts for o in operands]
        for i, target in recipe.conversions:
            operand = operands[i]
            assert operand is not None
            parts[i] = self.convert(operand, target, cause=operator, keep=i not in recipe.write_back)
        if recipe.program is None:
            recipe.program = self.runner.prepare(operator, operator.layouts)
        try:
            results = self.runner.run(recipe.program, parts)
        except Exception as error:
            raise explain(error, operator) from error
        if recipe.written:
            self._written(recipe, operands, parts)
        if not recipe.checked:
            confirm(recipe, results)
        if self.graph.recorders:
            self._record(operator, operands, results, in_backward)
        return self._outputs(recipe, operands, results)

    def _written(self, recipe: Recipe, operands: Sequence[Operand | None], parts: Sequence[Parts | None]) -> None:
        for i in recipe.written:
            operand, now = operands[i], parts[i]
            assert operand is not None and now is not None
            if i in recipe.write_back:
                source = recipe.operator.layouts[i]
                assert source is not None
                aliasing.overwrite(self, operand, source, now)
            else:
                aliasing.touched(self, operand)

    def _outputs(self, recipe: Recipe, operands: Sequence[Operand | None], results: list[Parts]) -> Results:
        plans = recipe.outputs
        if plans is None:
            plans = tuple(_plan_of(recipe, operands, parts) for parts in results)
        found: Results = []
        for number, (plan, parts) in enumerate(zip(plans, results, strict=True)):
            if plan.source == "argument":
                found.append(plan.index)
            elif plan.source == "value":
                found.append(parts[0])
            elif plan.source == "fresh":
                assert plan.spec is not None
                fresh = Operand(plan.spec, parts)
                if plan.target is not None:
                    moved = self.convert(fresh, plan.target, cause=recipe.operator, keep=False)
                    fresh = Operand(_with_layout(plan.spec, plan.target), moved)
                found.append(fresh)
            else:
                found.append(self._view(recipe, plan, operands[plan.index], number, parts))
        return found

    @staticmethod
    def _view(recipe: Recipe, plan: OutputPlan, base: Operand | None, number: int, parts: Parts) -> Operand:
        assert base is not None and plan.spec is not None
        offset = base.offset + plan.offset
        if plan.source == "view":
            return Operand(plan.spec, parts, base.buffer, offset)
        copy = Operand(plan.spec, parts, None, offset)
        copy.buffer.upstream = Upstream(base, aliasing.viewer(recipe.operator, plan.index, number))
        return copy

    def _record(
        self, operator: Operator, operands: Sequence[Operand | None], results: list[Parts], in_backward: bool
    ) -> None:
        inputs = tuple(None if o is None else o.spec for o in operands)
        if not operator.outputs:
            outputs = tuple(
                _whole_spec(operator.mesh, parts[0]) if isinstance(parts[0], torch.Tensor) else None for parts in results
            )
        else:
            outputs = tuple(None if o is None else o.spec for o in operator.outputs)
        node = Node(operator, inputs, outputs, None, in_backward)
        for recorder in self.graph.recorders:
            recorder.nodes.append(node)

    # -- conversions ----------------------------------------------------------------------------------------

    def convert(
        self,
        operand: Operand,
        target: Layout,
        mesh: DeviceMesh | None = None,
        *,
        cause: Operator | None = None,
        keep: bool = True,
        implicit: bool = True,
    ) -> Parts:
        """Parts of an operand under another layout, a visible node; from the nearest copy that is held.

        Args:
            operand: what to convert.
            target: its new layout.
            mesh: its new mesh; None for the same one.
            cause: the operator that needs it.
            keep: whether later consumers may share the result, which then must not be written.
            implicit: whether dtorch chose the conversion.
        """
        if operand.buffer.upstream is not None:
            aliasing.refresh(self, operand)
        spec, parts = operand.spec, operand.parts
        assert parts is not None
        there = operand.conversions() or {}
        if mesh is None or mesh == spec.mesh:
            if keep and target in there:
                return there[target]
            nearest = min(
                (spec.layout, *there), key=lambda have: redistribute.cost(have, target, spec.itemsize)
            )
            if nearest is not spec.layout:
                spec, parts = _with_layout(spec, nearest), there[nearest]
        operator = self._convert_operator(spec, target, mesh, implicit)
        moved = redistribute.execute(parts, spec.layout, target, spec.mesh, operator.target_mesh)
        if moved is parts and not keep:
            moved = copied(parts)
        if self.graph.recorders:
            node = Node(operator, (spec,), (operator.outputs[0].spec,), cause, torch._C._current_graph_task_id() != -1)
            for recorder in self.graph.recorders:
                recorder.nodes.append(node)
        if keep and operator.plan.bytes_total and (mesh is None or mesh == spec.mesh):
            # What was sent once need not be sent again; local conversions are cheaper made than held.
            operand.keep_conversion(target, moved)
        return moved

    def _convert_operator(self, spec: Spec, target: Layout, mesh: DeviceMesh | None, implicit: bool) -> Convert:
        key = (spec, target, mesh, implicit)
        found = self._converts.get(key)
        if found is None:
            found = Convert(ConvertParam(target, mesh, implicit), [Operand(spec)])
            found.infer()
            with self._lock:
                self._converts[key] = found
                if len(self._converts) > MAX_RECIPES:
                    self._converts.popitem(last=False)
        return found

    def value(self, operand: Operand) -> torch.Tensor:
        """The full value, a tensor of its own."""
        if operand.buffer.upstream is not None:
            aliasing.refresh(self, operand)
        assert operand.parts is not None
        return redistribute.assemble(operand.parts, operand.layout, operand.spec.mesh)


def _held(operands: Sequence[Operand]) -> tuple[tuple[int, tuple[Layout, ...]], ...]:
    found = []
    for i, operand in enumerate(operands):
        if operand.converted is not None:
            there = operand.conversions()
            if there:
                found.append((i, tuple(there)))
    return tuple(found)


def _with_layout(spec: Spec, layout: Layout) -> Spec:
    return Spec(spec.shape, spec.stride, spec.dtype, layout, spec.mesh)


def _whole_spec(mesh: DeviceMesh, tensor: torch.Tensor) -> Spec:
    meta = meta_of(tensor)
    return Spec(meta.shape, meta.stride, meta.dtype, Layout.replicate(mesh.shape, meta.shape), mesh)


def _plan_of(recipe: Recipe, operands: Sequence[Operand | None], parts: Parts) -> OutputPlan:
    """What becomes of an output whose shape only the run has shown."""
    result = parts[0]
    if not isinstance(result, torch.Tensor):
        return OutputPlan("value")
    if result.layout is not torch.strided:
        raise PlacementError(f"{recipe.operator.describe()} gives a {result.layout} tensor; dtorch holds strided ones")
    spec = _whole_spec(recipe.operator.mesh, result)
    schema = recipe.operator.schema
    if schema.view_of is not None:
        slot = recipe.operator.arguments[schema.view_of]
        base = operands[slot.index]
        assert base is not None and base.parts is not None
        if base.layout.is_replicate and aliasing.shares_storage(result, base.parts[0]):
            return OutputPlan("view", slot.index, spec, None, result.storage_offset())
        return OutputPlan("copy", slot.index, spec, None, 0)
    return OutputPlan("fresh", -1, spec)
