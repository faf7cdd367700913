"""The judge of placement rules, by brute force.

For one call on small meshes, every row of input placements is tried: whole, cut at each dim, pending sums of
mixed sign and unequal size. The operator's own kernel runs on the shards, and what it gives is put together
as every output placement would have it. So the oracle knows which rules are true:

    wrong     a rule that is listed and gives another value, shape or dtype than plain torch, on shards,
              through the engine, or in a gradient
    missing   input placements for which some output placement is right, and no rule is listed

    verdict = judge(torch.ops.aten.mm.default, torch.randn(4, 5), torch.randn(5, 7))
    print(verdict)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from dtorch.errors import DtorchError
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operator import Operator
from dtorch.op.signature import PlacementSignature, Role, Row, role_text
from dtorch.testing.calls import Call
from dtorch.testing.engine import Reference
from dtorch.testing.local import Bench, Layouts, layout_of, rows

MESHES = ((2,), (3,))
MAX_ROWS = 400
"""Rows of input placements tried for one call on one mesh; listed ones and their neighbours come first."""
MAX_PAIRS = 6
"""Pairs of rules tried on a mesh of two axes."""


class Finding(NamedTuple):
    """A rule that is wrong, or one that is missing."""

    mesh_shape: tuple[int, ...]
    rule: str
    why: str

    def __str__(self) -> str:
        return f"on {list(self.mesh_shape)}  {self.rule}   {self.why}"


@dataclass
class Verdict:
    """What the oracle found for one call.

    Attributes:
        call: in words.
        listed: rules that the operator has on one axis.
        tried: rows of input placements tried, over all meshes.
        wrong, missing: what is not as it should be.
    """

    call: str
    listed: int = 0
    tried: int = 0
    wrong: list[Finding] = field(default_factory=list)
    missing: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.call}: {self.listed} rules, {self.tried} rows tried"]
        lines += [f"  wrong    {finding}" for finding in self.wrong]
        lines += [f"  missing  {finding}" for finding in self.missing]
        return "\n".join(lines)


def judge(func: Any, *args: Any, **kwargs: Any) -> Verdict:
    """Judge the rules of a torch operator on one call.

    Args:
        func: a torch overload, such as `torch.ops.aten.mm.default` or one of your own library.
        args: its arguments; give tensors distinct sizes and generic values of mixed sign.
        kwargs: further arguments.
    """
    return judge_call(Call.of(func, *args, **kwargs))


def judge_call(
    call: Call,
    meshes: Sequence[tuple[int, ...]] = MESHES,
    max_rows: int = MAX_ROWS,
    seed: int = 0,
    operator_class: type[Operator] | None = None,
    engine: bool = True,
    backward: bool = True,
    unlisted: bool = True,
) -> Verdict:
    """Judge one call.

    Args:
        call: what to run.
        meshes: mesh shapes of one axis.
        max_rows: rows of input placements tried on each mesh.
        seed: of pending sums and samples.
        operator_class: judge this class, on shards only, instead of the one that serves the call.
        engine: whether listed rules also run through the engine, on these meshes and on [2, 2].
        backward: whether their gradients are compared too.
        unlisted: whether rules are tried that are not listed, to find those that are missing.
    """
    verdict = Verdict(str(call))
    missing: dict[str, list[Finding]] = {}
    reference = Reference(call, seed, backward) if engine and operator_class is None else None
    listed: dict[tuple[Role, ...], Sequence[Layout]] = {}
    for shape in meshes:
        bench = Bench(call, DeviceMesh("cpu", list(range(shape[0]))), seed, operator_class)
        listed = _judge_on(bench, verdict, missing if unlisted else None, max_rows, seed, reference)
    # On one mesh the cuts of two sizes may fall together by accident.
    verdict.missing = [found[0] for found in missing.values() if len(found) == len(meshes)]
    verdict.listed = len(listed)
    if reference is not None:
        _two_axes(reference, call, list(listed), verdict, seed)
    return verdict


def _judge_on(
    bench: Bench,
    verdict: Verdict,
    missing: dict[str, list[Finding]] | None,
    max_rows: int,
    seed: int,
    reference: Reference | None,
) -> dict[tuple[Role, ...], Sequence[Layout]]:
    rules = Rules(bench)
    generator = torch.Generator().manual_seed(seed)
    listed: dict[tuple[Role, ...], Sequence[Layout]] = {}
    shape = bench.mesh.shape
    if rules.unknown:
        why = None if reference is None else reference.wrong(bench.whole(), bench.mesh, seed)
        if why is not None:
            verdict.wrong.append(Finding(shape, "all whole", f"through the engine: {why}"))
        return {tuple(None if x is None else "R" for x in bench.call.inputs): []}
    other = _with_other_values(bench) if missing is not None else None
    for roles in rows(bench.call, rules.inputs(), max_rows, generator):
        verdict.tried += 1
        layouts = bench.layouts([None if r is None else (r,) for r in roles])
        outputs = rules.outputs(roles, layouts)
        if outputs is None:
            right = (
                _always_right(bench, layouts, other)
                if missing is not None and bench.call.is_generic and not _cuts_one(bench.call, roles)
                else None
            )
            if right is not None and missing is not None:
                text = rule_text(roles, right)
                missing.setdefault(text, []).append(Finding(shape, text, ""))
            continue
        listed[roles] = outputs
        text = rule_text(roles, outputs)
        found = [why for why in bench.wrong(layouts, outputs) if why is not None]
        if not found and reference is not None:
            # Where several inputs are pending the engine may find it cheaper to reduce first.
            exact = "P" not in roles or sum(r is not None for r in roles) == 1
            why = reference.wrong(layouts, bench.mesh, seed, "error" if exact else "auto")
            found = [f"through the engine: {why}"] if why is not None else []
        if found:
            verdict.wrong.append(Finding(shape, text, found[0]))
    return listed


def _cuts_one(call: Call, roles: tuple[Role, ...]) -> bool:
    """Whether a dim of size 1 is cut: broadcasting makes much right by accident then."""
    return any(
        isinstance(role, int) and x is not None and x.shape[role] == 1
        for x, role in zip(call.inputs, roles, strict=True)
    )


def _with_other_values(bench: Bench) -> Bench | None:
    """The same call with values that are surely generic: those of a sample may be all but 0, or 1 in truth.

    None where torch refuses such values.
    """
    generator = torch.Generator().manual_seed(bench.mesh.size)
    with suppress(RuntimeError):
        return Bench(bench.call.with_values(generator), bench.mesh, 7, bench.operator_class)
    return None


def _always_right(bench: Bench, layouts: Layouts, other: Bench | None) -> list[Layout] | None:
    """Layouts of the outputs that are right, and stay so with other pending sums, and with other values."""
    right = bench.right_outputs(layouts)
    if not all(right):
        return None
    chosen = [options[0] for options in right]
    if any(any(bench.wrong(layouts, chosen, seed)) for seed in (101, 102, 103)):
        return None
    return None if other is not None and any(other.wrong(layouts, chosen)) else chosen


class Rules:
    """What an operator lists on one axis: rows of its signature, or what its own `place` leaves as it is."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.by_place = bench.operator_class.place is not Operator.place
        self.unknown = False
        self.signature: PlacementSignature | None = None
        try:
            whole = bench.operator(bench.whole())
            whole.infer_output_meta_info()
            if not self.by_place:
                self.signature = whole.signature
        except DtorchError:
            raise
        except Exception:
            # No shape without a run (a mask as index): the engine takes the general path, everything whole.
            self.unknown = True

    def inputs(self) -> list[tuple[Role, ...]]:
        """Rows of input roles that are listed, as far as they are written down."""
        if self.signature is None:
            return []
        present = [x is not None for x in self.bench.call.inputs]
        return [
            tuple(role if there else None for role, there in zip(row.inputs, present, strict=True))
            for row in self.signature.rows
        ]

    def outputs(self, roles: tuple[Role, ...], layouts: Layouts) -> Sequence[Layout] | None:
        """Layouts of the outputs where the inputs are legal as they are, else None."""
        if self.signature is not None:
            row = self.signature.find(roles)
            return None if row is None else self._layouts_of(row)
        operator = self.bench.operator(layouts)
        choice = operator.place()
        if choice is not None and all(a is b for a, b in zip(choice.inputs, layouts, strict=True)):
            return choice.outputs
        # What is pending may be legal, and reduced first all the same where that is as cheap.
        pending = "P" in roles and all(role in ("R", "P", None) for role in roles)
        row = operator.signature.find(roles) if pending else None
        return None if row is None else self._layouts_of(row)

    def _layouts_of(self, row: Row) -> list[Layout]:
        shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else () for x in self.bench.expected]
        return [layout_of(self.bench.mesh, s, (role,)) for s, role in zip(shapes, row.outputs, strict=True)]


def _two_axes(
    reference: Reference, call: Call, listed: list[tuple[Role, ...]], verdict: Verdict, seed: int
) -> None:
    """Pairs of rules on two axes: each rule with itself (two axes on one dim) before others."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
    pairs = [(a, a) for a in listed] + [(a, b) for a in listed for b in listed if a != b]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed)).tolist()
    order.sort(key=lambda i: pairs[i][0] != pairs[i][1])
    half = len(listed) if len(listed) < MAX_PAIRS // 2 else MAX_PAIRS // 2
    for i in [*order[:half], *order[len(listed) :][: MAX_PAIRS - half]]:
        first, second = pairs[i]
        layouts = tuple(
            None if x is None else layout_of(mesh, x.shape, (a, b))
            for x, a, b in zip(call.inputs, first, second, strict=True)
        )
        why = reference.wrong(layouts, mesh, seed)
        if why is not None:
            text = " and ".join(", ".join(map(role_text, row)) for row in pairs[i])
            verdict.wrong.append(Finding(mesh.shape, text, f"through the engine: {why}"))


def rule_text(roles: Sequence[Role], outputs: Sequence[Layout]) -> str:
    """`S(0), R -> S(0)`"""
    right = ", ".join(role_text(layout.role(0)) for layout in outputs)
    return f"{', '.join(map(role_text, roles))} -> {right}"


def assert_rules(*calls: Call, missing: bool = True, **options: Any) -> None:
    """Assert that no rule of these calls is wrong, and, unless `missing` is False, that none is missing.

    Args:
        calls: what to judge, see `judge_call`.
        missing: whether a missing rule is an error.
        options: as `judge_call` takes them.

    Raises:
        AssertionError: with the verdicts that are not clean.
    """
    verdicts = [judge_call(call, **options) for call in calls]
    bad = [str(v) for v in verdicts if v.wrong or (missing and v.missing)]
    if bad:
        raise AssertionError("\n".join(bad))
