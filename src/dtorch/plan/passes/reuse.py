"""An element-wise result is written over an operand that nobody reads any more.

Each element is read before it is written, and the kernel is the same, so the bits are. Fresh memory costs:
large blocks come from the operating system, page by page. Done on cpu, for results of one call of torch.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Any

from dtorch.op.local import Local
from dtorch.op.param import Slot, TorchCall
from dtorch.op.schema import schema_of
from dtorch.ops.standard.convert import Convert
from dtorch.plan.passes.draft import Draft
from dtorch.plan.passes.table import Pass, Row
from dtorch.spec import Spec

MIN_BYTES = 2**16
"""Smaller results are left alone: their memory comes from a pool, and a call with `out=` is slower."""

ELEMENT_WISE = frozenset(
    f"aten.{name}"
    for name in (
        "abs", "add", "addcdiv", "addcmul", "clamp", "clamp_max", "clamp_min", "cos", "div", "erf", "exp",
        "gelu", "gelu_backward", "hardtanh", "leaky_relu", "lerp", "log", "maximum", "minimum", "mul", "neg",
        "pow", "reciprocal", "rsqrt", "sigmoid", "sigmoid_backward", "silu", "silu_backward", "sin", "sqrt",
        "square", "sub", "tanh", "tanh_backward", "threshold_backward",
    )
)  # fmt: skip
"""Operators whose kernel reads and writes element by element, tested bit for bit."""

_MAKERS = ELEMENT_WISE | {"aten.mm", "aten.bmm", "aten.addmm", "aten.relu", "aten.baddbmm"}
"""Operators whose result is compact memory of its own."""


@cache
def out_of(func: Any) -> Any | None:
    """The overload that writes what `func` gives into a tensor it is given; None where there is none."""
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    packet = func.overloadpacket
    for kind in packet.overloads():
        candidate = getattr(packet, kind)
        outs = schema_of(candidate).outs
        inputs = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out]
        if len(outs) == 1 and inputs == wanted:
            return candidate
    return None


class OverOperand:
    """A program that writes its result over one of its inputs where it is written into a plan's source.

    Where the sequence is interpreted instead, something has failed, and the program runs as it was.
    """

    def __init__(self, program: Any, call: TorchCall, operand: int) -> None:
        self.program = program
        self.operand = operand
        out = out_of(call.func)
        self.func, self.name = out, schema_of(out).outs[0]

    def run(self, inputs: Any) -> Any:
        """As it was."""
        return self.program.run(inputs)

    def write(self, source: Any, node: int, inputs: list[Any]) -> list[list[str]]:
        """Write a call for each distinct shard, `out=` its own operand."""
        calls, target = self.program.torch_calls(), inputs[self.operand]
        if calls is None or len({target[position] for position, _ in calls}) != len(calls):
            return self.program.write(source, node, inputs)
        specs = [None if x is None else x.spec for x in self.program.operator.inputs]
        names: dict[int, str] = {}
        for i, (position, local) in enumerate(calls):
            names[position] = f"v{node}_0_{i}"
            kwargs = {**local.kwargs, self.name: Slot(self.operand, specs[self.operand])}
            here = Local(local.coord, self.func, local.args, kwargs)
            source.call(here, node, [part[position] for part in inputs], [names[position]], specs)
        return [[names[position] for position in self.program.owner]]


def fresh_result(draft: Draft, node: int) -> Spec | None:
    """The one result of a call of torch on cpu that writes nothing, if it has memory of its own."""
    recipe, plans = draft.recipes[node], draft.recipes[node].outputs
    if recipe.written or not plans or len(plans) != 1 or plans[0].source != "fresh" or draft.is_fused(node):
        return None
    spec: Spec | None = plans[0].spec
    if spec is None or spec.mesh.device_type != "cpu":
        return None
    return spec if isinstance(draft.operator(node).param, TorchCall) else None


def dying(draft: Draft, node: int) -> int | None:
    """The input that the pass, where it is on, writes the result of a call over; None for none."""
    recipe, operator, spec = draft.recipes[node], draft.operator(node), fresh_result(draft, node)
    if spec is None or operator.name not in ELEMENT_WISE or not spec.is_dense:
        return None
    if spec.nbytes < MIN_BYTES * spec.mesh.size or out_of(operator.call.func) is None:
        return None
    if getattr(recipe.program, "torch_calls", lambda: None)() is None:
        return None
    for i, number in enumerate(draft.inputs[node]):
        if draft.spec(number) is spec and _is_free(draft, node, number):
            return i
    return None


def _is_free(draft: Draft, node: int, number: int) -> bool:
    """Whether compact memory that a node here made holds nothing that is looked at behind `node`."""
    maker = draft.maker.get(number)
    if maker is None or draft.root(number) != number or not draft.is_temporary(number):
        return False
    operator = draft.operator(maker)
    if not isinstance(operator, Convert) and operator.name not in _MAKERS:
        return False
    here = draft.place[node]
    others = [other for other in draft.aliases(number) if other != number]
    if any(other in draft.inputs[node] for other in others):
        return False
    return all(
        draft.place[reader] <= here for other in (number, *others) for reader in draft.readers.get(other, ())
    )


def _over(draft: Draft, node: int, operand: int) -> str:
    recipe = copy(draft.recipes[node])
    call = recipe.operator.param
    assert isinstance(call, TorchCall)
    recipe.program = OverOperand(recipe.program, call, operand)
    recipe.written = (operand,)
    draft.recipes[node] = recipe  # what shares storages now is dead but for this result
    return f"written over its input {operand}, {recipe.outputs[0].spec.nbytes:,} bytes not asked for"


REUSE = Pass("reuse", "write results over operands that die", (Row(dying, _over),))
