"""A captured call: the plan of its whole sequence, where each input comes from, where each result goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_unflatten

from dtorch.errors import CaptureError
from dtorch.graph.confirm import failure_at, line_of
from dtorch.graph.graph import Graph
from dtorch.graph.settings import Settings, Under
from dtorch.op.operand import Everywhere, Failed, Operand, Parts
from dtorch.plan.cache import note
from dtorch.plan.codegen import generate
from dtorch.plan.facts import Facts
from dtorch.plan.passes import state
from dtorch.plan.pool import Pool
from dtorch.plan.structure import Selection, Structure
from dtorch.redistribute.local_work import LocalWork
from dtorch.replay import beside
from dtorch.replay.compiled import CompiledPlan
from dtorch.replay.cuda_graph import Door, GraphedPlan, graphed, obstacle
from dtorch.replay.inputs import Inputs
from dtorch.replay.made import Constant
from dtorch.replay.outputs import Outputs
from dtorch.replay.roots import Roots
from dtorch.replay.sources import Result, Source
from dtorch.replay.steady import Steady
from dtorch.replay.tape import Tape
from dtorch.replay.traced import How
from dtorch.tensor import Tensor, wrap

_set_grad: Any = torch._C.TensorBase.grad.__set__  # type: ignore[union-attr]


class CourseChanged(CaptureError):
    """A comparison or a value that steers the program came out another way; nothing has been done."""


@dataclass(eq=False)
class Program:
    """All that a replay needs.

    Attributes:
        name: of the captured function.
        graph: whose tensors they are.
        structure, selection: of the whole sequence, and what of it a replay runs.
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

    name: str
    graph: Graph
    structure: Structure
    selection: Selection
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
        self.is_single = self.tree.is_leaf()
        self.numbers: list[How] = list(dict.fromkeys(numbers))
        self.returned = [result.which for result in self.results if result.kind == "number"]
        self.free: set[How] = set()
        self.given = set(self.argument_slots.values())
        self.given.update(result.which for result in self.results if result.kind == "plain")
        self.steady = Steady(self.tape, {*self.given, *self.tape.outside})
        roots = {self.structure.roots.get(number, number) for number in self.selection.wanted}
        seen = [source.which for n, source in self.sources.items() if n in roots and source.kind == "made"]
        kept = {*seen, *(result.which for result in self.results if result.kind == "made")}
        self.passing = [number for number in range(len(self.tape.made)) if number not in kept]
        read = {id(source.which) for source in self.sources.values() if source.kind == "gradient"}
        self.renewed = [
            (leaf, spec)
            for leaf, number in self.gradients
            if id(leaf) not in read and (spec := self.structure.spec(number)) is not None
        ]
        self.touched = [source for source in self.written if source.kind not in ("plain", "made")]
        written = {source.which[1] for source in self.written if source.kind == "plain"}
        steady = {n: self.steady.tensors[n] for n in self.steady.numbers - written}
        self.inputs = Inputs(self.graph, self.sources, self.hoisted, steady, self.numbers)
        self.pool = Pool()
        self._write(self.inputs.apart)
        self.graphed: GraphedPlan | None = None
        self.choice = ""
        self.door: Door | None = None
        self.specs = {number: self.structure.spec(number) for number in self.selection.wanted}
        self._tie()

    def _write(self, apart: frozenset[int]) -> None:
        facts = Facts(self.inputs.bind, self.pool, apart, self.inputs.constants)
        self.plan = generate(self.structure, self.selection, state.present().exact, facts)
        self.run = CompiledPlan(self.plan, len(self.numbers), self.name)

    def _tie(self) -> None:
        self.tied = {how: value for how, value in self.tape.values.items() if how not in self.free}
        self._outside = [(how, value) for how, value in self.tied.items() if how[0] != "item"]
        source = beside.TapeText(self.tape, self.steady.calls, self.tied, self._sound())
        self.beside = source.function([*self.numbers, *self.returned])
        self.spoiled = sorted(source.spoiled)
        self.rewound = self.tape.generators.used if source.draws_early else []

    def _sound(self) -> list[How]:
        """The numbers that meet parts of pending sums, which 0 and infinity would make NaN of."""
        found = []
        for node in self.selection.nodes:
            given = self.structure.inputs[node]
            specs = [self.structure.spec(number) for number in (*given, *self.structure.outputs[node])]
            if any(spec is not None and spec.layout.partial for spec in specs):
                found += [self.sources[number] for number in given if number in self.sources]
        return [source.which for source in found if source.kind == "number"]

    def confirm(self, other: Program) -> None:
        """Free the numbers that another recording, alike in all else, was made with other values of.

        A number may leave what is followed unseen, by `math.sqrt` for one. Where it does, recordings with
        other values of it differ; where they do not, it is an input. Arrays that both recordings found at
        one address are read there.
        """
        mine, theirs = self.tape.values, other.tape.values
        moved = {how for how in mine if how in theirs and mine[how].hex() != theirs[how].hex()}
        self.free = other.free | moved
        for constant, memory in self.tape.lent:
            before = other.tape.tensors[memory]  # kept by the tape, so that no other array is at its address
            constant.lives = self.tape.tensors[memory].data_ptr() == before.data_ptr()
        self._tie()

    def moved(self, arguments: Sequence[Any]) -> bool:
        """Whether a number that has only been seen with one value has another."""
        for (kind, which), value in self._outside:
            now = arguments[which] if kind == "argument" else float(which)
            if now.hex() != value.hex():
                return True
        return False

    @property
    def nbytes(self) -> int:
        """Bytes that only this recording holds: plain tensors that stay, free blocks, and a CUDA graph's."""
        held = [self.steady.tensors[number].untyped_storage() for number in self.steady.numbers]
        steady = sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())
        return steady + self.pool.nbytes + (0 if self.graphed is None else self.graphed.nbytes)

    def differs(self, other: Program) -> str:
        """Why another capture of the same function is not this one; nothing where it is."""
        mine, theirs = self.structure_key[0], other.structure_key[0]
        if len(mine) != len(theirs):
            return f"it makes {len(mine)} calls one time and {len(theirs)} the next"
        for node, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if a is not b:
                where = line_of(self.places[node])
                return f"{a.operator.describe()} at {where} is {b.operator.describe()} the next time"
        if self.structure_key != other.structure_key or self.selection != other.selection:
            return "its calls are wired differently the next time"
        for number, source in self.sources.items():
            if not source.same(other.sources[number]):
                return self._unlike(source, other.sources[number])
        calls = [(a.function, b.function) for a, b in zip(self.tape.calls, other.tape.calls, strict=False)]
        if any(type(a) is type(b) is Constant and a != b for a, b in calls):
            return (
                "the values that it makes a plain tensor of (torch.tensor([...]), from_numpy) are others the "
                "next time; make that tensor outside and pass it as an argument"
            )
        if len(self.tape.calls) != len(other.tape.calls) or any(a != b for a, b in calls):
            return "what it does with plain tensors changes from call to call"
        if [call.args for call in self.tape.calls] != [call.args for call in other.tape.calls]:
            return "a number it hands to plain tensors changes from call to call"
        if not self._same_outside(other):
            return "it uses other plain tensors the next time, made where a replay cannot see it"
        if self.tree != other.tree or not all(map(_alike, self.results, other.results)):
            return "what it returns beside tensors changes from call to call"
        return ""

    def _same_outside(self, other: Program) -> bool:
        """Whether both take the same plain tensors from outside, arguments aside."""
        mine, theirs = self.tape.tensors, other.tape.tensors
        given = {*self.argument_slots.values(), *(memory for _, memory in self.tape.lent)}
        return len(mine) == len(theirs) and all(
            mine[number] is theirs[number] for number in self.tape.outside if number not in given
        )

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
        with self.graph.lock:
            self.graph.constructor.flush()
            with LocalWork(), Under(self.settings):
                plain, made_numbers, parts = self._run_beside(arguments)
                numbers = made_numbers[: len(self.numbers)]
                if self.numbers and self.plan.waiting is not None and self.plan.waiting.tick():
                    self._fuse()
                note(self.plan)
                values = self.inputs.values(arguments, plain, numbers, parts)
                if not self.plan.facts.apart <= self.inputs.apart:  # it was put where other state is
                    self._write(self.inputs.apart)
                    values = self.inputs.values(arguments, plain, numbers, parts)
                for number in self.passing:  # or its memory would stay until the end
                    parts[number] = []
                for leaf, _ in self.renewed:  # the old one's memory is for the new one
                    _set_grad(leaf, None)
                try:
                    made = self._run(values)
                except Exception as error:
                    failure = self._explained(error, arguments)
                    for leaf, spec in self.renewed:
                        _set_grad(leaf, wrap(Operand(spec, Failed(failure)), self.graph))
                    raise failure from None
                self.pool.settle()
            for source in self.touched:
                operand = source.operand(arguments)
                operand.converted = None
                if operand.shared is not None:
                    operand.shared.version += 1
            outputs = Outputs(self, arguments, dict(zip(self.selection.wanted, made, strict=True)), parts)
            for leaf, number in self.gradients:
                _set_grad(leaf, wrap(outputs.operand(number), self.graph))
            returned = iter(made_numbers[len(self.numbers) :])
            found = [
                next(returned) if result.kind == "number" else self._result(result, arguments, plain, outputs)
                for result in self.results
            ]
        return found[0] if self.is_single else tree_unflatten(found, self.tree)

    def compile(self) -> None:
        """Compile the plan as a whole, or its regions where numbers keep it from that, and wait."""
        self.run.compile()
        waiting = self.plan.waiting
        if self.numbers and waiting is not None:
            waiting.start()
            for call in waiting.calls:
                for region in call.regions.values():
                    region.wait()
            with self.graph.lock:
                self._fuse()

    def _fuse(self) -> None:
        """Put regions that are compiled into the plan, which its numbers keep from being compiled whole."""
        self.plan = self.plan.renewed()
        self.run = CompiledPlan(self.plan, len(self.numbers), self.name)

    def _run(self, values: list[Any]) -> list[list[Any]]:
        """By a CUDA graph, where that pays; else by the plan."""
        if self.door is None:
            return self.run(values)
        if self.graphed is None or not self.graphed.serves(values):
            self._instantiate(values)
        return self.run(values) if self.graphed is None else self.graphed(values)

    def instantiate(self, door: Door) -> None:
        """Let the next replay make a CUDA graph, if that is possible and pays; `choice` says why, or why not.

        Args:
            door: see `cuda_graph.py`.
        """
        reason = obstacle(self)
        self.choice = f"no CUDA graph: {reason}" if reason else ""
        self.door = None if reason else door

    def _instantiate(self, values: Sequence[Any]) -> None:
        calls = sum(not self.structure.recipes[node].views for node in self.selection.nodes)
        self.graphed = None  # before another one takes memory
        stays, door = self.inputs.stays, self.door
        assert door is not None
        self.graphed, choice = graphed(self.plan.function, values, stays, calls, door)
        self.choice = choice.reason
        if self.graphed is None:
            self.door = None

    def _explained(self, error: Exception, arguments: Sequence[Any]) -> BaseException:
        """What failed, with the operator and the user's line; what it may have half written is spoiled."""
        node, _ = self.plan.node_at(error)
        if node < 0:
            return error
        structure = self.plan.structure
        recipe = structure.recipes[node]
        targets = [structure.spec(structure.inputs[node][i]) for i in recipe.written]
        note = _too_small(error, targets[0]) if targets else ""
        failure = failure_at(error, recipe.operator, recipe.operator.inputs, self.places[node], note)
        regions = [call.candidate.nodes for call in self.plan.rewritten.fused.values()]
        nodes = next((inside for inside in regions if inside[0] == node), (node,))
        written = [structure.inputs[n][i] for n in nodes for i in structure.recipes[n].written]
        for number in written:
            source = self.sources.get(structure.roots.get(number, number))
            if source is not None and source.kind not in ("plain", "made"):
                for member in source.operand(arguments).buffer.live_members():
                    member.parts = Failed(failure)
        return failure

    def _run_beside(
        self, arguments: Sequence[Any]
    ) -> tuple[list[torch.Tensor], tuple[float, ...], list[Parts]]:
        """Make the tape's calls again: its tensors now, the numbers made of them, and parts of operands."""
        tensors = self.steady.tensors.copy()
        for place, number in self.argument_slots.items():
            tensors[number] = arguments[place]
        kept = [(tensors[number], tensors[number].clone()) for number in self.spoiled]
        states = [(generator, generator.get_state()) for generator in self.rewound]
        made: list[Parts] = [[]] * len(self.tape.made)
        numbers = self.beside(tensors, arguments, made)
        if numbers is None:
            for generator, state in states:
                generator.set_state(state)
            for tensor, before in kept:
                tensor.copy_(before)
            raise CourseChanged("replay(): a value that steers the function is another now")
        return tensors, numbers, made

    def _result(
        self, result: Result, arguments: Sequence[Any], plain: list[torch.Tensor], outputs: Outputs
    ) -> Any:
        if result.kind == "tensor":
            return wrap(outputs.operand(result.which), self.graph)
        if result.kind == "made":
            return wrap(outputs.made_beside(result.which), self.graph)
        if result.kind == "argument":
            return arguments[result.which]
        return plain[result.which] if result.kind == "plain" else result.which


def _alike(a: Result, b: Result) -> bool:
    if a.kind == b.kind == "value":
        return a.which is b.which or (type(a.which) is type(b.which) is not Tensor and a.which == b.which)
    return a == b


def _too_small(error: Exception, spec: Any) -> str:
    """What an index that a write does not reach tells of what is written."""
    if not isinstance(error, IndexError):
        return ""
    return (
        f"the replay writes behind the end of a tensor of shape {list(spec.shape)}: a cache that is full, "
        "for one, which has to be larger, or reset in time"
    )
