"""The door into a graph: every call becomes an operator here, and is recorded or runs at once.

`call` looks the key up (torch operator, arguments, specs); on a miss `build.py` makes the recipe. A first run
confirms it; from then on the call is recorded, unless its outputs depend on values or it is under
`DTORCH_EAGER=1`. What is recorded runs in `flush`: when a value is asked for, a backward ends, or much is
pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from dtorch import redistribute
from dtorch.graph import aliasing, conversion, described, drawing, lines, refused, trial
from dtorch.graph.build import Surroundings, build
from dtorch.graph.confirm import confirm, failure_at, users_place
from dtorch.graph.conversion import convert
from dtorch.graph.held import memory_note
from dtorch.graph.logical_graph import node_of
from dtorch.graph.outputs import Results, outputs_of
from dtorch.graph.overlap import refuse_overlap
from dtorch.graph.pending import Pending
from dtorch.graph.recipe import OutputPlan, Recipe, Recipes
from dtorch.graph.settings import Under, default_dtype, deterministic, imprecise
from dtorch.graph.shown import shown
from dtorch.op.operand import Failed, Operand, Parts, Scalar, copied
from dtorch.op.param import OpParam, key_of
from dtorch.redistribute.local_work import LocalWork

if TYPE_CHECKING:
    from dtorch.graph.graph import Graph

MAX_SNAPSHOT_BYTES = 2**20
"""Plain operands up to this size are copied when recorded; beside a larger one the call runs at once."""

# What resolves conjugate and negative bits torch leaves out below `__torch_dispatch__`; local parts may bear
# them.
_EXCLUDE = torch._C._dispatch_tls_set_dispatch_key_excluded
_CONJUGATE, _NEGATIVE = torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative
_current_backward = torch._C._current_graph_task_id
_surroundings = cache(Surroundings)  # one object for equal values: keys compare by identity


class GraphConstructor:
    """Adds operators to one graph. Recipes are shared by all graphs, since they hold no values."""

    __slots__ = (
        "__weakref__",
        "_around",
        "_last_backward",
        "_now",
        "captured",
        "eager",
        "graph",
        "pending",
        "runner",
        "tape",
    )
    _recipes: ClassVar[Recipes] = Recipes()

    def __init__(self, graph: Graph, runner: Any, eager: bool) -> None:
        self.graph = graph
        self.runner = runner
        self.eager = eager
        self.pending = Pending()
        self._last_backward = -1
        self.captured = False
        self.tape: Any = None  # of a captured call: what makes operands beside the graph is noted there
        self._now: Any = None  # the backward and the settings that `enter` saw; None: see for yourself
        self._around = _surroundings(graph.policy, False, default_dtype())

    # -- adding ---------------------------------------------------------------------------------------------

    def again(self, key: list[Any], operands: list[Any]) -> tuple[Recipe, Results | Operand] | None:
        """Record a call that was made before; None where there is more to do, which `call` does.

        Args:
            key: as for `call`.
            operands: of this graph, neither converted already nor copied views; and plain values.

        Returns:
            As `call`; the operand itself where one output, that is an operand, is all there is to do.
        """
        lock = self.graph.lock
        lock.acquire()  # half the price of `with`
        try:
            if self._now != (_current_backward(), default_dtype(), deterministic(), imprecise()):
                return None
            key.append(self._around)
            recipe = self._recipes.get(tuple(key))
            if recipe is None or not recipe.lazy:
                key.pop()
                return None
            plan = recipe.simple
            if plan is None:
                return recipe, self._record(recipe, operands, users_place(3))
            output = _viewing(plan, operands) if recipe.views else Operand(plan.spec)  # type: ignore[arg-type]
            pending = self.pending
            nodes = pending.nodes
            nodes.append((recipe, operands, (output,), users_place(3)))
            pending.nbytes += recipe.nbytes
            if pending.nbytes > pending.max_bytes or len(nodes) > pending.max_nodes:
                self.relieve()
            return recipe, output
        finally:
            lock.release()

    def call(
        self,
        key: list[Any],
        operands: list[Any],
        make: Callable[[], OpParam],
        plain: Sequence[int] = (),
    ) -> tuple[Recipe, Results | None]:
        """Add a call to the graph; the caller holds the graph's lock.

        Args:
            key: hashable items that determine the call: the operator, its arguments, the operands' specs.
                What the answer depends on beside these is added here.
            operands: the tensors, and plain values among the inputs.
            make: makes the operator's parameters, asked on a miss.
            plain: operands that may change after the call: plain tensors, other graphs' tensors.

        Returns:
            The recipe, and for each output an operand, the number of the input it is, or a plain value. None
            where pending sums had to be reduced in place first: operands have other specs now, so the call is
            to be made again.
        """
        lazy = not self.eager
        for i, operand in enumerate(operands):
            if operand.shared is not None and operand.shared.upstream is not None:
                aliasing.refresh(self, operand)
                lazy = False
            if operand.converted is not None and operand.conversions():
                key.append((i, *operand.converted))
        self.enter()
        full_key = (*key, self._around)
        recipe = self._recipes.get(full_key)
        if recipe is None:
            recipe = self._build(full_key, operands, make, self._around)
        if lazy and not recipe.checked and key[0] is not None:
            trial.confirm_ahead(self, recipe, operands, plain)
        if lazy and recipe.lazy and (not plain or self._snapshot(recipe, operands, plain)):
            results: Results | None = self._record(recipe, operands, users_place(2))
        elif lazy and not plain and drawing.may_wait(self, recipe):
            results = drawing.ahead(self, recipe, operands)
        else:
            in_backward = _current_backward() != -1
            with torch._C.DisableTorchFunction():
                if recipe.described:
                    results = described.call(self, recipe, operands, in_backward)
                elif recipe.reduce_first:
                    aliasing.reduce_first(self, recipe, operands)
                    results = None
                else:
                    results = self.run(recipe, operands, in_backward, plain)
        if results is not None and self.graph.recorders:
            self.graph.wire(recipe, operands, results, plain)
        return recipe, results

    def enter(self) -> None:
        """Look at what surrounds the call that is about to be added.

        What is pending was recorded under one group of torch's settings, and runs before one under others is
        added. A backward runs what is pending when it ends.
        """
        task = _current_backward()
        settings = default_dtype(), deterministic(), imprecise()
        if settings != self.pending.settings:
            self.flush()
            self.pending.settings = settings
        if task not in (-1, self._last_backward) and not self.eager:
            self._last_backward = task
            torch.autograd.Variable._execution_engine.queue_callback(self.run_ahead)
        self._now = None if self.eager or self.graph.recorders else (task, *settings)
        self._around = _surroundings(self.graph.policy, task != -1, settings[0])

    def look_again(self) -> None:
        """Something else that surrounds calls has changed: the policy, or who collects them."""
        with self.graph.lock:  # not between the two lines with which another thread's call enters
            self._now = None

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
            self.pending.nbytes += operands[i].spec.nbytes
        return True

    def _record(self, recipe: Recipe, operands: list[Any], place: Any) -> Results:
        """Append the call to what is pending, and say what it gives, as `call` does."""
        inputs = self.legal(recipe, operands) if recipe.conversions else operands
        results: Results = [_made(plan, operands) for plan in recipe.outputs]  # type: ignore[union-attr]
        outputs = tuple([results[j] for j in recipe.kept])
        for i in recipe.written:
            operands[i].buffer.version += 1
        self.append((recipe, inputs, outputs, place))
        if self.graph.recorders:
            self.graph.note(node_of(recipe.operator, operands, None, _current_backward() != -1))
        if recipe.moves:
            del outputs
            for number, plan in enumerate(recipe.outputs):  # type: ignore[arg-type]
                if plan.target is not None:
                    fresh, results[number] = results[number], None
                    results[number] = convert(self, fresh, plan.target, cause=recipe.operator, keep=False)
        return results

    def append(self, node: tuple[Recipe, list[Any], tuple[Operand, ...], Any]) -> None:
        """Add a node to what is pending, which runs when it holds much."""
        pending = self.pending
        pending.nodes.append(node)
        pending.nbytes += node[0].nbytes
        if pending.nbytes > pending.max_bytes or len(pending.nodes) > pending.max_nodes:
            del node
            self.relieve()

    def flush(self) -> BaseException | None:
        """Run what is pending. A failure is kept for whoever reads what it spoiled, and returned.

        Raises:
            KeyboardInterrupt: as it came; what had not run is still pending.
        """
        pending = self.pending
        if self.captured:
            raise refused.asked()
        if not pending.nodes:
            return None
        with self.graph.lock, LocalWork(), Under(pending.settings):
            nodes, converted = pending.take()
            try:
                self.runner.run_nodes(nodes, converted)
            except Exception as error:
                pending.fail(nodes, error)
                pending.failure = pending.failure or error.with_traceback(None)
                return error
            except BaseException:
                pending.put_back(nodes)
                raise
        return None

    def run_ahead(self) -> None:
        """Run what is pending though nobody asks."""
        if not self.captured:
            self.flush()

    def relieve(self) -> None:
        """Run what is pending if it is too much; its counts say that it may be."""
        if not self.captured and self.pending.is_too_much(self.runner):
            self.flush()

    @contextmanager
    def capturing(self, tape: Any) -> Iterator[None]:
        """Keep back all that is recorded within; asking for a value raises a CaptureError.

        `captured` is False at the end if something ran nevertheless, to be confirmed.
        """
        self.captured, self.tape = True, tape
        try:
            yield
        finally:
            self.captured, self.tape = False, None

    def parts(self, operand: Operand) -> Parts:
        """The local tensors of an operand, up to date; not to be written.

        Raises:
            Exception: what the operator that makes them failed with.
        """
        self.flush()
        if operand.shared is not None and operand.shared.upstream is not None:
            aliasing.refresh(self, operand)
        parts = self.ready(operand)
        assert parts is not None
        return parts

    def value(self, operand: Operand) -> torch.Tensor:
        """The full value, a tensor of its own."""
        return redistribute.assemble(self.parts(operand), operand.layout, operand.spec.mesh)

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
        return results

    @classmethod
    def forget(cls) -> None:
        """Drop all recipes and what is known of lines, as in a new process."""
        cls._recipes.clear()
        conversion.forget()
        lines.forget()

    # -- running --------------------------------------------------------------------------------------------

    def run(
        self,
        recipe: Recipe,
        operands: Sequence[Operand | None],
        in_backward: bool,
        plain: Sequence[int] = (),
    ) -> Results:
        """Run a call at once, after all that is pending."""
        given, operands = operands, self.legal(recipe, operands)
        operator = recipe.operator
        if self.captured and not recipe.checked:
            self.captured = False  # a first run confirms what was inferred, so this is no capture
            self.tape.generators.watching = False
        elif self.captured:
            raise refused.ran(recipe, given, plain)
        self.flush()
        program = recipe.program
        if program is None:
            program = recipe.program = self.runner.prepare(operator, operator.layouts)
        _EXCLUDE(_CONJUGATE, False)
        _EXCLUDE(_NEGATIVE, False)
        inputs = [None if o is None else self.ready(o) for o in operands]
        with aliasing.WholeOrSpoiled(operator, [given[i] for i in recipe.written]):
            try:
                results = self.runner.run(program, inputs)
            except Exception as error:
                raise failure_at(error, operator, given, note=memory_note(error, inputs)) from error
            if recipe.fault is not None:
                raise recipe.fault
            if self.graph.recorders:
                self.graph.note(node_of(operator, given, results, in_backward))
            aliasing.written(self, recipe, given, operands)
        if not recipe.checked:
            if recipe.outputs is None:
                recipe.outputs = shown(operator, results, inputs)
            confirm(recipe, results)
        return outputs_of(self, recipe, given, results)

    def legal(self, recipe: Recipe, operands: Sequence[Operand | None]) -> list[Operand | None]:
        """The operands, converted where the recipe says so."""
        refuse_overlap(recipe.written, operands)
        legal = list(operands)
        for i, target in recipe.conversions:
            operand = operands[i]
            assert operand is not None
            legal[i] = convert(self, operand, target, cause=recipe.operator, keep=i not in recipe.write_back)
        return legal

    def ready(self, operand: Operand) -> Parts | None:
        """The parts of an operand that has run, or raise what its operator failed with."""
        if isinstance(operand.parts, Failed):
            raise self._told(operand.parts)
        return operand.parts


def _made(plan: OutputPlan, operands: list[Any]) -> Operand | int | None:
    """What an output that has not run is: a fresh operand, a view of an input, its number, or absent."""
    if plan.source == "absent":
        return None
    if plan.source == "fresh":
        return Operand(plan.spec)  # type: ignore[arg-type]
    return plan.input if plan.source == "argument" else _viewing(plan, operands)


def _viewing(plan: OutputPlan, operands: list[Any]) -> Operand:
    base = operands[plan.input]
    return Operand(plan.spec, None, base.shared or base.buffer, plan.offset_of(operands))  # type: ignore[arg-type]
