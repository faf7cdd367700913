"""One captured call: recorded whole, turned into a program, and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from sys import getrefcount
from time import perf_counter
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from dtorch.errors import CaptureError
from dtorch.graph.confirm import line_of
from dtorch.graph.graph import Graph
from dtorch.op.operand import Scalar
from dtorch.plan.passes.listed import selected
from dtorch.plan.structure import Numbered, Structure
from dtorch.replay.history import History
from dtorch.replay.hoist import drop_detached, hoist
from dtorch.replay.program import Program
from dtorch.replay.reads import Reads
from dtorch.replay.roots import Roots
from dtorch.replay.sources import Result, Source, scalar_source
from dtorch.replay.tape import PlainCalls, Tape, TracedNumbers
from dtorch.replay.traced import Traced, plain
from dtorch.tensor import Tensor


def record(
    function: Callable[..., Any], graph: Graph, leaves: Sequence[Any], tree: Any, history: History
) -> tuple[Any, Program | None]:
    """Call the function once, its operators kept back to the end, and make a program of them.

    Args:
        function: takes arguments and keywords.
        graph: of the tensors.
        leaves, tree: the arguments, flattened.
        history: takes the number of calls, and the time they take to run.

    Returns:
        What the function returned, and the program; None where calls had to run, since they were new.

    Raises:
        CaptureError: it asks for a value, or keeps what a replay could not renew.
    """
    constructor = graph.constructor
    with graph.lock:
        constructor.flush()
        roots = Roots(function, leaves, history)
        inputs = _Inputs(leaves, roots)
        tape = Tape(constructor.pending.nodes)
        traced = [
            Traced(leaf, ("argument", place), tape.decisions) if type(leaf) is float else leaf
            for place, leaf in enumerate(leaves)
        ]
        tape.values.update((leaf.how, plain(leaf)) for leaf in traced if type(leaf) is Traced)
        with constructor.capturing(tape):
            reads = Reads(roots.objects)
            with reads.watching(), _hyperparameters(roots, tape), TracedNumbers(tape), PlainCalls(tape):
                args, kwargs = tree_unflatten(traced, tree)
                start = perf_counter()
                value = function(*args, **kwargs)
                launched = perf_counter() - start
            del args, kwargs, traced
            tape.generators.check()
            roots.narrow(reads)
            name = getattr(function, "__qualname__", "a captured function")
            program = _program(name, graph, value, roots, tape, inputs) if constructor.captured else None
        start = perf_counter()
        error = constructor.flush()
        tape.release()
        if program is not None:
            history.calls = len(program.selection.nodes)
            executed = perf_counter() - start
            history.execution_s = min(history.execution_s, executed)
            # a first call, which makes recipes too, takes much longer
            history.recorded_s = min(history.recorded_s, launched + executed)
        if error is not None:
            raise error
        return tree_map(_plain, value), program


@contextmanager
def _hyperparameters(roots: Roots, tape: Tape) -> Iterator[None]:
    """While it lasts, the floats of optimizers' groups are traced; afterwards they are plain again.

    Raises:
        CaptureError: one has been changed, which a replay would not do again.
    """
    traced = [(group, name, group[name]) for group, name in roots.settings]
    given = [_traced(group, name, tape) for group, name, _ in traced]
    try:
        for (group, name, _), value in zip(traced, given, strict=True):
            group[name] = value
        yield
        for (group, name, _), value in zip(traced, given, strict=True):
            if not _is_same(group.get(name), value):
                raise CaptureError(
                    f"capture(): the function changes {name!r} of an optimizer, and a replay would not; call "
                    "what changes it, a scheduler's step() for one, outside"
                )
    finally:
        for group in {id(group): group for group, _, _ in traced}.values():
            group.update({name: _plain(value) for name, value in group.items()})
        for (group, name, before), value in zip(traced, given, strict=True):
            if group.get(name) == _plain(value):
                group[name] = before  # the same object, not an equal one


def _traced(group: dict[str, Any], name: str, tape: Tape) -> Any:
    """A setting with its floats traced, which are entered."""

    def follow(value: float, place: int | None) -> Traced:
        made = Traced(value, ("setting", _Setting(group, name, place)), tape.decisions)
        tape.values[made.how] = value
        return made

    held = group[name]
    return follow(held, None) if type(held) is float else tuple(map(follow, held, range(len(held))))


def _is_same(now: Any, given: Any) -> bool:
    """Whether a setting is the one that was given; copied, as a state is loaded, it may be."""
    a, b = (value if type(value) is tuple else (value,) for value in (now, given))
    return len(a) == len(b) and all(getattr(x, "how", None) == y.how for x, y in zip(a, b, strict=True))


def _plain(value: Any) -> Any:
    """A setting with its floats as they were."""
    if type(value) is tuple:
        return tuple(map(_plain, value)) if any(type(item) is Traced for item in value) else value
    return plain(value) if type(value) is Traced else value


class _Setting:
    """One float of an optimizer's group, equal to itself whoever made it.

    Args:
        group: of the optimizer.
        name: in the group.
        place: in a tuple of floats; None for a float by itself.
    """

    __slots__ = ("group", "name", "place")

    def __init__(self, group: dict[str, Any], name: str, place: int | None) -> None:
        self.group = group
        self.name = name
        self.place = place

    def __float__(self) -> float:
        held = self.group[self.name]
        return float(held if self.place is None else held[self.place])

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is _Setting
            and other.group is self.group
            and (other.name, other.place) == (self.name, self.place)
        )

    def __hash__(self) -> int:
        return hash((id(self.group), self.name, self.place))


def _program(name: str, graph: Graph, value: Any, roots: Roots, tape: Tape, inputs: _Inputs) -> Program:
    pending = graph.constructor.pending
    if not pending.nodes:
        raise CaptureError(
            "capture(): the function makes no call on distributed tensors, so there is nothing to replay"
        )
    while pending.converted:  # no name or list keeps them: what is held here counts as held by the program
        pending.converted.pop().converted = None
    numbered = Numbered(pending.nodes)
    structure = Structure.of(pending.nodes, numbered)
    flags = structure.wanted(numbered)
    selection = selected(structure, flags)
    outside = dict(enumerate(numbered.outside, structure.num_made))
    sources = {number: inputs.source(outside[number], tape) for number in selection.bound}
    results, tree = _results(value, numbered, structure, inputs, tape)
    gradients = [
        (leaf, numbered.numbers[operand])
        for leaf, operand in roots.gradients()
        if numbered.numbers.get(operand, structure.num_made) < structure.num_made
    ]
    used = any(source.kind == "gradient" for source in sources.values())
    roots.uses_gradients = tape.asks_gradients or bool(gradients) or used
    given = {number for _, number in gradients}
    given.update(result.which for result in results if result.kind == "tensor")
    _check_kept(structure, numbered, selection.wanted, given)
    beside = [result.which for result in results if result.kind == "made"]
    _check_made(structure, numbered, tape, beside, selection.wanted)
    written = {
        structure.roots.get(number, number): None
        for node in selection.nodes
        for number in (structure.inputs[node][i] for i in structure.recipes[node].written)
    }
    stays = {number for number, source in sources.items() if source.kind in ("state", "constant")}
    selection, stands = drop_detached(structure, selection, given)
    gradients = [(leaf, stands.get(number, number)) for leaf, number in gradients]
    results = [Result(r.kind, stands.get(r.which, r.which)) if r.kind == "tensor" else r for r in results]
    selection, hoisted = hoist(structure, selection, stays)
    program = Program(
        name=name,
        graph=graph,
        structure=structure,
        selection=selection,
        structure_key=numbered.key,
        sources=sources,
        hoisted=hoisted,
        results=results,
        tree=tree,
        gradients=gradients,
        written=[sources[number] for number in written if number in sources],
        offsets={n: numbered.made[n].offset for n in selection.wanted if numbered.made[n].offset},
        tape=tape,
        roots=roots,
        settings=pending.settings,
        argument_slots=inputs.slots(tape),
        places=numbered.places,
    )
    numbered.release()
    return program


def _results(
    value: Any, numbered: Numbered, structure: Structure, inputs: _Inputs, tape: Tape
) -> tuple[list[Result], Any]:
    leaves, tree = tree_flatten(value)
    found = []
    for leaf in leaves:
        if any(leaf is argument for argument in inputs.leaves if isinstance(argument, torch.Tensor)):
            place = next(i for i, argument in enumerate(inputs.leaves) if argument is leaf)
            found.append(Result("argument", place))
        elif isinstance(leaf, Tensor):
            if leaf.requires_grad:
                raise CaptureError(
                    "capture(): the function returns a tensor that requires grad, and a replay has no "
                    "autograd; call backward inside and return it detached, or capture under "
                    "torch.no_grad()"
                )
            beside = [n for n, operand in enumerate(tape.made) if operand is leaf._operand]
            number = numbered.numbers.get(leaf._operand, structure.num_made)
            if beside:
                found.append(Result("made", beside[0]))
                continue
            found.append(Result("tensor", number) if number < structure.num_made else Result("value", leaf))
        elif isinstance(leaf, torch.Tensor):
            found.append(Result("plain", tape.number(leaf)))
        else:
            found.append(Result("number", leaf.how) if type(leaf) is Traced else Result("value", leaf))
    return found, tree


def _check_kept(structure: Structure, numbered: Numbered, wanted: Sequence[int], given: set[int]) -> None:
    """Refuse what stays alive beside the results: a replay would leave its old value there."""
    renewed = given | {structure.roots.get(number, number) for number in given}
    for number in wanted:
        if number not in renewed and structure.roots.get(number, number) not in renewed:
            node = next(node for node, made in enumerate(structure.outputs) if number in made)
            raise CaptureError(
                f"capture(): the function keeps what {structure.recipes[node].operator.describe()} makes at "
                f"{line_of(numbered.places[node])}, and a replay would not renew it; return it instead"
            )


def _check_made(
    structure: Structure, numbered: Numbered, tape: Tape, given: Sequence[int], wanted: Sequence[int]
) -> None:
    """Refuse what was made beside the graph and stays alive beside the results, and is no base of one."""
    viewed = {structure.roots.get(number) for number in wanted}
    for place in range(len(tape.made)):  # `enumerate` would hold another reference
        operand = tape.made[place]
        number = numbered.numbers.get(operand, -1)
        # By the tape; and where a node reads it, twice by `numbered`, once by the caller, and by its readers.
        listed = 1 if number < 0 else 4 + structure.reads[number]
        # Here the operand has two more references: its variable and getrefcount's argument.
        if getrefcount(operand) - 2 > listed and place not in given and number not in viewed:
            raise CaptureError(
                f"capture(): the function keeps a tensor of shape {list(operand.spec.shape)} that it drew or "
                "distributed, and a replay would not renew it; return it instead"
            )


class _Inputs:
    """What a captured call may read: its arguments, what the function reaches, gradients, plain tensors."""

    def __init__(self, leaves: Sequence[Any], roots: Roots) -> None:
        self.leaves = leaves
        self.arguments = {id(leaf._operand): i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        self.state = {id(tensor._operand): tensor._operand for tensor in roots.tensors}
        self.gradients = {id(operand): leaf for leaf, operand in roots.gradients()}
        self._held = [operand for _, operand in roots.gradients()]  # or another would get its id
        for operand in [
            *self.state.values(),
            *(leaf._operand for leaf in leaves if isinstance(leaf, Tensor)),
        ]:
            operand.converted = None  # made before the call, so no part of it

    def source(self, operand: Any, tape: Tape) -> Source:
        """Where a replay finds an operand from outside."""
        key = id(operand)
        if type(operand) is Scalar:
            return scalar_source(operand, tape)
        if key in self.arguments:
            return Source("argument", self.arguments[key])
        if key in self.state:
            return Source("state", operand)
        if key in self.gradients:
            return Source("gradient", self.gradients[key])
        made = next((number for number, other in enumerate(tape.made) if other is operand), -1)
        if made >= 0:
            return Source("made", made)
        if key in tape.handed:
            return Source("plain", (operand.spec.mesh.size, tape.handed[key]))
        raise CaptureError(
            f"capture(): the function uses a tensor of shape {list(operand.spec.shape)} that is neither an "
            "argument nor within its reach (closure, globals, attributes); pass it as an argument"
        )

    def slots(self, tape: Tape) -> dict[int, int]:
        """Numbers on the tape of the plain tensors among the arguments, by place."""
        return {
            place: tape.number(leaf)
            for place, leaf in enumerate(self.leaves)
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, Tensor)
        }
