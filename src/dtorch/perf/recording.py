"""What a program on described devices does, as it does it: calls, who made them, and what memory they hold.

A `Recording` is a `LogicalGraph` that also notes, for each node, the module and the user's line behind it,
the phase of training, and the storages it reads and writes. A storage lives as long as its `NoValue`, so the
program's own references, those of autograd included, say when its memory would be free.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from dtorch.graph.confirm import line_of, users_place
from dtorch.graph.logical_graph import LogicalGraph, Node
from dtorch.graph.settings import imprecise
from dtorch.op.operand import NoValue, Operand
from dtorch.spec import Spec

PHASES = ("forward", "backward", "optimizer", "other")
_backward = torch._C._current_graph_task_id
_autograd_node = torch._C._current_autograd_node
_sequence_number = torch.autograd._get_sequence_nr
_ACCUMULATE = 2**63
"""Sequence numbers from here on are no forward operator's."""


class Made(NamedTuple):
    """Who made a call.

    Attributes:
        module: path of the module, from the outermost one that was called; "" outside of all.
        phase: one of `PHASES`.
        place: the user's line, for `line_of`.
        imprecise: whether float32 products might be made less precisely.
        reads, writes: numbers of storages.
    """

    module: str
    phase: str
    place: Any
    imprecise: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Storage:
    """The memory behind one lineage of views.

    Attributes:
        spec: of the tensor that owns it.
        born: number of the node that made it; -1 if it was there before.
        died: how many nodes there were when the last reference went; None if it outlived the recording.
        module, phase: those of the node that made it.
        name: of the parameter or buffer that it is, where a module that was called has one.
        trained: whether it is a leaf that requires grad.
    """

    __slots__ = ("born", "died", "module", "name", "phase", "spec", "trained")

    def __init__(self, spec: Spec, born: int, module: str, phase: str) -> None:
        self.spec = spec
        self.born = born
        self.died: int | None = None
        self.module = module
        self.phase = phase
        self.name = ""
        self.trained = False

    @property
    def nbytes(self) -> int:
        """Bytes on the first device, which no other exceeds."""
        return self.spec.local_nbytes((0,) * self.spec.mesh.ndim)


class Recording(LogicalGraph):
    """A logical graph with who made each call, and the memory.

    Args:
        base: the phase of calls outside of modules, backward and optimizers, while gradients are off.

    Attributes:
        made: for each node, who made it.
        storages: all that nodes read or wrote.
    """

    def __init__(self, base: str = "other") -> None:
        super().__init__()
        self.base = base
        self.made: list[Made] = []
        self.storages: list[Storage] = []
        self._numbers: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[NoValue]] = {}
        self._stack: list[str] = []
        self._names: dict[int, str] = {}
        self._tensors: Any = WeakIdKeyDictionary()
        self._roots: list[torch.nn.Module] = []
        self._optimizing = 0
        self._ends: list[int] = []
        self._sequence: list[int] = []
        self._origin: list[tuple[str, Any]] = []

    # -- what the graph tells -------------------------------------------------------------------------------

    def add(self, node: Node, given: Sequence[Operand | None] = (), made: Sequence[Operand] = ()) -> None:
        """Enter a node, and what is known of the moment."""
        module, place = self._origin_now()
        phase = self._phase()
        number = len(self.nodes)
        reads = self._storages_of(given, -1, "", "other")
        writes = self._storages_of(made, number, module, phase)
        self.nodes.append(node)
        self.made.append(Made(module, phase, place, imprecise(), reads, writes))

    def wire(self, *call: Any) -> None:
        """Nothing: a report is not run again, and plain operands need not be kept."""

    def wire_conversion(self, *call: Any) -> None:
        """Nothing, as `wire`."""

    def _phase(self) -> str:
        if self._optimizing:
            return "optimizer"
        if _backward() != -1:
            self.base = "other"  # what follows without gradients is clipping, zeroing and the like
            return "backward"
        return "forward" if self._stack or torch.is_grad_enabled() else self.base

    def _origin_now(self) -> tuple[str, Any]:
        """Module and line of the call; in a backward those of the forward call that it belongs to."""
        if _backward() != -1 and not self._stack:
            node = _autograd_node()
            number = node._sequence_nr() if node is not None else _ACCUMULATE
            if number < _ACCUMULATE:
                at = bisect_right(self._sequence, number) - 1
                return self._origin[at] if at >= 0 else ("", users_place(4))
            leaf = getattr(node, "variable", None)  # of a node that accumulates a gradient
            name = "" if leaf is None else self._tensors.get(leaf, "")
            return name.rpartition(".")[0], users_place(4)
        here = self._stack[-1] if self._stack else "", users_place(4)
        if torch.is_grad_enabled():
            # The autograd node of a call is made just before the call arrives here.
            number = _sequence_number() - 1
            if not self._sequence or self._sequence[-1] < number:
                self._sequence.append(number)
                self._origin.append(here)
        return here

    # -- memory ---------------------------------------------------------------------------------------------

    def _storages_of(
        self, operands: Sequence[Operand | None], born: int, module: str, phase: str
    ) -> tuple[int, ...]:
        found = []
        for operand in operands:
            parts = None if operand is None else operand.parts
            if type(parts) is NoValue:
                number = self._numbers.get(id(parts))
                if number is None:
                    number = self._enter(operand, parts, born, module, phase)
                found.append(number)
        return tuple(found)

    def _enter(self, operand: Any, parts: NoValue, born: int, module: str, phase: str) -> int:
        spec = operand.spec if operand.shared is None else operand.shared.root_spec
        number = len(self.storages)
        self.storages.append(Storage(spec, born, module, phase))
        key = id(parts)
        self._numbers[key] = number

        def gone(_: Any) -> None:
            self.storages[number].died = len(self.nodes)
            self._numbers.pop(key, None)
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(parts, gone)
        return number

    def name_tensor(self, tensor: Any, name: str, trained: bool | None = None) -> None:
        """Say what a tensor is called, which makes it a parameter or buffer, and whether it is trained."""
        self._tensors[tensor] = name
        operand = getattr(tensor, "_operand", None)
        if operand is not None:
            for number in self._storages_of([operand], -1, name.rpartition(".")[0], "other"):
                self.storages[number].name = name
                self.storages[number].module = name.rpartition(".")[0]
                self.storages[number].trained = tensor.requires_grad if trained is None else trained

    def name_twin(self, plain: torch.Tensor, twin: Any) -> None:
        """Give the tensor that stands for a plain parameter or buffer the same name, if that has one."""
        name = self._tensors.get(plain)
        if name is not None:
            self.name_tensor(twin, name, plain.requires_grad)

    def phase_end(self, number: int) -> int:
        """Number of the first node after the unbroken run of nodes of one phase that node `number` is in."""
        if len(self._ends) != len(self.made):
            self._ends = [len(self.made)] * len(self.made)
            for at in range(len(self.made) - 2, -1, -1):
                same = self.made[at].phase == self.made[at + 1].phase
                self._ends[at] = self._ends[at + 1] if same else at + 1
        return self._ends[number]

    def finish(self) -> None:
        """Stop watching storages."""
        self._alive.clear()

    # -- what torch tells -----------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[Recording]:
        """Inside, modules and optimizers say when they are called."""
        with ExitStack() as stack:
            for handle in (
                register_module_forward_pre_hook(self._enters),
                register_module_forward_hook(self._leaves, always_call=True),
                register_optimizer_step_pre_hook(self._steps),
                register_optimizer_step_post_hook(self._stepped),
            ):
                stack.callback(handle.remove)
            yield self

    def _enters(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) not in self._names or (not self._stack and self._renewed(module)):
            self._learn(module)
        self._stack.append(self._names[id(module)])

    def _leaves(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()

    def _renewed(self, module: torch.nn.Module) -> bool:
        """Whether a module has got other parameters since it was last called, as `parallelize` gives it."""
        first = next(module.parameters(), None)
        return first is not None and first not in self._tensors

    def _learn(self, module: torch.nn.Module) -> None:
        """The names of a module and all below it: below the one that calls it, from "" if none does."""
        above = self._stack[-1] if self._stack else ""
        prefix = f"{above}.{type(module).__name__}" if self._stack else ""
        self._roots.append(module)  # an id is a name as long as its module lives
        for name, part in module.named_modules():
            path = f"{prefix}.{name}" if prefix and name else prefix or name
            self._names.setdefault(id(part), path)
            for tensors in (part._parameters, part._buffers):
                for key, tensor in tensors.items():
                    if tensor is not None:
                        self.name_tensor(tensor, f"{path}.{key}" if path else key)

    def _steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizing += 1

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizing -= 1


def line(place: Any) -> str:
    """File and line of `Made.place`; "" where no user's line is known."""
    return "" if place is None else line_of(place)
