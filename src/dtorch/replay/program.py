"""A captured call: the plan of its whole sequence, where each input comes from, where each result goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_unflatten

from dtorch.errors import CaptureError
from dtorch.graph.confirm import explain, line_of
from dtorch.graph.graph import Graph
from dtorch.graph.settings import Settings, Under
from dtorch.op.operand import Everywhere, Failed, Operand, Parts, Scalar
from dtorch.plan.codegen import Plan
from dtorch.redistribute.local_work import LocalWork
from dtorch.replay.beside import generate
from dtorch.replay.hoist import make
from dtorch.replay.roots import Roots
from dtorch.replay.tape import Tape
from dtorch.replay.traced import How
from dtorch.tensor import Tensor, wrap

_EXCLUDE = torch._C._dispatch_tls_set_dispatch_key_excluded
_CONJUGATE, _NEGATIVE = torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative


class CourseChanged(CaptureError):
    """A comparison or a value that steers the program came out another way; nothing has been done."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a replay finds one input of the plan.

    Attributes:
        kind: "argument", "state", "gradient", "plain", "number" (traced), or "constant".
        which: the argument's place, the operand, the leaf, the tensor's number on the tape, how the number is
            made, or the parts themselves.
    """

    kind: str
    which: Any

    def same(self, other: Source) -> bool:
        """Whether another capture of the same function finds this input alike."""
        if self.kind != other.kind:
            return False
        if self.kind in ("state", "gradient"):
            return self.which is other.which
        if self.kind == "constant" and isinstance(self.which, Everywhere):
            a, b = self.which.value, other.which.value
            return a is b or (type(a) is type(b) and (a == b or a != a))
        return bool(self.which == other.which)


@dataclass(frozen=True, slots=True)
class Result:
    """A leaf of what the function returns: "tensor" (an operand's number), "argument", "plain", "value"."""

    kind: str
    which: Any


@dataclass(eq=False)
class Program:
    """All that a replay needs.

    Attributes:
        graph: whose tensors they are.
        plan: of the whole sequence.
        structure_key: recipes and wiring; another capture of the same calls has an equal one.
        sources: of the operands from outside, by number.
        hoisted: nodes that only view what stays; they are no part of the plan.
        results, tree: of the function's value.
        gradients: (leaf, operand number): what the call leaves in `.grad`.
        written: sources of the operands from outside that the sequence writes.
        offsets: storage offsets of outputs that have one.
        tape: what plain tensors do beside it.
        roots: what the function reaches.
        settings: torch's, under which it was recorded.
        argument_slots: numbers on the tape of the plain tensors among the arguments, by place.
        places: the user's line of each node.
    """

    graph: Graph
    plan: Plan
    structure_key: Any
    sources: dict[int, Source]
    hoisted: tuple[int, ...]
    results: list[Result]
    tree: TreeSpec
    gradients: list[tuple[Tensor, int]]
    written: list[Source]
    offsets: dict[int, int]
    tape: Tape
    roots: Roots
    settings: Settings | None
    argument_slots: dict[int, int]
    places: Sequence[Any]

    def __post_init__(self) -> None:
        numbers = [source.which for source in self.sources.values() if source.kind == "number"]
        made = list(dict.fromkeys(numbers))
        self.number_places = {how: place for place, how in enumerate(made)}
        self.free: set[How] = set()
        self._tie()
        structure = self.plan.structure
        self.specs = {number: structure.spec(number) for number in self.plan.selection.wanted}
        self._viewed: list[tuple[Operand, Any]] = []
        self._views: dict[int, Any] = {}

    def _tie(self) -> None:
        self.tied = {how: value for how, value in self.tape.values.items() if how not in self.free}
        self.beside = generate(self.tape, list(self.number_places), self.tied)
        self.steered = (
            bool(self.tape.decisions)
            or any(call.value is not None for call in self.tape.calls)
            or any(how[0] == "item" for how in self.tied)
        )

    def confirm(self, other: Program) -> None:
        """Free the numbers that another recording, alike in all else, was made with other values of.

        A number may leave what is followed unseen, by `math.sqrt` for one. Where it does, recordings with
        other values of it differ; where they do not, it is an input.
        """
        mine, theirs = self.tape.values, other.tape.values
        moved = {how for how in mine if how in theirs and mine[how].hex() != theirs[how].hex()}
        self.free = other.free | moved
        self._tie()

    def moved(self, arguments: Sequence[Any]) -> bool:
        """Whether a number that has only been seen with one value has another."""
        for (kind, which), value in self.tied.items():
            if kind != "item":
                now = arguments[which] if kind == "argument" else float(which)
                if now.hex() != value.hex():
                    return True
        return False

    @property
    def nbytes(self) -> int:
        """Bytes of constants that only this recording holds."""
        return sum(self.tape.tensors[number].nbytes for number in self.tape.outside)

    def differs(self, other: Program) -> str:
        """Why another capture of the same function is not this one; nothing where it is."""
        mine, theirs = self.structure_key[0], other.structure_key[0]
        if len(mine) != len(theirs):
            return f"it makes {len(mine)} calls one time and {len(theirs)} the next"
        for node, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if a is not b:
                where = line_of(self.places[node])
                return f"{a.operator.describe()} at {where} is {b.operator.describe()} the next time"
        if self.structure_key != other.structure_key or self.plan.selection != other.plan.selection:
            return "its calls are wired differently the next time"
        for number, source in self.sources.items():
            if not source.same(other.sources[number]):
                return self._unlike(source, other.sources[number])
        if [call.function for call in self.tape.calls] != [call.function for call in other.tape.calls]:
            return "what it does with plain tensors changes from call to call"
        if [call.args for call in self.tape.calls] != [call.args for call in other.tape.calls]:
            return "a number it hands to plain tensors changes from call to call"
        if self.tree != other.tree or not all(map(_alike, self.results, other.results)):
            return "what it returns beside tensors changes from call to call"
        return ""

    def _unlike(self, a: Source, b: Source) -> str:
        if a.kind == b.kind == "constant" and isinstance(a.which, Everywhere):
            return (
                f"a number it uses was {a.which.value!r} and is {b.which.value!r} the next time, and how it "
                "is made cannot be followed; pass it as an argument"
            )
        return "it uses other tensors the next time"

    # -- replaying ------------------------------------------------------------------------------------------

    def replay(self, arguments: Sequence[Any]) -> Any:
        """Run the plan on these arguments.

        Raises:
            CourseChanged: a value that steers the function is another.
        """
        constructor = self.graph.constructor
        with self.graph.lock:
            constructor.flush()
            with LocalWork(), Under(self.settings):
                _EXCLUDE(_CONJUGATE, False)
                _EXCLUDE(_NEGATIVE, False)
                plain, numbers = self._run_beside(arguments)
                views = self._present_views()
                parts = [
                    views[number]
                    if number in views
                    else self._parts(self.sources[number], arguments, plain, numbers)
                    for number in self.plan.selection.bound
                ]
                try:
                    made = dict(zip(self.plan.selection.wanted, self.plan.function(parts), strict=True))
                except Exception as error:
                    raise self._explained(error, arguments) from None
            for source in self.written:
                operand = self._operand(source, arguments)
                operand.converted = None
                if operand.shared is not None:
                    operand.shared.version += 1
            outputs = _Outputs(self, arguments, made)
            for leaf, number in self.gradients:
                leaf.grad = wrap(outputs.operand(number), self.graph)
            found = [self._result(result, arguments, plain, outputs) for result in self.results]
        return tree_unflatten(found, self.tree)

    def _explained(self, error: Exception, arguments: Sequence[Any]) -> BaseException:
        """What failed, with the operator and the user's line; what it may have half written is spoiled."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != "<dtorch plan>":
            trace = trace.tb_next
        node = -1 if trace is None else self.plan.node_of_line[trace.tb_lineno - 1]
        if node < 0:
            return error
        structure, recipe = self.plan.structure, self.plan.structure.recipes[node]
        failure = explain(error, recipe.operator, recipe.operator.inputs, self.places[node])
        for i in recipe.written:
            number = structure.inputs[node][i]
            source = self.sources.get(structure.roots.get(number, number))
            if source is not None:
                for member in self._operand(source, arguments).buffer.live_members():
                    member.parts = Failed(failure)
        return failure

    def _operand(self, source: Source, arguments: Sequence[Any]) -> Operand:
        if source.kind == "argument":
            return arguments[source.which]._operand
        return source.which.grad._operand if source.kind == "gradient" else source.which

    def _run_beside(self, arguments: Sequence[Any]) -> tuple[list[torch.Tensor], tuple[float, ...]]:
        """Make the tape's calls again: its tensors now, and the numbers made of them."""
        tensors = list(self.tape.tensors)
        for place, number in self.argument_slots.items():
            tensors[number] = arguments[place]
        outside = [tensors[number] for number in self.tape.outside] if self.steered else []
        kept = [(tensor, tensor.clone()) for tensor in outside]
        right, numbers = self.beside(tensors, arguments)
        if not right:
            for tensor, before in kept:
                tensor.copy_(before)
            raise CourseChanged("replay(): a value that steers the function is another now")
        return tensors, numbers

    def _present_views(self) -> dict[int, Any]:
        """The local tensors of hoisted views, made again where what they view has others."""
        if not all(operand.parts is parts for operand, parts in self._viewed):
            self._viewed = []
        if not self._viewed and self.hoisted:

            def parts(number: int) -> Parts:
                operand = self.sources[number].which
                found = self.graph.constructor.parts(operand)
                self._viewed.append((operand, found))
                return found

            self._views = make(self.plan.structure, self.hoisted, parts)
        return self._views

    def _parts(
        self,
        source: Source,
        arguments: Sequence[Any],
        plain: list[torch.Tensor],
        numbers: tuple[float, ...],
    ) -> Any:
        kind, which = source.kind, source.which
        if kind == "constant":
            return which
        if kind == "number":
            return Everywhere(numbers[self.number_places[which]])
        if kind == "plain":
            mesh_size, number = which
            return [plain[number].detach().clone()] * mesh_size
        operand = self._operand(source, arguments)
        parts = operand.parts
        if type(parts) is list and (operand.shared is None or operand.shared.upstream is None):
            return parts
        return self.graph.constructor.parts(operand)

    def _result(
        self, result: Result, arguments: Sequence[Any], plain: list[torch.Tensor], outputs: _Outputs
    ) -> Any:
        if result.kind == "tensor":
            return wrap(outputs.operand(result.which), self.graph)
        if result.kind == "argument":
            return arguments[result.which]
        return plain[result.which] if result.kind == "plain" else result.which


def _alike(a: Result, b: Result) -> bool:
    if a.kind == b.kind == "value":
        return a.which is b.which or (type(a.which) is type(b.which) is not Tensor and a.which == b.which)
    return a == b


class _Outputs:
    """New operands for what one replay made; views share the buffer of what they view."""

    def __init__(self, program: Program, arguments: Sequence[Any], made: dict[int, Parts]) -> None:
        self.program = program
        self.arguments = arguments
        self.made = made
        self.found: dict[int, Operand] = {}

    def operand(self, number: int) -> Operand:
        """The operand of an output."""
        if number not in self.found:
            program = self.program
            spec, root = program.specs[number], program.plan.structure.roots.get(number)
            buffer = None if root is None else self._root(root).buffer
            offset = program.offsets.get(number, 0)
            operand = Operand(spec, None, buffer, offset)  # type: ignore[arg-type]
            self.found[number] = operand.give(self.made[number])
        return self.found[number]

    def _root(self, number: int) -> Operand:
        if number < self.program.plan.structure.num_made:
            return self.operand(number)
        return self.program._operand(self.program.sources[number], self.arguments)


def scalar_source(operand: Scalar, tape: Tape) -> Source:
    """A number is traced, or always the same."""
    how = tape.scalars.get(id(operand))
    return Source("constant", operand.parts) if how is None else Source("number", how)
