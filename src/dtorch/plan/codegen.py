"""Plans as generated source: straight-line calls, one for each distinct shard, `del` at last use.

    def plan(x):
        a0_0 = x[0][0]
        a0_2 = x[0][2]
        a1_0 = x[1].value
        x.clear()
        v0_0_0 = c1(a0_0, a1_0)
        del a0_0
        v0_0_1 = c2(a0_2, a1_0)
        del a0_2, a1_0
        return [[v0_0_0, v0_0_0, v0_0_1, v0_0_1]]

`a` is an operand from outside and a device; `v` a node, its output and a distinct shard. Every value is a
local variable, so what nobody needs any more is freed at once. A failing line tells its node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dtorch.op.binding import function_of
from dtorch.op.call import arguments_text, flatten
from dtorch.op.local import Local
from dtorch.op.operand import Everywhere
from dtorch.op.operator import Operator
from dtorch.plan.explain import explain
from dtorch.plan.facts import NONE, Facts
from dtorch.plan.fuse.candidate import fuse_of
from dtorch.plan.fuse.region import FusedCall, Waiting
from dtorch.plan.passes.listed import Rewritten, rewritten
from dtorch.plan.passes.state import State
from dtorch.plan.structure import Selection, Structure
from dtorch.spec import Spec

_FILE = "<dtorch plan>"
"""What plans are called where a traceback names files."""
_VARIABLE = re.compile(r"\b[av]\d+_\d+(?:_\d+)?\b")


class PlanText:
    """The text of a plan while it is written.

    Attributes:
        lines: the body; in the end the whole function.
        node_of: for each line, the node it belongs to, -1 for none.
        constants: names the text uses and their values.
        names: operand number -> variable of each device, in mesh order.
        under_way: variables that a communication still fills, and the node that issued it.
        ending: called before a plan returns, if set.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.node_of: list[int] = []
        self.constants: dict[str, Any] = {"flatten": flatten}
        self.names: dict[int, Any] = {}
        self.under_way: dict[str, int] = {}
        self.ending: Callable[[], None] | None = None

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines) + "\n"

    def constant(self, value: Any) -> str:
        """A name for a value that the text needs."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def line(self, text: str, node: int) -> None:
        """Append a line that belongs to a node."""
        self.lines.append(text)
        self.node_of.append(node)

    def call(
        self,
        function: Any,
        node: int,
        inputs: list[str],
        outputs: list[str],
        specs: Sequence[Spec | None],
    ) -> None:
        """Write one device's call: a `Local` is a torch call, anything else takes (inputs, outputs).

        Args:
            function: what is called.
            node: the node.
            inputs: the variable of each input.
            outputs: the variable of each output.
            specs: of the inputs, None for a number.
        """
        if isinstance(function, Local):
            name = self.constant(function_of(function.func, function.args, function.kwargs, specs))
            text = arguments_text(function.args, function.kwargs, inputs.__getitem__, self.constant)
            if not outputs:
                self.line(f"{name}({text})", node)
            elif len(outputs) == 1 and not function.returns_sequence:
                self.line(f"{outputs[0]} = {name}({text})", node)
            else:
                self.line(f"{', '.join(outputs)}, = flatten({name}({text}))", node)
            return
        self.line("o = []", node)
        self.line(f"{self.constant(function)}([{', '.join(inputs)}], o)", node)
        self.line(f"{', '.join(outputs)}, = o" if outputs else "o = None", node)

    def whole_call(
        self, run: Any, node: int, inputs: list[list[str]], owners: Sequence[Sequence[int]]
    ) -> list[list[str]]:
        """Write a call that takes and gives the parts of all devices; the variables of each output.

        Args:
            run: the function, of the parts of each input.
            node: the node.
            inputs: the variables of each input.
            owners: for each output and device, the first device with the same part. They share a variable:
                one that no line reads is deleted at once, and would be missing where the rest is interpreted.
        """
        parts = ", ".join(map(self._list, inputs))
        self.line(f"o = {self.constant(run)}([{parts}])", node)
        made = [[f"v{node}_{j}_{owner}" for owner in devices] for j, devices in enumerate(owners)]
        for j, names in enumerate(made):
            self.line(f"{', '.join(names)}, = o[{j}]", node)
        self.line("o = None", node)
        return made

    def _list(self, names: Any) -> str:
        """Source of what a `run` takes as the parts of one input."""
        if type(names) is Everywhere:
            return f"{self.constant(Everywhere)}({names.value})"
        return f"[{', '.join(names)}]"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A generated plan.

    Attributes:
        rewritten: the sequence after passes.
        asked: the sequence as it was recorded, and what of it was to run.
        under: what it was written under, also where it is written anew.
        facts: what was known of it beside.
        function: takes the bound operands' parts, returns the wanted operands' parts.
        node_of_line: for each line of its source (line 1 is the `def`) the node it belongs to, -1 for none.
        names: operand number -> variable of each device, in mesh order; of numbers, the variable everywhere.
        waiting: for regions to be compiled, None where there are none.
        refused: why regions were not compiled, by their nodes.
    """

    rewritten: Rewritten
    asked: tuple[Structure, Selection]
    under: State
    facts: Facts
    function: Callable[[list[Any]], list[list[Any]]]
    node_of_line: list[int]
    names: dict[int, Any]
    waiting: Waiting | None = None
    refused: Mapping[tuple[int, ...], str] = field(default_factory=dict)

    @property
    def structure(self) -> Structure:
        """The sequence, as rewritten."""
        return self.rewritten.structure

    @property
    def selection(self) -> Selection:
        """What of it the plan runs, and whose parts it takes and gives."""
        return self.rewritten.selection

    def node_at(self, error: BaseException) -> tuple[int, dict[str, Any]]:
        """The node at whose line an error left the plan's function, -1 for none, and the variables there.

        There are none where the error did not pass through the function.
        """
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
            trace = trace.tb_next
        if trace is None:
            return -1, {}
        return self.node_of_line[trace.tb_lineno - 1], trace.tb_frame.f_locals

    def renewed(self) -> Plan:
        """The plan written anew, with the regions that are compiled by now."""
        calls = [*self.rewritten.fused.values(), *(self.waiting.calls if self.waiting else ())]
        ready = {call.candidate.nodes: call for call in calls if call.is_compiled}
        refused = {call.candidate.nodes: call.why() for call in calls if not call.is_compiled}
        found = rewritten(*self.asked, self.under, ready, self.facts)._replace(waiting=())
        plan = compiled(found, self.asked, self.under, self.facts)
        return replace(plan, refused={**self.refused, **refused})

    @property
    def operators(self) -> list[Operator]:
        """What runs, in order: a region that is compiled is one Fuse."""
        fused, recipes = self.rewritten.fused, self.structure.recipes
        inside = {node for call in fused.values() for node in call.candidate.nodes}
        found: list[Operator] = []
        for node in self.selection.nodes:
            if node in fused:
                found.append(fuse_of(self.structure, fused[node].candidate))
            elif node not in inside:
                found.append(recipes[node].operator)
        return found

    def explain(self) -> str:
        """What it costs as recorded and as it runs, and what each pass did, as text."""
        return explain(self)


def generate(structure: Structure, selection: Selection, under: State, facts: Facts = NONE) -> Plan:
    """Write and compile a plan, after the passes that are on."""
    found = rewritten(structure, selection, under, {}, facts)
    return compiled(found, (structure, selection), under, facts)


def compiled(found: Rewritten, asked: tuple[Structure, Selection], under: State, facts: Facts = NONE) -> Plan:
    """Compile the plan of a sequence as it stands."""
    source = write(found.structure, found.selection, facts.bind, found.fused)
    space = dict(source.constants)
    exec(compile(source.text, _FILE, "exec"), space)  # of slots and names that this module wrote
    waiting = Waiting(found.waiting) if found.waiting else None
    return Plan(found, asked, under, facts, space["plan"], source.node_of, source.names, waiting)


def write(
    structure: Structure,
    selection: Selection,
    bind: Callable[..., None] | None = None,
    fused: Mapping[int, FusedCall] = {},
) -> PlanText:
    """The source of a plan; its inputs are the parts of the bound operands, unless `bind` takes others."""
    source = PlanText()
    (bind or _bind_outside)(source, structure, selection)
    inside = {node for call in fused.values() for node in call.candidate.nodes}
    for node in selection.nodes:
        if node in fused:
            fused[node].write(source, source.names)
        if node in inside:
            continue
        recipe = structure.recipes[node]
        made = recipe.program.write(source, node, [source.names[i] for i in structure.inputs[node]])
        for output, j in zip(structure.outputs[node], recipe.kept, strict=True):
            source.names[output] = made[j]
    results = [source.names[output] for output in selection.wanted]
    _delete(source, {name for names in results for name in names})
    if source.ending is not None:
        source.line(f"{source.constant(source.ending)}()", -1)
    returned = ", ".join(f"[{', '.join(names)}]" for names in results)
    source.line(f"return [{returned}]", -1)
    source.lines = ["def plan(x):", *(f"    {line}" for line in source.lines)]
    source.node_of = [-1, *source.node_of]
    return source


def _bind_outside(source: PlanText, structure: Structure, selection: Selection) -> None:
    """Name the parts of the operands from outside; replicas on one device are one variable."""
    for i, number in enumerate(selection.bound):
        spec = structure.spec(number)
        if spec is None:
            source.names[number] = Everywhere(f"a{i}_0")
            source.line(f"a{i}_0 = x[{i}].value", -1)
            continue
        owner = spec.owners
        source.names[number] = [f"a{i}_{position}" for position in owner]
        for position in sorted(set(owner)):
            source.line(f"a{i}_{position} = x[{i}][{position}]", -1)
    source.line("x.clear()", -1)


def _delete(source: PlanText, kept: set[str]) -> None:
    """Put `del` behind the last line that reads a variable, but for those kept."""
    last: dict[str, int] = {}
    for i, line in enumerate(source.lines):
        for name in _VARIABLE.findall(line):
            last[name] = i
    dying: dict[int, list[str]] = {}
    for name, i in last.items():
        if name not in kept:
            dying.setdefault(i, []).append(name)
    lines, source.lines = source.lines, []
    nodes, source.node_of = source.node_of, []
    for i, (line, node) in enumerate(zip(lines, nodes, strict=True)):
        source.line(line, node)
        if i in dying:
            source.line(f"del {', '.join(dying[i])}", node)
