"""Plans by structure: a sequence is interpreted the first time it is met; the second time a plan is made.

Plans hold no values. The cache is bounded; `stats()` tells how it does.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import RLock
from typing import Any
from weakref import WeakSet

from dtorch.op.operand import Everywhere, Failed
from dtorch.plan.codegen import Plan, generate
from dtorch.plan.interpreter import give, interpret
from dtorch.plan.pieces import Piece, pieces_of
from dtorch.plan.structure import Structure

MAX_PLANS = 512
"""Plans kept, least recently used first to go."""
MAX_MET = 8192
"""Sequences remembered by their hash as met once; a program whose lengths grow meets a new one a step."""


@dataclass
class PlanStats:
    """How often sequences ran, and how.

    Attributes:
        plans: plans held now.
        made: plans generated so far.
        hits: sequences that ran by a plan.
        interpreted: sequences that ran node by node, met for the first time.
    """

    plans: int = 0
    made: int = 0
    hits: int = 0
    interpreted: int = 0


_PLANS: OrderedDict[Any, Plan] = OrderedDict()
_MET: OrderedDict[int, None] = OrderedDict()
_KNOWN: WeakSet[Any] = WeakSet()
_STATS = PlanStats()
_LOCK = RLock()


def stats() -> PlanStats:
    """A copy of the counts."""
    with _LOCK:
        return PlanStats(len(_PLANS), _STATS.made, _STATS.hits, _STATS.interpreted)


def forget() -> None:
    """Drop all plans and counts."""
    with _LOCK:
        _PLANS.clear()
        _MET.clear()
        _KNOWN.clear()
        _STATS.__init__()  # type: ignore[misc]


def run(nodes: list[Any], wanted: list[list[bool]]) -> None:
    """Run a recorded sequence and give the wanted operands their parts.

    Args:
        nodes: the sequence, emptied when it starts to run; an interrupt leaves here what has not run.
        wanted: for each node, which of its outputs are.

    Raises:
        Exception: what the first failing operator raised, naming it, its placements and the user's line. Its
            outputs, and what depends on them, raise the same when read; everything else has run.
        KeyboardInterrupt: as it came.
    """
    structure = Structure(nodes, wanted)
    if structure.key not in _PLANS and hash(structure.key) not in _MET:
        pieces = pieces_of(nodes, wanted, _KNOWN)
        if len(pieces) > 1:
            _remember(structure.key)
            del structure
            _run_pieces(nodes, pieces)
            return
        del pieces  # which hold what the nodes read
    _run(nodes, structure)


def _run_pieces(nodes: list[Any], pieces: list[Piece]) -> None:
    """Run the pieces of a sequence one by one, as `run` does the whole."""
    nodes.clear()
    first: Exception | None = None
    for number, piece in enumerate(pieces):
        try:
            _run(piece.nodes, Structure(piece.nodes, piece.wanted))
        except Exception as error:
            first = first or error
        except BaseException:
            nodes[:] = [node for unfinished in pieces[number:] for node in unfinished.nodes]
            raise
    if first is not None:
        raise first


def _run(nodes: list[Any], structure: Structure) -> None:
    plan = _plan_for(structure)
    parts, structure.parts = structure.parts, []
    if plan is None or any(type(part) is Failed for part in parts):
        values = {-1 - i: part for i, part in enumerate(parts)}
        parts.clear()
        nodes.clear()
        interpret(structure, values, nodes)
        return
    nodes.clear()
    failure: BaseException | None = None
    try:
        results = plan.function(parts)
    except BaseException as error:
        at, values = _where(error, plan, structure, parts)
        failure = error.with_traceback(None)  # whose frames hold all that the plan has made
    if failure is None:
        for (_, operand), made in zip(structure.results, results, strict=True):
            give(operand, made)
        return
    for number, operand in structure.results:
        if number in values:
            give(operand, values[number])
    interpret(structure, values, nodes, at, failure)


def _where(
    error: BaseException, plan: Plan, structure: Structure, parts: list[Any]
) -> tuple[int, dict[int, Any]]:
    """The node at which a plan failed, and the values that it had made by then."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != "<dtorch plan>":
        trace = trace.tb_next
    if parts or trace is None:  # it had not begun
        return 0, {-1 - i: part for i, part in enumerate(parts)}
    local = trace.tb_frame.f_locals
    at = max(plan.node_of_line[trace.tb_lineno - 1], 0)
    made = set(range(-len(structure.outside), 0)).union(*structure.outputs[:at])
    values: dict[int, Any] = {}
    for number, names in plan.names.items():
        if type(names) is Everywhere:
            if names.value in local:
                values[number] = Everywhere(local[names.value])
        elif number in made and all(name in local for name in names):
            values[number] = [local[name] for name in names]
    return at, values


def _remember(key: Any) -> None:
    _MET[hash(key)] = None
    if len(_MET) > MAX_MET:
        _MET.popitem(last=False)


def _plan_for(structure: Structure) -> Plan | None:
    key = structure.key
    with _LOCK:
        plan = _PLANS.get(key)
        if plan is not None:
            _PLANS.move_to_end(key)
            _STATS.hits += 1
            return plan
        if hash(key) not in _MET:
            _remember(key)
            _STATS.interpreted += 1
            return None
        plan = _PLANS[key] = generate(structure)
        _KNOWN.update(structure.recipes)
        _STATS.made += 1
        _STATS.hits += 1
        if len(_PLANS) > MAX_PLANS:
            _PLANS.popitem(last=False)
        return plan
