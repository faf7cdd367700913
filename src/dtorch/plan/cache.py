"""Plans by structure: a sequence is interpreted the first time it is met; the second time a plan is made.

Plans hold no values. The cache is bounded; `stats()` tells how it does.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import RLock
from typing import Any

from dtorch.op.operand import Failed
from dtorch.plan.codegen import Plan, generate
from dtorch.plan.interpreter import give, interpret
from dtorch.plan.structure import Structure

MAX_PLANS = 512
"""Plans kept, least recently used first to go."""


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


_PLANS: OrderedDict[Any, Plan | None] = OrderedDict()
_STATS = PlanStats()
_LOCK = RLock()


def stats() -> PlanStats:
    """A copy of the counts."""
    with _LOCK:
        return PlanStats(
            sum(plan is not None for plan in _PLANS.values()),
            _STATS.made,
            _STATS.hits,
            _STATS.interpreted,
        )


def forget() -> None:
    """Drop all plans and counts."""
    with _LOCK:
        _PLANS.clear()
        _STATS.__init__()  # type: ignore[misc]


def run(nodes: list[Any], wanted: list[list[bool]]) -> None:
    """Run a recorded sequence and give the wanted operands their parts.

    Raises:
        Exception: what the first failing operator raised, naming it, its placements and the user's line. Its
            outputs, and what depends on them, raise the same when read; everything else has run.
    """
    structure = Structure(nodes, wanted)
    nodes.clear()
    plan = _plan_for(structure)
    parts, structure.parts = structure.parts, []
    if plan is None or any(type(part) is Failed for part in parts):
        interpret(structure, {-1 - i: part for i, part in enumerate(parts)})
        return
    try:
        results = plan.function(parts)
    except BaseException as error:
        at, values = _where(error, plan, structure)
        interpret(structure, values, at, error)
        return
    for (_, operand), made in zip(structure.results, results, strict=True):
        give(operand, made)


def _where(error: BaseException, plan: Plan, structure: Structure) -> tuple[int, dict[int, Any]]:
    """The node at which a plan failed, and the values that it had made by then."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != "<dtorch plan>":
        trace = trace.tb_next
    if trace is None:
        raise error
    local = trace.tb_frame.f_locals
    at = plan.node_of_line[trace.tb_lineno - 1]
    made = set(range(-len(structure.outside), 0)).union(*structure.outputs[:at])
    return at, {
        number: [local[name] for name in names]
        for number, names in plan.names.items()
        if number in made and all(name in local for name in names)
    }


def _plan_for(structure: Structure) -> Plan | None:
    with _LOCK:
        if structure.key in _PLANS:
            _PLANS.move_to_end(structure.key)
            plan = _PLANS[structure.key]
            if plan is None:
                plan = _PLANS[structure.key] = generate(structure)
                _STATS.made += 1
            _STATS.hits += 1
            return plan
        _PLANS[structure.key] = None
        _STATS.interpreted += 1
        if len(_PLANS) > MAX_PLANS:
            _PLANS.popitem(last=False)
        return None
