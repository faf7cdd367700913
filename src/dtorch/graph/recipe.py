"""What one key leads to: the inferred operator and everything decided about running it.

A recipe depends on the torch operator, the specs of its operands and its other arguments alone, so it is
built once and shared by all calls that agree on them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from dtorch.graph import lines
from dtorch.graph.rounds import Round
from dtorch.layout import Layout
from dtorch.op.operator import Operator
from dtorch.op.param import TorchCall
from dtorch.spec import Spec

MAX_PLACES = 64
"""Places remembered of one recipe."""
MAX_RECIPES = 20_000
"""Recipes kept, least recently built first to go; a Llama training step has about 300."""


class OutputPlan(msgspec.Struct, frozen=True):
    """What becomes of one output.

    Attributes:
        source: "fresh", "argument" (in-place: the input itself), "view" (of the input, sharing storage),
            "copy" (a view whose input had to be converted: refreshed and written back), "absent" (a tensor
            that was not asked for, as by a backward's `output_mask`: None, even if a kernel makes it), or
            "value" (no tensor).
        input: number of the input meant by argument, view and copy.
        spec: None where it is read off the result.
        target: layout to which a fresh output is brought at once, or None.
        offset: storage offset in elements, from the start of the input's storage.
        moved_by: the input, a number, that adds to the offset, and its step in elements; None for none.
    """

    source: str
    input: int = -1
    spec: Spec | None = None
    target: Layout | None = None
    offset: int = 0
    moved_by: tuple[int, int] | None = None

    def offset_of(self, operands: Sequence[Any]) -> int:
        """The storage offset of a view of one of these operands, numbers beside them."""
        offset = operands[self.input].offset + self.offset
        if self.moved_by is None:
            return offset
        number, step = self.moved_by
        return offset + step * operands[number].parts.value


def without_spec(operator: Operator, number: int) -> OutputPlan:
    """The plan of an output without metadata: a tensor that was not asked for, or no tensor."""
    returns = operator.schema.func._schema.returns if isinstance(operator.param, TorchCall) else ()
    tensor = number < len(returns) and str(returns[number].type) in ("Tensor", "Optional[Tensor]")
    return OutputPlan("absent" if tensor else "value")


class Recipe:
    """An operator, ready to run on operands of given specs.

    Attributes:
        operator: inferred, on operands without value.
        conversions: (input, target layout) to bring inputs to first.
        written: inputs that the operator writes.
        write_back: those of `written` that are written through a converted copy.
        reduce_first: inputs that hold pending sums the operator cannot write into.
        outputs: what becomes of each output.
        program: what the runner made of the operator; None until it runs.
        single: whether torch returns one tensor, not a sequence.
        returns: type of the sequence that torch returns.
        checked: whether a first run has confirmed the inferred metadata.
        lazy: whether later calls may be recorded instead of run: all metadata is known, nothing is drawn.
        draws: whether it gives or writes random numbers that depend on no value, and nothing else.
        kept: numbers of the outputs that become operands.
        moves: whether an output is brought to another layout by a node of its own.
        nbytes: of the outputs that need memory of their own.
        simple: the plan of the one output, fresh or a view, where there is nothing else to record, else None.
        views: whether the outputs view an input.
        places: lines of programs that made the call: in which round last, and whether in one before.
        described: whether it is for described devices, where nothing runs; see `described.py`.
        fault: what the operator's rule raised; raised again where torch itself finds no fault with the call.
    """

    __slots__ = (
        "__weakref__",
        "checked",
        "conversions",
        "described",
        "draws",
        "fault",
        "kept",
        "lazy",
        "moves",
        "nbytes",
        "operator",
        "outputs",
        "places",
        "program",
        "reduce_first",
        "returns",
        "simple",
        "single",
        "views",
        "write_back",
        "written",
    )

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.conversions: tuple[tuple[int, Layout], ...] = ()
        self.written: tuple[int, ...] = ()
        self.write_back: tuple[int, ...] = ()
        self.reduce_first: tuple[int, ...] = ()
        self.outputs: tuple[OutputPlan, ...] | None = None
        self.program: Any = None
        self.single = True
        self.returns: type = tuple
        self.checked = False
        self.lazy = False
        self.draws = False
        self.kept: tuple[int, ...] = ()
        self.moves = False
        self.nbytes = 0
        self.simple: OutputPlan | None = None
        self.views = operator.view_of() is not None
        self.places: dict[Any, tuple[int, bool]] = {}
        self.described = False
        self.fault: Exception | None = None

    def meet(self, place: Any, now: Round) -> bool:
        """Note that a line makes the call now; whether the call will come again.

        One that was made in an earlier round will. Where sizes grow, a line makes another call in each round:
        for all layers of a model in the same one, also where those of the first layer, being new, run at
        once. `lines.py` tells which new ones to expect again.
        """
        last = self.places.get(place)
        if last is None:
            lines.note(place, now)
            if len(self.places) < MAX_PLACES:
                self.places[place] = now.number, False
        elif last[0] != now.number:
            self.places[place] = last = now.number, True
        return (last is not None and last[1]) or lines.returns(place, now)


class Recipes(OrderedDict[Any, Recipe]):
    """Recipes by key, of a bounded number."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def keep(self, key: Any, recipe: Recipe) -> None:
        """Enter a recipe; the oldest one goes where there are too many.

        Not one whose parameters have no key; nor a fault, since exceptions hold frames, and these tensors.
        """
        if key[0] is None or recipe.fault is not None:
            return
        with self._lock:
            self[key] = recipe
            if len(self) > MAX_RECIPES:
                self.popitem(last=False)
