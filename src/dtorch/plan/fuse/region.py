"""A fused region as a plan calls it: one compiled function for each distinct shard."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dtorch.inductor import worth
from dtorch.inductor.spelt import NUMBERS, numbered
from dtorch.op.param import Slot
from dtorch.plan.fuse.blocked import cut_of
from dtorch.plan.fuse.candidate import Candidate
from dtorch.plan.fuse.legality import local_calls, local_stride

if TYPE_CHECKING:
    from dtorch.inductor.blocks import Blocks
    from dtorch.inductor.listing import Meta
    from dtorch.inductor.region import Region
    from dtorch.plan.codegen import PlanText
    from dtorch.plan.passes.draft import Draft

ENDED = ("compiled", "refused", "failed", "off")


class FusedCall:
    """The region of a candidate, for each position that computes.

    Attributes:
        candidate: which calls.
        given: numbers of the tensors that it takes.
        varying: those of the numbers that it takes behind them, in one tensor.
        regions: by position.

    Args:
        draft: of the sequence.
        candidate: which calls.
    """

    def __init__(self, draft: Draft, candidate: Candidate) -> None:
        self.candidate = candidate
        inputs = [n for n in candidate.inputs if n not in draft.facts.constants]
        self.given = [n for n in inputs if draft.spec(n) is not None]
        self.varying = [n for n in inputs if draft.spec(n) is None]
        first = draft.recipes[candidate.nodes[0]]
        coords, self.owner = first.operator.mesh.coords, first.program.owner
        made: dict[Any, Region] = {}
        self.regions: dict[int, Region] = {}
        for i, position in enumerate(first.program.positions):
            metas = _metas(self, draft, coords[position])
            if metas not in made:
                made[metas] = _region(draft, self, i, metas, coords[position])
            self.regions[position] = made[metas]

    def start(self) -> None:
        """Have all compiled in the background."""
        for region in self.regions.values():
            region.start()

    @property
    def has_ended(self) -> bool:
        """Whether all are compiled, or will not be."""
        return all(region.state in ENDED for region in self.regions.values())

    @property
    def is_compiled(self) -> bool:
        """Whether all are."""
        return all(region.state == "compiled" for region in self.regions.values())

    def why(self) -> str:
        """State of the regions that are not compiled, or of all."""
        found = [region.why() for region in self.regions.values()]
        return next((text for text in found if text != "compiled"), "compiled")

    def write(self, source: PlanText, names: dict[int, Any]) -> None:
        """Write a call for each distinct shard, and name what it gives.

        A line belongs to the first of the calls: from there on they are made one by one if it fails.

        Args:
            source: the plan's text.
            names: variables of the operands; those of the results are entered.
        """
        candidate, first = self.candidate, self.candidate.nodes[0]
        variables: dict[int, list[str]] = {}
        for position, region in self.regions.items():
            given = [str(names[number][position]) for number in self.given]
            if self.varying:
                values = [names[number].value for number in self.varying]
                given.append(f"{source.constant(_as_tensor)}([{', '.join(values)}])")
            variables[position] = [f"v{first}_{j}_{position}" for j in range(len(candidate.outputs))]
            call = f"{source.constant(region)}([{', '.join(given)}])"
            made = f"{', '.join(variables[position])}, = " if candidate.outputs else ""
            source.line(f"{made}{call}", first)
        for j, number in enumerate(candidate.outputs):
            names[number] = [variables[owner][j] for owner in self.owner]


def _as_tensor(numbers: list[float]) -> torch.Tensor:
    """Numbers as one tensor: torch's calls take an element in the place of a number, and give the same."""
    return torch.frombuffer(array("d", numbers), dtype=torch.float64)


def _metas(call: FusedCall, draft: Draft, coord: tuple[int, ...]) -> tuple[Any, ...]:
    """What the compiled code of a device is given."""
    from dtorch.inductor.listing import Meta

    metas = [_meta(draft, number, coord) for number in call.given]
    numbers = [Meta((len(call.varying),), (1,), "float64")] if call.varying else []
    return (*metas, *numbers)


def _meta(draft: Draft, number: int, coord: tuple[int, ...]) -> Meta:
    """That of the part of an operand."""
    from dtorch.inductor.listing import Meta

    spec = draft.spec(number)
    stride = None if spec is None else local_stride(spec, coord)
    assert spec is not None
    assert stride is not None
    return Meta(spec.local_shape(coord), stride, str(spec.dtype).removeprefix("torch."))


def _region(draft: Draft, call: FusedCall, i: int, metas: Sequence[Any], coord: tuple[int, ...]) -> Region:
    from dtorch.inductor.region import Region

    candidate, steps = call.candidate, []
    for node in candidate.nodes:
        recipe, calls = draft.recipes[node], local_calls(draft.recipes[node])
        assert calls is not None
        made = tuple(zip(recipe.kept, draft.outputs[node], strict=True))
        steps.append((_with_number(draft, node) or calls[i][1].call, draft.inputs[node], made))
    kinds = [draft.recipes[node].operator.kind_name() for node in candidate.nodes]
    name = f"Fuse({', '.join(kinds)})"
    constants = draft.facts.constants
    same = {n: constants[n] for n in candidate.inputs if n in constants}
    function = _function(steps, call.given, call.varying, candidate.outputs, same)
    blocks = _blocks(draft, call, steps, same, coord) if candidate.by_blocks else None
    return Region(function, metas, name=name, mode=draft.mode, blocks=blocks)


def _blocks(
    draft: Draft,
    call: FusedCall,
    steps: Sequence[Any],
    constants: Mapping[int, float],
    coord: tuple[int, ...],
) -> Blocks:
    """How a region is made by blocks on the device at a coordinate."""
    from dtorch.inductor.blocks import Blocks
    from dtorch.inductor.cut import Cut

    candidate, cut = call.candidate, cut_of(draft, call.candidate, coord)
    assert isinstance(cut, Cut)
    results = draft.outputs[candidate.nodes[0]]
    first = [call.given[i] for i in cut.first]
    rest = [call.given[i] for i in cut.behind if i < len(call.given)]
    return Blocks(
        cut,
        _function(steps[:1], first, (), results, {}),
        _function(steps[1:], (*results, *rest), call.varying, candidate.outputs, constants),
        tuple(_meta(draft, number, coord) for number in candidate.outputs),
    )


def _with_number(draft: Draft, node: int) -> Callable[[list[Any]], Any] | None:
    """A call whose number varies and is handed over as a tensor, where torch takes none; None for others."""
    operator = draft.operator(node)
    name = NUMBERS.get(operator.name)
    slot = operator.arguments.get(name) if name else None
    if not isinstance(slot, Slot) or draft.inputs[node][slot.index] in draft.facts.constants:
        return None
    function, places = numbered(operator.name), [s.index for s in operator.call.args]
    in_place = bool(draft.recipes[node].written)

    def call(values: list[Any]) -> Any:
        made = function(*[values[place] for place in places], values[slot.index])
        return values[0].copy_(made) if in_place else made

    return call


def _function(
    steps: Sequence[tuple[Any, tuple[int, ...], tuple[tuple[int, int], ...]]],
    tensors: Sequence[int],
    numbers: Sequence[int],
    outputs: tuple[int, ...],
    constants: Mapping[int, float],
) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """The calls one after the other, given tensors, and numbers that vary in one behind them."""

    def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
        values: dict[int, Any] = {**constants, **dict(zip(tensors, given, strict=False))}
        values.update(zip(numbers, given[-1].unbind() if numbers else (), strict=True))
        for call, read, made in steps:
            result = call([values[number] for number in read])
            results = result if isinstance(result, (list, tuple)) else [result]
            values.update((number, results[j]) for j, number in made)
        return [values[number] for number in outputs]

    return run


class Waiting:
    """Counts the runs of a plan until its regions are worth compiling, and then until they are compiled."""

    def __init__(self, calls: Sequence[FusedCall]) -> None:
        self.calls = calls
        self.saving_ns = sum(call.candidate.saving_ns for call in calls)
        self.runs = 0
        self.started = False

    def tick(self) -> bool:
        """Note a run; whether it is time to write the plan anew."""
        self.runs += 1
        if not self.started and self.runs * self.saving_ns >= worth.SAVED_NS:
            self.start()
        return self.started and all(call.has_ended for call in self.calls)

    def start(self) -> None:
        """Have all regions compiled now."""
        self.started = True
        for call in self.calls:
            call.start()
