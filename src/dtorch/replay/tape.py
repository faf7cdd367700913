"""What happens beside the graph while a function is captured: plain tensors at work, and floats made of them.

The tape keeps each call of torch on plain tensors, so that a replay can make it again, and finds which of the
numbers handed to recorded operators are traced.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from dtorch.errors import CaptureError
from dtorch.hidden import writes
from dtorch.layout import Layout
from dtorch.mesh import DeviceMesh
from dtorch.op.operand import Operand, Scalar
from dtorch.replay.made import Constant, Generators, Split
from dtorch.replay.traced import How, Traced
from dtorch.tensor import Tensor

_LIFTED = torch.ops.aten.lift_fresh.default
_CLONE = torch.ops.aten.clone.default
_VALUE = torch.ops.aten._local_scalar_dense.default
_GRAD: Any = torch._C.TensorBase.grad
_NO_PYTHON = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_UNSEEN = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)


class Slot:
    """Stands on the tape for a plain tensor: its number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return type(other) is Slot and other.number == self.number

    def __hash__(self) -> int:
        return hash(("slot", self.number))


@dataclass(frozen=True, slots=True)
class Number:
    """Stands on the tape for a traced number: how it is made."""

    how: How


@dataclass(frozen=True, slots=True)
class TapedCall:
    """A call on plain tensors.

    Attributes:
        function: torch's.
        args: (args, kwargs), slots for tensors, `Number` for traced numbers.
        results: numbers of the tensors it gives.
        fresh: for each of them, whether the call makes it, and does not just give back what it was given.
        item: which number it reads, for `.item()` of a float; -1 for other calls.
        value: what it must give again, for other values that leave torch; None for other calls.
        part: which operand's parts it makes; -1 for other calls.
    """

    function: Any
    args: Any
    results: tuple[int, ...] = ()
    fresh: tuple[bool, ...] = ()
    item: int = -1
    value: Any = None
    part: int = -1


class Tape:
    """Calls on plain tensors, and what was handed from them to the graph.

    Attributes:
        tensors: plain tensors by number; those from outside stay what they are, the others are made anew.
        calls: in program order.
        handed: plain tensors that a recorded node reads, by the identity of its operand.
        scalars: how a number among a node's inputs was made, by identity.
        decisions: comparisons of traced numbers, and their outcomes.
        values: of the traced numbers that are no arithmetic: arguments, settings, items.
        nodes: the list that recorded nodes are appended to.
        made: the operands that calls make, by number.
        generators: that random numbers are drawn from.
        asks_gradients: whether the program reads or sets `.grad` of a tensor.
    """

    def __init__(self, nodes: list[Any]) -> None:
        self.tensors: list[torch.Tensor] = []
        self.calls: list[TapedCall] = []
        self.handed: dict[int, int] = {}
        self.scalars: dict[int, How] = {}
        self.decisions: dict[How, bool] = {}
        self.values: dict[How, float] = {}
        self.nodes = nodes
        self.items = 0
        self.made: list[Operand] = []
        self.generators = Generators()
        self.asks_gradients = False
        self._numbers: dict[int, int] = {}
        self._given: dict[str, How] = {}

    def number(self, tensor: torch.Tensor) -> int:
        """The number of a plain tensor."""
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[id(tensor)]

    @property
    def outside(self) -> list[int]:
        """Numbers of the tensors that no call makes."""
        made = {n for call in self.calls for n, fresh in zip(call.results, call.fresh, strict=True) if fresh}
        return [number for number in range(len(self.tensors)) if number not in made]

    @property
    def lent(self) -> list[tuple[Constant, int]]:
        """What is made over memory that is not torch's, and the number of the tensor of that memory."""
        made = [(call.function, call.args[0]) for call in self.calls if type(call.function) is Constant]
        return [(constant, given[0].number) for constant, given in made if given]

    def draw(self, draw: Any) -> Any:
        """Draw random numbers, seen by the tape; `make` follows."""
        self.generators.before([other for other in draw.others if isinstance(other, torch.Generator)])
        parts = draw()
        self.generators.after()
        return parts

    def make(self, operand: Operand, function: Any, *tensors: torch.Tensor) -> None:
        """Enter what makes an operand's parts, of plain tensors."""
        slots = tuple([Slot(self.number(tensor)) for tensor in tensors])
        self.calls.append(TapedCall(function, (slots, {}), part=len(self.made)))
        self.made.append(operand)

    def release(self) -> None:
        """Let go of what the call has made; only what it is like is still asked."""
        self.made = [Operand(operand.spec) for operand in self.made]

    def split(self, operand: Operand, layout: Layout, mesh: DeviceMesh, full: torch.Tensor) -> None:
        """Enter that a plain tensor was distributed."""
        self.make(operand, Split(layout, mesh), full)

    def note(self, function: Any, args: Any, result: Any) -> None:
        """Enter a call on plain tensors only."""
        if function is _LIFTED:  # torch's mark on a tensor that was made of Python's values
            value = args[0][0].detach()
            lent = not value.untyped_storage().resizable()  # an array's memory, not torch's
            memory = (Slot(self.number(value)),) if lent else ()
            constant = Constant(value.clone())
            self.calls.append(TapedCall(constant, (memory, {}), (self.number(result),), (True,)))
            return
        slotted = tree_map(self._slotted, args)
        if function is _VALUE:
            is_float = type(result) is float
            self.calls.append(
                TapedCall(function, slotted, item=self.items)
                if is_float
                else TapedCall(function, slotted, value=result)
            )
            if is_float:
                self.values["item", self.items] = result
            self.items += is_float
            return
        given = len(self.tensors)
        results = [self.number(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        fresh = [number >= given for number in results]
        if results or any(type(leaf) is Slot for leaf in tree_leaves(slotted)):
            if writes(function):
                self._keep_handed(args)
            self.calls.append(TapedCall(function, slotted, tuple(results), tuple(fresh)))

    def _keep_handed(self, args: Any) -> None:
        """A call that writes follows: what nodes read of the memory it is given is as it was before."""
        given = {_memory(leaf) for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)}
        copies: dict[int, int] = {}
        for operand, number in self.handed.items():
            if number not in copies and _memory(self.tensors[number]) in given:
                copies[number] = self.number(self.tensors[number].detach().clone())
                self.calls.append(TapedCall(_CLONE, ((Slot(number),), {}), (copies[number],), (True,)))
            self.handed[operand] = copies.get(number, number)

    def _slotted(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return Slot(self.number(leaf))
        how = self._given.get(leaf.hex()) if type(leaf) is float else None
        return leaf if how is None else Number(how)

    @contextmanager
    def given(self, numbers: Sequence[Traced]) -> Iterator[None]:
        """Inside, a call on plain tensors is made with these numbers, which are told by their values."""
        self._given = {number.hex(): number.how for number in numbers}
        try:
            yield
        finally:
            self._given = {}

    def arrived(self, since: int) -> set[How]:
        """The traced numbers among the arguments of the calls since."""
        leaves = tree_leaves([call.args for call in self.calls[since:]])
        return {leaf.how for leaf in leaves if type(leaf) is Number}

    def pin(self, since: int) -> None:
        """What was read by the calls since must be the same again, unless it went on into the graph."""
        linked = set(self.scalars.values())
        for place, call in enumerate(self.calls[since:], since):
            if call.item >= 0 and ("item", call.item) not in linked:
                value = self.values.pop(("item", call.item))
                self.calls[place] = TapedCall(call.function, call.args, value=value)

    def read(self, since: int) -> list[Traced]:
        """The floats that the calls since have read of plain tensors, as `value=tensor` makes torch do."""
        hows = [("item", call.item) for call in self.calls[since:] if call.item >= 0]
        return [Traced(self.values[how], how, self.decisions) for how in hows if how in self.values]

    def link(self, since: int, args: Any) -> None:
        """Find what of a call's arguments stands among the inputs of the nodes recorded since.

        A traced number that does not is part of what the nodes are, so its value is noted.
        """
        leaves = tree_leaves(args)
        plain = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, Tensor)]
        numbers = {(leaf.hex(), getattr(leaf, "how", None)) for leaf in leaves if isinstance(leaf, float)}
        alike = Counter(text for text, _ in numbers)
        traced = {text: how for text, how in numbers if how is not None and alike[text] == 1}
        ours = {id(leaf._operand) for leaf in leaves if isinstance(leaf, Tensor)}
        linked = set()
        for node in self.nodes[since:]:
            copies = iter(plain)
            for operand in node[1]:
                if type(operand) is Scalar:
                    value = operand.parts.value
                    if type(value) is float and value.hex() in traced:
                        self.scalars[id(operand)] = traced[value.hex()]
                        linked.add(value.hex())
                elif operand.parts is not None and id(operand) not in ours:
                    source = next((leaf for leaf in copies if leaf.shape == operand.spec.shape), None)
                    if source is not None:
                        self.handed.setdefault(id(operand), self.number(source))
        for leaf in leaves:
            if type(leaf) is Traced and leaf.hex() not in linked:
                leaf.pin()


def _memory(tensor: torch.Tensor) -> int:
    """Where a plain tensor's storage is; it tells storages apart while they live."""
    return tensor.untyped_storage().data_ptr()


def _is_on_lists(function: Any) -> bool:
    return str(getattr(function, "__name__", "")).startswith("_foreach_")


def _member(value: Any, i: int) -> Any:
    return [value[i]] if isinstance(value, (list, tuple)) else value


class PlainCalls(TorchDispatchMode):
    """Sees torch's calls below autograd: those on plain tensors are taped, those on ours are linked."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        since = len(self.tape.nodes)
        random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()) and not any(
            issubclass(kind, Tensor) for kind in types
        )
        if random:
            leaves = tree_leaves((args, kwargs))
            self.tape.generators.before([leaf for leaf in leaves if isinstance(leaf, torch.Generator)])
        result = func(*args, **kwargs)
        if random:
            self.tape.generators.after()
        if any(issubclass(kind, Tensor) for kind in types):
            self.tape.link(since, (args, kwargs))
        else:
            self.tape.note(func, (args, kwargs), result)
        return result


class TracedNumbers(TorchFunctionMode):
    """Sees torch's calls as the program makes them: traced numbers go in, `.item()` makes new ones."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        since, calls = len(self.tape.nodes), len(self.tape.calls)
        if getattr(func, "__self__", None) is _GRAD:
            self.tape.asks_gradients = True
        if func in _UNSEEN and not isinstance(args[0], Tensor):
            raise CaptureError(
                f"capture(): {func.__name__}() reads a plain tensor where a replay cannot see it; "
                "use item(), or do that outside and pass the result"
            )
        if func == torch.Tensor.__setitem__ and type(args[2]) is Traced:  # as torch does, seen by the tape
            x, index, number = args
            like = {"dtype": x.dtype, "device": x.device}
            args = (x, index, self._with_numbers(torch.scalar_tensor, (number,), like, [number]))
        leaves = tree_leaves((args, kwargs))
        traced = [leaf for leaf in leaves if type(leaf) is Traced]
        if traced and _is_on_lists(func) and len(args[0]) > 1:
            return self._each(func, types, args, kwargs)
        if traced and not any(isinstance(leaf, Tensor) for leaf in leaves):
            return self._with_numbers(func, args, kwargs, traced)
        result = func(*args, **kwargs)
        if func is torch.Tensor.item and type(result) is float and not isinstance(args[0], Tensor):
            return Traced(result, ("item", self.tape.items - 1), self.tape.decisions)
        read = self.tape.read(calls) if isinstance(func, _NO_PYTHON) else []
        if traced or read:
            self.tape.link(since, (args, kwargs, read))
        self.tape.pin(calls)
        return result

    def _each(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """An operator on lists member by member, as it is recorded: equal numbers of two are told apart."""
        made = []
        for i in range(len(args[0])):
            mine = tuple([_member(value, i) for value in args])
            named = {name: _member(value, i) for name, value in kwargs.items()}
            made.append(self.__torch_function__(func, types, mine, named))
        return None if made[0] is None else type(made[0])(chain.from_iterable(made))

    def _with_numbers(self, func: Any, args: Any, kwargs: Any, traced: Sequence[Traced]) -> Any:
        """A call with traced numbers and no distributed tensor.

        Raises:
            CaptureError: it makes a plain tensor, and a number does not arrive at torch's operators as given.
        """
        made_of_one = func in (torch.tensor, torch.as_tensor) and type(args[0]) is Traced
        if made_of_one and kwargs.keys() <= {"dtype", "device"}:
            func, kwargs = torch.scalar_tensor, {"dtype": torch.get_default_dtype(), **kwargs}
        since, calls = len(self.tape.nodes), len(self.tape.calls)
        with self.tape.given(traced):
            result = func(*args, **kwargs)
        self.tape.pin(calls)
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if any(isinstance(leaf, Tensor) for leaf in tensors):
            self.tape.link(since, (args, kwargs))
            return result
        values = {number.hex() for number in traced}
        others = [
            leaf for leaf in tree_leaves((args, kwargs)) if type(leaf) is float and leaf.hex() in values
        ]
        if tensors and (others or self.tape.arrived(calls) != {number.how for number in traced}):
            raise CaptureError(
                f"capture(): torch's {getattr(func, '__name__', func)} puts a number that changes from call "
                "to call into a plain tensor where a replay cannot follow it; make that tensor outside and "
                "pass it as an argument"
            )
        return result
