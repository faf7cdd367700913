"""A local function as a list of torch's calls: what is compiled, what it is known by, what cannot be.

The function runs once on tensors without data, while a mode writes down the overloads that it reaches. The
list is text, so it can be sent to another process, and equal lists are equal regions.

Outputs that share storage with an input or with each other are not compiled as such: the compiled code gives
the tensor that owns the storage, and each output is made of it by `as_strided`, as in the function itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dtorch.hidden import writes
from dtorch.inductor.lookups import Lookups
from dtorch.inductor.spelt import NAMESPACE

_NAMESPACES = ("aten", "prims", NAMESPACE)

_DETACH = torch.ops.aten.detach.default
"""Tells autograd something, and there is none here. Factories end with it; functionalised it is a copy."""

EXPANDED: dict[Any, Callable[..., Any]] = {}
"""Operators of dtorch's own, and the function of torch's operators that is listed in their place."""


class _Present(threading.local):
    """What this thread is about.

    Attributes:
        listing: whether it lists a function's calls.
        in_range: whether what is looked up is in range by the way it is computed.
    """

    listing = False
    in_range = False


PRESENT = _Present()
"""Work that is hidden from modes, or handed to other threads, stays visible and here while it is listed."""


class Refusal(Exception):
    """Why a function is not compiled."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What compiled code knows of an input: shape, stride in elements, dtype and device as text."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    @classmethod
    def of(cls, tensor: Any) -> Meta:
        """That of a tensor, or of anything with its shape, stride, dtype and device."""
        return cls(
            tuple(tensor.shape),
            tuple(tensor.stride()),
            str(tensor.dtype)[6:],
            str(torch.device(tensor.device)),
        )

    def empty(self) -> torch.Tensor:
        """A tensor like this, of whatever values."""
        return torch.empty_strided(
            self.shape, self.stride, dtype=getattr(torch, self.dtype), device=self.device
        )


@dataclass(frozen=True, slots=True)
class Output:
    """An output as a view of its root.

    Attributes:
        root: number of the input it shares storage with, or inputs + number of the compiled result.
        shape, stride, offset: by which it views it; offset from where the root begins, in elements.
        whole: whether it is the root itself.
    """

    root: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    whole: bool

    def of(self, root: torch.Tensor) -> torch.Tensor:
        """The output, of its root."""
        if self.whole:
            return root
        return root.as_strided(self.shape, self.stride, root.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the overload, the source of its arguments, where `{n}` stands for the n-th tensor it reads.

    Attributes:
        name: of the overload, `aten.add.Tensor`.
        text: of the arguments.
        inputs: names of the tensors, `x0` from outside, `v0` made here.
        outputs: names of its tensors; "" for a result that is none.
        metas: of the inputs.
        pointwise: whether each element of the result depends on the elements in its place alone.
    """

    name: str
    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    metas: tuple[Meta, ...]
    pointwise: bool

    def line(self) -> str:
        """Source of the call."""
        made = f"torch.ops.{self.name}({self.text.format(*self.inputs)})"
        if not self.outputs:
            return made
        return f"{', '.join(name or '_' for name in self.outputs)}, = flat({made})"


@dataclass(frozen=True, slots=True)
class Listing:
    """A function as torch's calls.

    Attributes:
        inputs: metadata of the inputs.
        calls: in order.
        results: names of the tensors that compiled code gives.
        outputs: how the outputs are made of inputs and results.
        written: numbers of the inputs that it writes.
        lookups: what it looks up; None in another process, which need not know.
    """

    inputs: tuple[Meta, ...]
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    outputs: tuple[Output, ...]
    written: tuple[int, ...]
    lookups: Lookups | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The function's source; it takes the inputs in a list and gives the results in one."""
        names = "".join(f"x{i}, " for i in range(len(self.inputs)))
        lines = [f"{names}= x"] if names else []
        lines += [call.line() for call in self.calls]
        lines.append(f"return [{', '.join(self.results)}]")
        return "\n".join(["def region(x):", *(f"    {line}" for line in lines)]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(replace(self, lookups=None))

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Listing:
        """The reverse of `to_dict`, also after JSON."""
        calls = [
            {**call, "metas": tuple(map(meta_of, call["metas"])), "inputs": tuple(call["inputs"])}
            for call in plain["calls"]
        ]
        return cls(
            tuple(map(meta_of, plain["inputs"])),
            tuple(Call(**{**call, "outputs": tuple(call["outputs"])}) for call in calls),
            tuple(plain["results"]),
            tuple(
                Output(**{**output, "shape": tuple(output["shape"]), "stride": tuple(output["stride"])})
                for output in plain["outputs"]
            ),
            tuple(plain["written"]),
        )


def meta_of(plain: dict[str, Any]) -> Meta:
    """Metadata from its fields, also after JSON."""
    return Meta(tuple(plain["shape"]), tuple(plain["stride"]), plain["dtype"], plain["device"])


def compute(listing: Listing) -> Callable[[list[Any]], list[Any]]:
    """The listed function, uncompiled: inputs to results."""
    space = {"torch": torch, "flat": flat, "inf": float("inf"), "nan": float("nan")}
    exec(compile(listing.text, "<dtorch region>", "exec"), space)  # of names that this module wrote
    return space["region"]  # type: ignore[return-value]


def flat(made: Any) -> list[Any]:
    """The results of a call, those in lists one by one."""
    if isinstance(made, (list, tuple)):
        return [leaf for item in made for leaf in flat(item)]
    return [made]


def list_calls(function: Callable[[list[Any]], Sequence[Any]], inputs: Sequence[Meta]) -> Listing:
    """Run a function on tensors without data and write down its calls.

    Raises:
        Refusal: it cannot be compiled; the text says why.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    if any(meta.device != "cpu" for meta in inputs):
        raise Refusal("its tensors are not on cpu")
    if any(meta.dtype.startswith("complex") for meta in inputs):
        raise Refusal("it reads complex numbers")
    fake = FakeTensorMode()
    with fake, torch.no_grad():
        tensors = [meta.empty() for meta in inputs]
        recorder = _Recorder(tensors)
        PRESENT.listing = True
        try:
            with recorder:
                outputs = list(function(list(tensors)))
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(f"it cannot run without values: {type(error).__name__}: {error}") from None
        finally:
            PRESENT.listing = False
    return recorder.listing(tuple(inputs), outputs)


class _Recorder(TorchDispatchMode):
    """Writes down the calls of one function."""

    def __init__(self, inputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.names: dict[int, str] = {}
        self.tensors: list[torch.Tensor] = []  # kept, or names would be given twice
        self.roots: dict[int, torch.Tensor] = {}
        self.input_roots: dict[int, int] = {}
        self.written: set[int] = set()
        self.lookups = Lookups()
        for i, tensor in enumerate(inputs):
            self._name(tensor, f"x{i}")
            self.input_roots[_storage(tensor)] = i

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a question about a tensor
            return func(*args, **kwargs)
        if func in EXPANDED:
            with self:
                return EXPANDED[func](*args, **kwargs)
        if func is _DETACH and id(args[0]) in self.names:
            return self._same(func(*args), args[0])
        if _draws(func, args, kwargs):
            raise Refusal(f"{func} draws random numbers")
        if func.namespace not in _NAMESPACES:
            raise Refusal(f"{func} is no operator of torch's")
        func, args, kwargs = self._plainer(func, args, kwargs)
        inputs: list[torch.Tensor] = []
        text = ", ".join(
            [_source(value, inputs) for value in args]
            + [f"{name}={_source(value, inputs)}" for name, value in kwargs.items()]
        )
        names = []
        for tensor in inputs:
            if id(tensor) not in self.names:
                raise Refusal(f"{func} reads a tensor that is no input")
            names.append(self.names[id(tensor)])
        metas = tuple(map(Meta.of, inputs))
        self._note_writes(func, args, kwargs)
        result = func(*args, **kwargs)
        if not PRESENT.in_range:
            self.lookups.note(func, args, result, self.input_roots)
        outputs = [
            self._name(leaf, f"v{len(self.tensors)}") if isinstance(leaf, torch.Tensor) else ""
            for leaf in flat(result)
        ]
        pointwise = torch.Tag.pointwise in func.tags or func.namespace == NAMESPACE
        self.calls.append(Call(str(func), text, tuple(names), tuple(outputs), metas, pointwise))
        return result

    def _plainer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The same call in a form that can be functionalised where views of it are written.

        A view by strides is one of the tensor that owns the storage; a tensor in another order of dims is
        made with its strides, not as a view of a compact one.
        """
        if func is torch.ops.aten.as_strided.default and len(args) > 3:
            root = self.roots.get(_storage(args[0]))
            if root is not None and root.dtype == args[0].dtype:
                args = (root, *args[1:])
        elif func is torch.ops.aten.empty_permuted.default:
            size, order = args
            strides, step = [0] * len(size), 1
            for dim in reversed(order):
                strides[dim] = step
                step *= max(size[dim], 1)
            func, args = torch.ops.aten.empty_strided.default, (size, strides)
        return func, args, kwargs

    def _same(self, tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Let a tensor go by the name of another that it is."""
        self.names[id(tensor)] = self.names[id(other)]
        self.tensors.append(tensor)
        return tensor

    def _name(self, tensor: torch.Tensor, name: str) -> str:
        if id(tensor) in self.names:  # an operator that gives back what it was given
            return ""
        self.names[id(tensor)] = name
        self.tensors.append(tensor)
        self.roots.setdefault(_storage(tensor), tensor)
        return name

    def _note_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        given = _by_name(func, args, kwargs)
        for name in writes(func):
            for leaf in flat(given.get(name)):
                if isinstance(leaf, torch.Tensor) and _storage(leaf) in self.input_roots:
                    self.written.add(self.input_roots[_storage(leaf)])

    def listing(self, inputs: tuple[Meta, ...], outputs: list[Any]) -> Listing:
        """What was written down, for a function that gave these outputs."""
        results: list[str] = []
        made = []
        for output in outputs:
            if not isinstance(output, torch.Tensor) or id(output) not in self.names:
                raise Refusal("it returns something else than tensors made of its inputs")
            made.append(self._output(output, inputs, results))
        written = tuple(sorted(self.written))
        return Listing(inputs, tuple(self.calls), tuple(results), tuple(made), written, self.lookups)

    def _output(self, output: torch.Tensor, inputs: tuple[Meta, ...], results: list[str]) -> Output:
        storage = _storage(output)
        root = self.roots[storage]
        if root.dtype != output.dtype or output.is_complex():
            raise Refusal("it returns complex numbers, or bytes seen as another dtype")
        if storage in self.input_roots:
            number = self.input_roots[storage]
        else:
            name = self.names[id(root)]
            if name not in results:
                results.append(name)
            number = len(inputs) + results.index(name)
        offset = int(output.storage_offset()) - int(root.storage_offset())
        mine, theirs = Meta.of(output), Meta.of(root)
        return Output(number, mine.shape, mine.stride, offset, mine == theirs and offset == 0)


def _draws(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call draws random numbers; attention does by its dropout alone."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = _by_name(func, args, kwargs)
    return given.get("dropout_p", 1.0 if "attention" not in str(func) else 0.0) != 0.0


def _by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments that a call gives, by name."""
    return dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _source(value: Any, inputs: list[torch.Tensor]) -> str:
    """Source of an argument; tensors become `{n}` and are added to `inputs`."""
    if isinstance(value, torch.Tensor):
        inputs.append(value)
        return f"{{{len(inputs) - 1}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_source(item, inputs) for item in value)}]"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if value is None or type(value) in (bool, int, float, complex, str):
        return repr(value).replace("{", "{{").replace("}", "}}")
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    raise Refusal(f"it is given {type(value).__name__}, which cannot be written down")
