"""The decision whether a region takes in the product that it stands behind."""

from __future__ import annotations

from dataclasses import replace

from dtorch.inductor.cut import Cut
from dtorch.plan.fuse import blocked, price
from dtorch.plan.fuse.candidate import Candidate
from dtorch.plan.fuse.rates import Rates
from dtorch.plan.passes.draft import Draft

_APART = "; the product before it stays a call of its own"


def with_product(draft: Draft, alone: Candidate, now: Rates) -> Candidate:
    """A region with a product that it reads, if making both by blocks pays; else the region, and why not.

    Args:
        draft: the sequence.
        alone: the region, decided.
        now: the rates of the machine.
    """
    if not alone.unfused_ns:
        return alone
    numbers = [number for number in alone.inputs if blocked.is_product(draft, number)]
    sizes = [_nbytes(draft, number) for number in numbers]
    whys = []
    for number in sorted(numbers, key=lambda n: -_nbytes(draft, n)):
        found = _taken(draft, alone, number, now)
        if isinstance(found, Candidate):
            return found
        whys.append(found)
    if not whys:
        return alone
    text = f"{_APART} ({2 * sum(sizes):,} bytes, {len(sizes)} calls): "
    return replace(alone, reason=alone.reason + text + whys[0])


def why_apart(draft: Draft, inputs: tuple[int, ...]) -> str:
    """What is to be said of a product that stands before a region with something in between; else nothing."""
    for number in inputs:
        maker = draft.maker.get(number)
        if maker is None or blocked.is_product(draft, number):
            continue
        if blocked.is_product(draft, draft.root(number)):
            return f"{_APART}: it is read as a view"
        converts = draft.operator(maker).type == "Convert"
        if converts and any(blocked.is_product(draft, n) for n in draft.inputs[maker]):
            return f"{_APART}: devices exchange what it gives"
    return ""


def _taken(draft: Draft, alone: Candidate, number: int, now: Rates) -> Candidate | str:
    """The region with a product, or why it is not taken in."""
    why = blocked.why_not(draft, number, alone.nodes)
    if why:
        return why
    product = draft.maker[number]
    outer = [n for n in alone.inputs if n != number]
    inputs = tuple(dict.fromkeys((*draft.inputs[product], *outer)))
    whole = replace(alone, nodes=(product, *alone.nodes), inputs=inputs, by_blocks=True)
    operator, behind = draft.operator(product), [draft.operator(node) for node in alone.nodes]
    given = [draft.spec(n) for n in outer if n not in draft.facts.constants]
    gives = [spec for n in alone.outputs if (spec := draft.spec(n)) is not None]
    by_itself = together = 0
    sizes = []
    for position in draft.recipes[product].program.positions:
        coord = operator.mesh.coords[position]
        cut = blocked.cut_of(draft, whole, coord)
        if not isinstance(cut, Cut):
            return cut
        sizes.append(cut.size)
        by_itself += price.product_ns(operator, draft.facts.pool is not None, coord, now)
        together += price.blocked_ns(operator, behind, given, gives, cut, coord, now)
    best = by_itself + alone.best_ns
    if not price.pays(best, together):
        return (
            f"by blocks both take {together / 1000:,.1f} us for {best / 1000:,.1f}, "
            f"which saves less than one part in {price.LEAST_SHARE}"
        )
    return replace(
        whole,
        unfused_ns=by_itself + alone.unfused_ns,
        fused_ns=together,
        fused=True,
        reason=f"{_ends(alone)}; with the product, in blocks of {max(sizes):,}",
    )


def _ends(alone: Candidate) -> str:
    """What ends a region, without the refusal of its price."""
    return alone.reason.removeprefix(price.REFUSED)


def _nbytes(draft: Draft, number: int) -> int:
    spec = draft.spec(number)
    return 0 if spec is None else spec.nbytes
