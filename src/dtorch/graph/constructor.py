"""The door into a graph: every call becomes an operator here, and is recorded or runs at once.

`call` looks the key up (torch operator, arguments, specs); on a miss `build.py` makes the recipe. A first run
confirms it; from then on the call is recorded, unless its outputs depend on values or it is under
`DTORCH_EAGER=1`. What is recorded runs in `flush`: when a value is asked for, a backward ends, or much is
pending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from dtorch import redistribute
from dtorch.graph import aliasing, described
from dtorch.graph.build import Surroundings, build
from dtorch.graph.confirm import confirm, explain, users_place
from dtorch.graph.held import memory_note
from dtorch.graph.logical_graph import Node, node_of
from dtorch.graph.outputs import Results, outputs_of
from dtorch.graph.overlap import refuse_overlap
from dtorch.graph.pending import MAX_BYTES, MAX_NODES, Pending
from dtorch.graph.recipe import Recipe, Recipes
from dtorch.graph.settings import Under, default_dtype, deterministic, imprecise
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import Failed, NoValue, Operand, Parts, Scalar, copied
from dtorch.op.operator import Operator
from dtorch.op.param import OpParam, key_of
from dtorch.ops.standard.convert import Convert, ConvertParam
from dtorch.redistribute.local_work import LocalWork
from dtorch.spec import Spec

if TYPE_CHECKING:
    from dtorch.graph.graph import Graph

MAX_SNAPSHOT_BYTES = 2**20
"""Plain operands up to this size are copied when recorded; beside a larger one the call runs at once."""

# What resolves conjugate and negative bits torch leaves out below `__torch_dispatch__`; local parts may bear
# them.
_EXCLUDE = torch._C._dispatch_tls_set_dispatch_key_excluded
_CONJUGATE, _NEGATIVE = torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative
_current_backward = torch._C._current_graph_task_id


class GraphConstructor:
    """Adds operators to one graph. Recipes are shared by all graphs, since they hold no values."""

    _recipes: ClassVar[Recipes] = Recipes()
    _converts: ClassVar[Recipes] = Recipes()

    def __init__(self, graph: Graph, runner: Any, eager: bool) -> None:
        self.graph = graph
        self.runner = runner
        self.eager = eager
        self.pending = Pending()
        self._last_backward = -1

    # -- adding ---------------------------------------------------------------------------------------------

    def call(
        self,
        key: list[Any],
        operands: list[Operand],
        make: Callable[[], OpParam],
        plain: Sequence[int] = (),
    ) -> tuple[Recipe, Results | Operand | None]:
        """Add a call to the graph; the caller holds the graph's lock.

        Args:
            key: hashable items that determine the call: the operator, its arguments, the operands' specs.
                What the answer depends on beside these is added here.
            operands: the tensors.
            make: makes the operator's parameters, asked on a miss.
            plain: operands that may change after the call: plain tensors, other graphs' tensors.

        Returns:
            The recipe, and for each output an operand, the number of the input it is, or a plain value; the
            operand itself where there is one fresh output and nothing else. None where pending sums had to be
            reduced in place first: operands have other specs now, so the call is to be made again.
        """
        lazy = not self.eager
        for i, operand in enumerate(operands):
            if operand.shared is not None and operand.shared.upstream is not None:
                aliasing.refresh(self, operand)
                lazy = False
            if operand.converted is not None and operand.conversions():
                key.append((i, *operand.converted))
        task = _current_backward()
        settings = default_dtype(), deterministic(), imprecise()
        if settings != self.pending.settings:
            self.flush()
            self.pending.settings = settings
        dtype = settings[0]
        key += (self.graph.policy, task != -1, dtype)
        full_key = tuple(key)
        recipe = self._recipes.get(full_key)
        if recipe is None:
            recipe = self._build(full_key, operands, make, Surroundings(*key[-3:]))
        if lazy and recipe.lazy and (not plain or self._snapshot(recipe, operands, plain)):
            if task != -1 and task != self._last_backward:
                self._last_backward = task
                torch.autograd.Variable._execution_engine.queue_callback(self.flush)  # type: ignore[arg-type]
            if recipe.simple is not None and not self.graph.recorders:
                return recipe, self._simple(recipe, operands, users_place(3))
            results: Results | None = self._record(recipe, operands)
        else:
            with torch._C.DisableTorchFunction():
                if recipe.described:
                    results = described.call(self, recipe, operands, task != -1)
                elif recipe.reduce_first:
                    aliasing.reduce_first(self, recipe, operands)
                    results = None
                else:
                    results = self._run(recipe, operands, task != -1)
        if results is not None and self.graph.recorders:
            self.graph.wire(recipe, operands, results, plain)
        return recipe, results

    def again(self, key: list[Any], operands: list[Operand]) -> Operand | None:
        """Record a call made before whose one output is fresh or a view; None where there is more to do.

        Args:
            key: as for `call`.
            operands: of one mesh, none of them a copied view or converted already.
        """
        pending, graph = self.pending, self.graph
        task, settings = _current_backward(), (default_dtype(), deterministic(), imprecise())
        recipe = self._recipes.get((*key, graph.policy, task != -1, settings[0]))
        if recipe is None or recipe.simple is None or self.eager or graph.recorders:
            return None
        if settings != pending.settings or (task != -1 and task != self._last_backward):
            return None
        with graph.lock:
            return self._simple(recipe, operands, users_place(4))

    def _simple(self, recipe: Recipe, operands: list[Operand], place: Any) -> Operand:
        if recipe.views:
            plan = recipe.outputs[0]  # type: ignore[index]
            base = operands[plan.input]
            output = Operand(recipe.simple, None, base.buffer, base.offset + plan.offset)  # type: ignore[arg-type]
        else:
            output = Operand(recipe.simple)  # type: ignore[arg-type]
        pending = self.pending
        pending.nodes.append((recipe, operands, (output,), place))
        pending.nbytes += recipe.nbytes
        if pending.nbytes > MAX_BYTES or len(pending.nodes) > MAX_NODES:
            self.flush()
        return output

    def _build(
        self, key: tuple, operands: Sequence[Operand], make: Callable[[], OpParam], around: Surroundings
    ) -> Recipe:
        held = {i: tuple(o.conversions() or ()) for i, o in enumerate(operands) if o.converted is not None}
        with torch._C.DisableTorchFunction():
            recipe = build(make(), [o.spec for o in operands], held, around)
        self._recipes.keep(key, recipe)
        return recipe

    def _snapshot(self, recipe: Recipe, operands: list[Operand], plain: Sequence[int]) -> bool:
        """Copy plain operands, which may change before the call runs; False where running now is cheaper."""
        if any(i in recipe.written or operands[i].spec.nbytes > MAX_SNAPSHOT_BYTES for i in plain):
            return False
        for i in plain:
            parts = operands[i].parts
            assert parts is not None
            operands[i] = Operand(operands[i].spec, copied(parts))
        return True

    def _record(self, recipe: Recipe, operands: list[Operand]) -> Results:
        if recipe.conversions:
            inputs: list[Any] = self._legal(recipe, operands)
        else:
            inputs = operands
        outputs: list[Operand] = []
        results: Results = []
        for plan in recipe.outputs:  # type: ignore[union-attr]
            if plan.source == "fresh":
                output = Operand(plan.spec)  # type: ignore[arg-type]
            elif plan.source == "view":
                base = operands[plan.input]
                output = Operand(plan.spec, None, base.buffer, base.offset + plan.offset)  # type: ignore[arg-type]
            else:
                results.append(plan.input)
                continue
            outputs.append(output)
            results.append(output)
        for i in recipe.written:
            operands[i].buffer.version += 1
        self._append((recipe, inputs, tuple(outputs), users_place()), recipe.nbytes)
        if self.graph.recorders:
            self.graph.note(node_of(recipe.operator, operands, None, _current_backward() != -1))
        if recipe.moves:
            for number, plan in enumerate(recipe.outputs):  # type: ignore[arg-type]
                if plan.target is not None:
                    fresh, results[number] = results[number], None
                    results[number] = self.convert(fresh, plan.target, cause=recipe.operator, keep=False)
        return results

    def _append(self, node: tuple, nbytes: int) -> None:
        pending = self.pending
        pending.nodes.append(node)
        pending.nbytes += nbytes
        if pending.nbytes > MAX_BYTES or len(pending.nodes) > MAX_NODES:
            del node
            self.flush()

    def flush(self) -> BaseException | None:
        """Run what is pending. A failure is kept for whoever reads what it spoiled, and returned.

        Raises:
            KeyboardInterrupt: as it came; what had not run is still pending.
        """
        pending = self.pending
        if not pending.nodes:
            return None
        with self.graph.lock, LocalWork(), Under(pending.settings):
            _EXCLUDE(_CONJUGATE, False)
            _EXCLUDE(_NEGATIVE, False)
            nodes, wanted = pending.take()
            try:
                self.runner.run_nodes(nodes, wanted)
            except Exception as error:
                pending.fail(nodes, error)
                pending.failure = pending.failure or error.with_traceback(None)
                return error
            except BaseException:
                pending.put_back(nodes)
                raise
        return None

    def parts(self, operand: Operand) -> Parts:
        """The local tensors of an operand, up to date; not to be written.

        Raises:
            Exception: what the operator that makes them failed with.
        """
        self.flush()
        if operand.shared is not None and operand.shared.upstream is not None:
            aliasing.refresh(self, operand)
        parts = self._ready(operand)
        assert parts is not None
        return parts

    def _told(self, failed: Failed) -> BaseException:
        """A failure that is raised now, so `sync` need not."""
        if self.pending.failure is failed.error:
            self.pending.failure = None
        return failed.again()

    def add_operator(
        self, param: OpParam, operands: Sequence[Operand | None], plain: Sequence[int] = ()
    ) -> list[Any]:
        """Add an operator of dtorch's own or of a user; its class is found by `param`.

        Args:
            param: its parameters; of those that are no plain values (a tensor, a generator, what has no hash)
                nothing is remembered, and the operator is inferred at each call.
            operands: its inputs; None for an absent one.
            plain: as for `call`.

        Raises:
            PlacementError: the policy is "error" and an input would need communication.
        """
        present: list[Any] = [Scalar(None) if o is None else o for o in operands]
        results = self.call([key_of(param), *(o.spec for o in present)], present, lambda: param, plain)[1]
        if results is None:
            return self.add_operator(param, operands, plain)
        return [results] if isinstance(results, Operand) else results

    @classmethod
    def forget(cls) -> None:
        """Drop all recipes, as in a new process."""
        cls._recipes.clear()
        cls._converts.clear()

    # -- running --------------------------------------------------------------------------------------------

    def _run(self, recipe: Recipe, operands: Sequence[Operand | None], in_backward: bool) -> Results:
        given, operands = operands, self._legal(recipe, operands)
        self.flush()
        operator = recipe.operator
        program = recipe.program
        if program is None:
            program = recipe.program = self.runner.prepare(operator, operator.layouts)
        _EXCLUDE(_CONJUGATE, False)
        _EXCLUDE(_NEGATIVE, False)
        inputs = [None if o is None else self._ready(o) for o in operands]
        with aliasing.WholeOrSpoiled(operator, [given[i] for i in recipe.written]):
            try:
                results = self.runner.run(program, inputs)
            except Exception as error:
                raise explain(error, operator, given, note=memory_note(error, inputs)) from error
            if recipe.fault is not None:
                raise recipe.fault
            if self.graph.recorders:
                self.graph.note(node_of(operator, given, results, in_backward))
            aliasing.written(self, recipe, given, operands)
        if not recipe.checked:
            confirm(recipe, results)
        return outputs_of(self, recipe, given, results)

    def _legal(self, recipe: Recipe, operands: Sequence[Operand | None]) -> list[Operand | None]:
        """The operands, converted where the recipe says so."""
        refuse_overlap(recipe.written, operands)
        legal = list(operands)
        for i, target in recipe.conversions:
            operand = operands[i]
            assert operand is not None
            legal[i] = self.convert(operand, target, cause=recipe.operator, keep=i not in recipe.write_back)
        return legal

    def _ready(self, operand: Operand) -> Parts | None:
        if isinstance(operand.parts, Failed):
            raise self._told(operand.parts)
        return operand.parts

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
    ) -> Operand:
        """The operand under another layout, a visible node; from the nearest copy that is held.

        Args:
            operand: what to convert.
            target: its new layout.
            mesh: its new mesh; None for the same one.
            cause: the operator that needs it.
            keep: whether later consumers may share the result, which then must not be written.
            implicit: whether dtorch chose the conversion.
        """
        source, here = operand, mesh is None or mesh == operand.spec.mesh
        held = operand.conversions() if here else None
        if held:
            if keep and target in held:
                return held[target]
            itemsize = operand.spec.itemsize
            source = min(
                (operand, *held.values()), key=lambda o: redistribute.cost(o.layout, target, itemsize)
            )
        recipe = self._convert_recipe(source.spec, target, mesh, implicit)
        operator: Convert = recipe.operator  # type: ignore[assignment]
        if operator.target_mesh.description is not None or isinstance(source.parts, NoValue):
            result = described.converted(self, recipe, source)
        elif self.eager:
            parts = self.runner.run(recipe.program, [self._ready(source)])[0]
            result = Operand(operator.target_spec, parts)
        else:
            result = Operand(operator.target_spec)
            self._append((recipe, [source], (result,), users_place()), recipe.nbytes)
        if self.graph.recorders:
            node = Node(operator, (source.spec,), (result.spec,), cause, _current_backward() != -1)
            self.graph.note(node, (source,), (result,), operand if cause is None else None)
        if keep and here and operator.plan.bytes_total:
            # What was sent once need not be sent again; local conversions are cheaper made than held.
            operand.keep_conversion(result)
            if result.parts is None:
                self.pending.converted.append(operand)
        return result

    def _convert_recipe(self, spec: Spec, target: Layout, mesh: DeviceMesh | None, implicit: bool) -> Recipe:
        key = (spec, target, mesh, implicit)
        found = self._converts.get(key)
        if found is None:
            operator = Convert(ConvertParam(target, mesh, implicit), [Operand(spec)])
            operator.infer()
            found = Recipe(operator)
            found.program = self.runner.prepare(operator, ())
            found.kept = (0,)
            found.nbytes = operator.target_spec.nbytes
            self._converts.keep(key, found)
        return found

    def value(self, operand: Operand) -> torch.Tensor:
        """The full value, a tensor of its own."""
        return redistribute.assemble(self.parts(operand), operand.layout, operand.spec.mesh)
