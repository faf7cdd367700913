"""Placement rules of an operator that was registered without any, found by trial.

    found = dtorch.discover_rules(torch.ops.mylib.pair_dots, (torch.randn(4, 6), torch.randn(5, 6)))
    print(found)
    found.accept()

Every row of placements is tried on the operator's own kernel, as the judge of rules does (`oracle.py`): what
gives the value of the whole operator on every mesh, for every pending sum and in every example is a rule.
Trial is no proof. It holds for tensors like those of the examples; calls with other numbers of dims, kinds of
dtype, broadcast dims, or arguments that are no tensors keep running on whole tensors, visibly.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, ClassVar

import torch

from dtorch.errors import OperatorError
from dtorch.graph.constructor import GraphConstructor
from dtorch.mesh import DeviceMesh
from dtorch.op import registry
from dtorch.op.operator import Operator
from dtorch.op.param import TorchCall, key_of
from dtorch.op.schema import base_name, has_tag, schema_of
from dtorch.op.signature import PlacementSignature, Role, Row
from dtorch.testing.calls import Call
from dtorch.testing.compare import difference
from dtorch.testing.local import Bench, layout_of, rows
from dtorch.testing.notation import argument_names, dims_of

MESHES = ((2,), (3,))
MAX_ROWS = 2000
"""Rows of input placements tried for one example; an operator with more is refused."""
SEEDS = (101, 102, 103)


class Discovered(Operator, abstract=True):
    """An operator whose rules were found by trial and accepted; each has a class of its own.

    Class attributes:
        found: what a call is like -> its rows.
    """

    type = "Discovered"
    found: ClassVar[dict[Any, tuple[Row, ...]]]

    def get_placement_signature(self) -> PlacementSignature:
        """The rows found for calls like this one; all whole for others."""
        specs = [None if x is None else x.spec for x in self.inputs]
        kind = _kind(self.call, [None if s is None else (s.shape, s.dtype) for s in specs])
        if kind not in self.found:
            return super().get_placement_signature()
        kept = self.found[kind]
        return PlacementSignature(len(self.inputs), len(kept[0].outputs), kept)


def _kind(call: TorchCall, tensors: Sequence[tuple[Any, torch.dtype] | None]) -> Any:
    """What two calls must share to share their rules."""
    like = tuple(
        None if tensor is None else (tuple(min(size, 2) for size in tensor[0]), _dtype_kind(tensor[1]))
        for tensor in tensors
    )
    return like, key_of(list(call.args)), key_of(call.kwargs)


def _dtype_kind(dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return "bool"
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "int"


class Rules:
    """The rules that trial has found for one operator.

    Attributes:
        func: the torch overload.
        found: what a call is like -> its rows, all whole first.
        examples: the calls that were tried, by what they are like.
        notes: what the examples could not tell.
    """

    def __init__(self, func: Any) -> None:
        self.func = func
        self.found: dict[Any, tuple[Row, ...]] = {}
        self.examples: dict[Any, list[Call]] = {}
        self.notes: list[str] = []

    def signatures(self) -> list[PlacementSignature]:
        """The table of each kind of call."""
        return [PlacementSignature(len(r[0].inputs), len(r[0].outputs), r) for r in self.found.values()]

    def accept(self) -> Rules:
        """Use the rules from now on, for calls like the examples.

        Returns:
            These rules.
        """
        name = base_name(self.func)
        cls: Any = registry.own_class_of(self.func)
        if cls is None:
            title = "".join(word[:1].upper() + word[1:] for word in name.split(".")[1].split("_"))
            space = {
                "type": Discovered.type,
                "torch_ops": (name,),
                "found": {},
                "__doc__": f"{name}, its rules found by trial.",
            }
            cls = type(title, (Discovered,), space)
        cls.found.update(self.found)
        GraphConstructor.forget()  # calls made so far were inferred without these rules
        return self

    def __str__(self) -> str:
        lines = []
        for signature, calls in zip(self.signatures(), self.examples.values(), strict=True):
            lines.append(str(calls[0]))
            dims = dims_of(calls[0], signature)
            if dims is not None:
                linear = f"   linear = {', '.join(map(repr, dims.linear))}" if dims.linear else ""
                lines.append(f"  {dims.line}{linear}")
            lines += [f"    {line}" for line in str(signature).splitlines()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    __repr__ = __str__


def discover_rules(op: Any, *examples: Any) -> Rules:
    """Find the placement rules of a torch operator that has none, by trying them on examples.

    Args:
        op: an operator of `torch.library`: what `custom_op` gives, `torch.ops.mylib.f`, or an overload of it.
        examples: calls, each a tuple of arguments (a tensor alone is a tuple of one). Give tensors distinct
            sizes of 4 or more and generic values of mixed sign; several examples for several numbers of dims
            or arguments. A rule must hold in all examples that are alike in all but sizes and values. The
            kernel is run on pieces of any size: it must check sizes, or it may crash.

    Returns:
        The rules. They are used after `accept()`. `notes` says what the examples could not tell, and a
        warning says the same.

    Raises:
        OperatorError: the operator has rules, writes its arguments, is not deterministic, has no fake kernel
            that tells the shapes of its outputs, or too many inputs to try.
    """
    func = _overload(op)
    _check(func)
    if not examples:
        raise OperatorError(
            f"give an example of a call: discover_rules({base_name(func)}, (torch.randn(4, 5),))"
        )
    rules = Rules(func)
    for example in examples:
        call = Call.of(func, *(example if isinstance(example, (tuple, list)) else (example,)))
        _check_call(call)
        kind = _kind(call.param, [None if x is None else (tuple(x.shape), x.dtype) for x in call.inputs])  # type: ignore[arg-type]
        rules.examples.setdefault(kind, []).append(call)
    for kind, calls in rules.examples.items():
        kept = [set(found) for found in map(_true_rows, calls)]
        rules.found[kind] = tuple(row for row in _true_rows(calls[0]) if all(row in found for found in kept))
        rules.notes += _doubts(calls)
    for note in rules.notes:
        warnings.warn(f"discover_rules({base_name(func)}): {note}", stacklevel=2)
    return rules


def _overload(op: Any) -> Any:
    op = getattr(op, "_opoverload", op)
    if isinstance(op, torch._ops.OpOverloadPacket):
        names = op.overloads()
        if len(names) > 1 and "default" not in names:
            raise OperatorError(f"{op} has overloads {', '.join(names)}; name one")
        op = getattr(op, "default" if "default" in names else names[0])
    if not isinstance(op, torch._ops.OpOverload):
        raise OperatorError(f"{op!r} is no operator of torch; register it with torch.library.custom_op")
    return op


def _check(func: Any) -> None:
    own = registry.class_of(func)
    if own.type != "General" and not issubclass(own, Discovered):
        raise OperatorError(f"{base_name(func)} has rules already, those of {own.__name__}")
    if schema_of(func).written or schema_of(func).outs:
        raise OperatorError(f"{base_name(func)} writes its arguments; its rules must be written by hand")
    if has_tag(func, torch.Tag.nondeterministic_seeded):
        raise OperatorError(f"{base_name(func)} draws random numbers; trial tells nothing")


def _check_call(call: Call) -> None:
    name = base_name(call.param.func)  # type: ignore[attr-defined]
    if not any(x is not None for x in call.inputs):
        raise OperatorError(f"{name}: the example has no tensor")
    first = call.run()
    for again in (call.run(), call.run()):
        if any(_differs(one, other) for one, other in zip(first, again, strict=True)):
            raise OperatorError(f"{name} is not deterministic: the same call gives other values")
    bench = Bench(call, DeviceMesh("cpu", [0, 1]), 0, registry.class_by_type("General"))
    try:
        metas = bench.operator(bench.whole()).infer_output_meta_info()
    except Exception as error:
        raise OperatorError(
            f"{name} has no fake kernel that tells the shapes of its outputs; register_fake gives it one"
        ) from error
    for meta, y in zip(metas, first, strict=True):
        if isinstance(y, torch.Tensor) and (
            meta is None or meta.shape != tuple(y.shape) or meta.dtype != y.dtype
        ):
            raise OperatorError(f"{name}: its fake kernel says {meta}, it gives {list(y.shape)} {y.dtype}")


def _differs(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return difference(one, other) is not None
    return bool(one != other)


def _true_rows(call: Call) -> list[Row]:
    """The rows that hold on every mesh, all whole first."""
    whole: tuple[Role, ...] = tuple(None if x is None else "R" for x in call.inputs)
    tried = rows(call, [], MAX_ROWS + 1, torch.Generator().manual_seed(0))
    if len(tried) > MAX_ROWS:
        raise OperatorError(f"{call} has more than {MAX_ROWS} rows of placements to try")
    benches = [
        Bench(call, DeviceMesh("cpu", list(range(shape[0]))), 0, registry.class_by_type("General"))
        for shape in MESHES
    ]
    found = [Row(whole, ("R",) * len(benches[0].expected))]
    for roles in tried:
        if roles != whole and not _cuts_single(call, roles):
            outputs = _outputs(benches, roles)
            if outputs is not None:
                found.append(Row(roles, outputs))
    return found


def _cuts_single(call: Call, roles: tuple[Role, ...]) -> bool:
    """Whether a dim of size 1 or 0 is cut, where much is right by accident."""
    return any(
        isinstance(role, int) and x is not None and x.shape[role] < 2
        for x, role in zip(call.inputs, roles, strict=True)
    )


def _outputs(benches: Sequence[Bench], roles: tuple[Role, ...]) -> tuple[Role, ...] | None:
    """Roles of the outputs that are right on every mesh, and stay so with other pending sums."""
    right: list[list[Role]] | None = None
    for bench in benches:
        options = bench.right_outputs(bench.layouts([None if r is None else (r,) for r in roles]))
        here: list[list[Role]] = [[layout.role(0) for layout in layouts] for layouts in options]
        right = here if right is None else [_both(a, b) for a, b in zip(right, here, strict=True)]
        if not all(right):
            return None
    assert right is not None
    chosen = tuple(options[0] for options in right)
    for bench in benches:
        layouts = bench.layouts([None if r is None else (r,) for r in roles])
        targets = [
            layout_of(bench.mesh, y.shape if isinstance(y, torch.Tensor) else (), (role,))
            for y, role in zip(bench.expected, chosen, strict=True)
        ]
        if any(any(bench.wrong(layouts, targets, seed)) for seed in SEEDS):
            return None
    return chosen


def _both(some: list[Role], others: list[Role]) -> list[Role]:
    return [role for role in some if role in others]


def _doubts(calls: Sequence[Call]) -> Iterator[str]:
    """What calls of one kind cannot tell."""
    names, widest = argument_names(calls[0]), MESHES[-1][0]
    for i, x in enumerate(calls[0].inputs):
        dims = range(0 if x is None else x.ndim)
        for a, b in combinations(dims, 2):
            if all(_size(call, i, a) == _size(call, i, b) > 1 for call in calls):
                yield f"dims {a} and {b} of {names[i]} have one size in every example; rules may mistake them"
        small = [d for d in dims if 1 < max(_size(call, i, d) for call in calls) < widest]
        if small:
            yield f"dims {small} of {names[i]} are smaller than {widest} in every example"
    if not all(call.is_generic for call in calls):
        yield "values are not generic (many zeros, or results all alike), so rules may hold by accident"


def _size(call: Call, i: int, dim: int) -> int:
    x = call.inputs[i]
    return 0 if x is None else x.shape[dim]
