"""Rewrites of a recorded sequence, made once when its plan is written.

Each pass is a small table of (pattern, rewrite). Results keep every bit, but for passes that run under
"fast" alone. What was recorded stays as it is: only the plan is another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from dtorch.errors import UnsupportedError
from dtorch.plan.facts import NONE, Facts
from dtorch.plan.fuse.fusion import FUSION
from dtorch.plan.passes import state
from dtorch.plan.passes.dead import DEAD
from dtorch.plan.passes.draft import Change, Draft
from dtorch.plan.passes.equal import EQUAL
from dtorch.plan.passes.kept import KEPT
from dtorch.plan.passes.overlap import OVERLAP
from dtorch.plan.passes.redistributes import REDISTRIBUTES
from dtorch.plan.passes.reuse import REUSE
from dtorch.plan.passes.sinking import ADD_FIRST, SINKING
from dtorch.plan.passes.state import State
from dtorch.plan.passes.table import Pass
from dtorch.plan.passes.views import VIEWS
from dtorch.plan.structure import Selection, Structure

PASSES: tuple[Pass, ...] = (
    EQUAL,
    ADD_FIRST,
    SINKING,
    REDISTRIBUTES,
    DEAD,
    VIEWS,
    OVERLAP,
    FUSION,
    REUSE,
    KEPT,
)
"""In the order in which they run; `dead` stands for what was never selected to run, too."""


class Rewritten(NamedTuple):
    """A sequence after the passes that are on.

    Attributes:
        structure, selection: as it is now, and what of it runs.
        changes: what was done.
        candidates: regions that were found, with the decision on each.
        fused: those that run as one call, by their last node.
        waiting: those that are to be, once they are compiled.
    """

    structure: Structure
    selection: Selection
    changes: tuple[Change, ...] = ()
    candidates: tuple[Any, ...] = ()
    fused: Mapping[int, Any] = {}
    waiting: tuple[Any, ...] = ()


def rewritten(
    structure: Structure,
    selection: Selection,
    under: State,
    ready: Mapping[tuple[int, ...], Any] = {},
    facts: Facts = NONE,
) -> Rewritten:
    """Run the passes that are on.

    Args:
        structure, selection: the sequence as recorded, and what of it is to run.
        under: tells which are.
        ready: compiled regions by their nodes.
        facts: what is known of it beside.
    """
    draft = Draft(structure, selection, under.mode, ready, facts)
    for one in PASSES:
        if under.runs(one.name, one.modes):
            one.run(draft)
    return Rewritten(
        *draft.result(), tuple(draft.changes), tuple(draft.candidates), draft.fused, tuple(draft.waiting)
    )


def selected(structure: Structure, flags: tuple[bool, ...]) -> Selection:
    """What of a sequence is to run where these outputs are wanted: with `dead` switched off, everything."""
    selection = structure.select(flags)
    if "dead" not in state.present().off:
        return selection
    nodes = tuple(range(len(structure.recipes)))
    read = {number for numbers in structure.inputs for number in numbers} | set(selection.wanted)
    return Selection(nodes, selection.wanted, tuple(sorted(n for n in read if n >= structure.num_made)))


class passes:
    """The passes over recorded sequences; switched on or off by name, from now on, or inside `with`.

        print(dtorch.passes())
        with dtorch.passes(equal=False):
            ...

    The choice is the process's. A plan that was written under another choice is not used.

    Args:
        switches: for names of passes, whether they run.

    Raises:
        UnsupportedError: no pass has such a name, or it is neither True nor False.
    """

    def __init__(self, *unnamed: Any, **switches: bool) -> None:
        names = [one.name for one in PASSES]
        if unnamed:
            raise UnsupportedError(
                f"passes({unnamed[0]!r}): passes are switched by name, as in passes({names[0]}=False)"
            )
        for name, on in switches.items():
            if name not in names:
                raise UnsupportedError(f"passes({name}=...): there are {', '.join(names)}")
            if not isinstance(on, bool):
                raise UnsupportedError(f"passes({name}={on!r}): a pass is switched by True or False")
        self._before = state.switched_off()
        off = {name for name in (*self._before, *switches) if not switches.get(name, False)}
        state.switch_off(frozenset(off))

    def __enter__(self) -> passes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state.switch_off(self._before)

    def __iter__(self) -> Iterator[Pass]:
        return iter(PASSES)

    def __str__(self) -> str:
        now = state.present()
        return "\n".join(
            f"{one.name:14} {'on ' if now.runs(one.name, one.modes) else 'off'}  {one.does}"
            f"{' (changes rounding: fast alone)' if one.modes == ('fast',) else ''}"
            for one in PASSES
        )

    __repr__ = __str__
