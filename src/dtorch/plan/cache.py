"""Plans by structure. A sequence of familiar calls gets a plan when it is met, another one the second time.

Until then it is interpreted. Plans hold no values. The cache is bounded; `stats()` tells how it does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, NamedTuple

from dtorch.op.operand import Everywhere, Failed, Operand
from dtorch.plan.codegen import Plan, generate
from dtorch.plan.interpreter import give, interpret
from dtorch.plan.passes import state
from dtorch.plan.passes.listed import selected
from dtorch.plan.pieces import Piece, pieces_of
from dtorch.plan.running import Running
from dtorch.plan.structure import Flags, Numbered, Selection, Structure

MAX_PLANS = 512
"""Structures whose plans are kept, least recently used first to go."""
MAX_VARIANTS = 8
"""Plans of one structure, which differ in what is wanted."""
MAX_MET = 8192
"""Sequences remembered by their hash as met once; a program whose lengths grow meets a new one a step."""
MAX_EXTRA_BYTES = 2**20
"""A plan serves where fewer of its outputs are wanted, if the others, held to its end, take at most this."""


@dataclass
class PlanStats:
    """How often sequences ran, and how.

    Attributes:
        plans: plans held now.
        made: plans generated so far.
        hits: sequences that ran by a plan.
        interpreted: sequences that ran node by node.
    """

    plans: int = 0
    made: int = 0
    hits: int = 0
    interpreted: int = 0


class Known(NamedTuple):
    """What is known of sequences of one structure.

    Attributes:
        structure: theirs.
        plans: by which outputs are wanted; the plan may make more.
    """

    structure: Structure
    plans: dict[Flags, Plan]


_KNOWN: OrderedDict[Any, Known] = OrderedDict()
_MET: OrderedDict[int, None] = OrderedDict()
_STATS = PlanStats()
_LOCK = RLock()
_watched: list[Plan] | None = None


def stats() -> PlanStats:
    """A copy of the counts."""
    with _LOCK:
        plans = sum(len(set(known.plans.values())) for known in _KNOWN.values())
        return replace(_STATS, plans=plans)


def forget() -> None:
    """Drop all plans and counts."""
    with _LOCK:
        _KNOWN.clear()
        _MET.clear()
        _STATS.__init__()  # type: ignore[misc]


@contextmanager
def watched() -> Iterator[list[Plan]]:
    """Inside, every sequence runs by a plan; the list fills with those that ran, in order."""
    global _watched
    before, _watched = _watched, []
    try:
        yield _watched
    finally:
        _watched = before


def note(plan: Plan) -> None:
    """Tell who watches that a plan runs."""
    if _watched is not None:
        _watched.append(plan)


def run(nodes: list[Any], converted: list[Operand]) -> None:
    """Run a recorded sequence and give the wanted operands their parts.

    Args:
        nodes: the sequence, emptied when it starts to run; an interrupt leaves here what has not run.
        converted: operands that hold a conversion recorded among the nodes.

    Raises:
        Exception: what the first failing operator raised, naming it, its placements and the user's line. Its
            outputs, and what depends on them, raise the same when read; everything else has run.
        KeyboardInterrupt: as it came.
    """
    numbered = Numbered(nodes)
    key = numbered.key, state.present()
    known = _KNOWN.get(key)
    structure = Structure.of(nodes, numbered) if known is None else known.structure
    if converted:
        structure.drop_conversions(numbered, converted)
    flags = structure.wanted(numbered)
    plan = None if known is None else known.plans.get(flags)
    if plan is not None:
        _count_hit(key)
        if plan.waiting is not None and plan.waiting.tick():
            plan = _renew(known, plan)
    else:
        selection = selected(structure, flags)
        if not selection.nodes:
            nodes.clear()
            return
        plan = _plan_for(key, structure, selection, flags, make=_watched is not None)
        if plan is None:
            pieces = pieces_of(nodes, structure, selection)
            if len(pieces) > 1:
                numbered.release()
                _run_pieces(nodes, pieces)
                return
            if pieces[0].familiar:
                plan = _plan_for(key, structure, selection, flags, make=True)
            del pieces  # which hold what the nodes read
    if plan is not None:
        structure, selection = plan.structure, plan.selection
    _run(Running(structure, selection, numbered, flags), plan, numbered, nodes)


def _run_pieces(nodes: list[Any], pieces: list[Piece]) -> None:
    """Run the pieces of a sequence one by one, as `run` does the whole."""
    nodes.clear()
    first: Exception | None = None
    for number, piece in enumerate(pieces):
        try:
            numbered = Numbered(piece.nodes)
            structure = Structure.of(piece.nodes, numbered)
            selection, key = selected(structure, piece.flags), (numbered.key, state.present())
            plan = _plan_for(key, structure, selection, piece.flags, piece.familiar, piece.short)
            if plan is not None:
                structure, selection = plan.structure, plan.selection
            _run(Running(structure, selection, numbered, piece.flags), plan, numbered, piece.nodes)
        except Exception as error:
            first = first or error
        except BaseException:
            nodes[:] = [node for unfinished in pieces[number:] for node in unfinished.nodes]
            raise
    if first is not None:
        raise first


def _run(running: Running, plan: Plan | None, numbered: Numbered, nodes: list[Any]) -> None:
    """Run by a plan, or node by node where there is none."""
    nodes.clear()
    numbered.release()
    ordered = running.selection.nodes
    if plan is None or Failed in map(type, running.parts):  # which no variable here may hold while they run
        _STATS.interpreted += 1
        interpret(running, ordered, running.values(), nodes)
        return
    note(plan)
    try:
        results = plan.function(running.parts)
    except BaseException as error:
        at, values = _where(error, plan, running)
        failure: BaseException | None = error.with_traceback(
            None
        )  # its frames hold all that the plan has made
        if isinstance(error, Exception) and at in [
            c.candidate.nodes[0] for c in plan.rewritten.fused.values()
        ]:
            failure = None  # made one by one, the calls of the region tell which of them fails
    else:
        wanted = running.results
        for number, made in zip(plan.selection.wanted, results, strict=True):
            if number in wanted:
                give(wanted[number], made)
        return
    for number, operand in running.results.items():
        if number in values:
            give(operand, values[number])
    interpret(running, ordered[ordered.index(at) :], values, nodes, failure)


def _where(error: BaseException, plan: Plan, running: Running) -> tuple[int, dict[int, Any]]:
    """The node at which a plan failed, and the values that it had made by then."""
    at, local = plan.node_at(error)
    order = plan.selection.nodes
    if running.parts or not local:  # it had not begun
        return order[0], running.values()
    at = order[0] if at < 0 else at
    before = [plan.structure.outputs[node] for node in order[: order.index(at)]]
    made = set(plan.selection.bound).union(*before)
    values: dict[int, Any] = {}
    for number, names in plan.names.items():
        if type(names) is Everywhere:
            if names.value in local:
                values[number] = Everywhere(local[names.value])
        elif number in made and all(name in local for name in names):
            values[number] = [local[name] for name in names]
    return at, values


def _count_hit(key: Any) -> None:
    with _LOCK:
        if key in _KNOWN:
            _KNOWN.move_to_end(key)
        _STATS.hits += 1


def _plan_for(
    key: Any,
    structure: Structure,
    selection: Selection,
    flags: Flags,
    make: bool = False,
    only_made: bool = False,
) -> Plan | None:
    """A plan that makes these outputs, or None; with `only_made` no new one is made.

    One is made at once with `make`, or else the second time it is asked for.
    """
    with _LOCK:
        known = _KNOWN.get(key) or Known(structure, {})
        plan = known.plans.get(flags) or _with_more(known, selection)
        if plan is None:
            if only_made or not (make or _is_met(hash((key, flags)))):
                return None
            plan = generate(known.structure, selection, state.present())
            _STATS.made += 1
        known.plans[flags] = plan
        if len(known.plans) > MAX_VARIANTS:
            del known.plans[next(iter(known.plans))]
        _KNOWN[key] = known
        if len(_KNOWN) > MAX_PLANS:
            _KNOWN.popitem(last=False)
        _count_hit(key)
        return plan


def _renew(known: Any, plan: Plan) -> Plan:
    """Write a plan anew, and let it serve where the old one did."""
    with _LOCK:
        new = plan.renewed()
        for flags, old in known.plans.items():
            if old is plan:
                known.plans[flags] = new
        return new


def _is_met(sequence: int) -> bool:
    """Whether a sequence, given by its hash, was met before; from now on it is."""
    if sequence in _MET:
        return True
    _MET[sequence] = None
    if len(_MET) > MAX_MET:
        _MET.popitem(last=False)
    return False


def _with_more(known: Known, selection: Selection) -> Plan | None:
    """A plan that runs the same nodes, and makes little beside what is wanted."""
    for plan in set(known.plans.values()):
        extra = set(plan.selection.wanted).difference(selection.wanted)
        covers = len(plan.selection.wanted) == len(selection.wanted) + len(extra)
        same = plan.asked[1].nodes == selection.nodes
        if covers and same and known.structure.nbytes(extra) <= MAX_EXTRA_BYTES:
            return plan
    return None
