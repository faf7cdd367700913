"""`Region`: a local function that is callable at once, and compiled in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtorch.inductor import compiling
from dtorch.inductor.blocks import Blocks
from dtorch.inductor.listing import PRESENT, Listing, Meta, Refusal, list_calls
from dtorch.inductor.lookups import in_range
from dtorch.inductor.mode import mode as present_mode

Function = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class Region:
    """A function of plain tensors, for inputs of given metadata, that is compiled when asked.

        region = Region(lambda x: [torch.sigmoid(x[0]) * x[1]], [a, b], name="gate").start()
        y, = region([a, b])          # uncompiled until code is ready, the same results before and after

    It works below autograd, as local work does. The function is called again and again, once more on another
    thread with tensors that have no data; it must do the same each time and touch nothing beside its inputs.
    Inputs with other metadata than given, or that overlap where one is written, run uncompiled.

    Args:
        function: takes a list of tensors and gives a list of tensors, by torch's functions alone.
        inputs: tensors, or `Meta` of them.
        name: what a person calls it; in the warning and in `why()`.
        mode: "exact", "fast" or "off"; that of `dtorch.optimize` if None.
        blocks: how compiled code is to make it block by block; at once, if None.

    Attributes:
        state: "idle", "waiting", "compiling", "compiled", "refused", "failed" or "off".
        reason: why it is refused or failed.
    """

    __slots__ = (
        "function",
        "inputs",
        "name",
        "mode",
        "state",
        "reason",
        "_dtype",
        "_ended",
        "_run",
        "blocks",
        "__weakref__",
    )

    def __init__(
        self,
        function: Function,
        inputs: Sequence[Any],
        *,
        name: str,
        mode: str | None = None,
        blocks: Blocks | None = None,
    ) -> None:
        self.function = function
        self.blocks = blocks
        self.inputs = tuple(x if isinstance(x, Meta) else Meta.of(x) for x in inputs)
        self.name = name
        self.mode = present_mode() if mode is None else mode
        self.state = "off" if self.mode == "off" else "idle"
        self.reason = ""
        self._dtype = torch.get_default_dtype()
        self._ended = threading.Event()
        self._run: Callable[[list[torch.Tensor]], list[torch.Tensor]] = self._uncompiled

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The function's value, by compiled code where there is some."""
        return self._run(inputs)

    def start(self) -> Region:
        """Have it compiled in the background; nothing, the second time."""
        if self.state == "idle":
            self.state = "waiting"
            compiling.COMPILER.start(self)
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is compiled, refused or failed; whether it is compiled.

        Args:
            timeout: seconds.
        """
        if self.start().state != "off":
            self._ended.wait(timeout)
        return self.state == "compiled"

    def why(self) -> str:
        """State and reason in one line."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    # -- on the compiler's thread

    def compile_with(self, compiler: Any) -> None:
        """Get code from a compiler and put it in the function's place; raises nothing."""
        self.state = "compiling"
        try:
            listing = list_calls(self.function, self.inputs)
            if torch.get_default_dtype() != self._dtype:
                raise Refusal("torch's default dtype has been changed")
            threads = torch.get_num_threads()
            assert listing.lookups is not None
            if threads > 1 and listing.lookups.unchecked:
                raise Refusal(
                    f"{listing.lookups.unchecked} looks up places that are computed, and compiled for "
                    "several threads it would end the process where one is out of range; "
                    "under torch.set_num_threads(1) it is compiled"
                )
            parts = None if self.blocks is None else self.blocks.listed(self.inputs)
            code = compiler.code(listing, self.mode, threads, self._dtype, parts)
            self._run = _compiled(self.function, listing, code, listing.lookups.bounds if threads > 1 else {})
            self.state = "compiled"
        except Refusal as refusal:
            self._end("refused", str(refusal))
        except Exception as error:
            text = str(error) if isinstance(error, compiling.Failure) else f"{type(error).__name__}: {error}"
            self._end("failed", text)
            compiler.warn(self.name, text)
        self._ended.set()

    def refuse(self, reason: str) -> None:
        """Never compile it."""
        self._end("refused", reason)
        self._ended.set()

    def forget(self) -> None:
        """Stay uncompiled: this process was forked from one in which it was under way."""
        self._ended = threading.Event()
        self.refuse("the process was forked while it was compiled")

    def _end(self, state: str, reason: str) -> None:
        self.reason, self.state = reason, state

    def _uncompiled(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(self.function(inputs))


def _compiled(
    function: Function,
    listing: Listing,
    code: Callable[[list[Any]], Sequence[torch.Tensor]],
    bounds: dict[int, tuple[int, int]],
) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """What runs a listing's code: checks inputs and places among them, and makes outputs of roots."""
    checks = [(meta.shape, meta.stride, getattr(torch, meta.dtype)) for meta in listing.inputs]
    num_inputs = len(checks)
    plain = [
        output.root - num_inputs if output.whole and output.root >= num_inputs else -1
        for output in listing.outputs
    ]
    direct = plain == list(range(len(listing.results)))
    outputs, written = listing.outputs, listing.written
    alike = _Alike()

    def fits(inputs: list[torch.Tensor]) -> bool:
        if len(inputs) != num_inputs:
            return False
        if not alike(inputs):
            for tensor, (shape, stride, dtype) in zip(inputs, checks, strict=True):
                if (tensor.shape, tensor.stride(), tensor.dtype) != (shape, stride, dtype) or tensor.is_neg():
                    return False
            alike.note(inputs)
        return (not written or not _overlap(inputs)) and in_range(inputs, bounds)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if PRESENT.listing or not fits(inputs):  # what is listed has no data
            return list(function(inputs))
        try:
            made = list(code(list(inputs)))
        except Exception:
            if written:
                raise
            return list(function(inputs))  # which tells what is wrong, and where
        if direct:
            return made
        roots = [*inputs, *made]
        return [output.of(roots[output.root]) for output in outputs]

    return run


class _Alike:
    """Whether tensors have the metadata of those that were noted first, told by torch in one call.

    A no may be wrong: it looks at more than metadata, and torch may have no such look.
    """

    def __init__(self) -> None:
        self._check: Callable[..., bool] | None = None

    def note(self, tensors: Sequence[torch.Tensor]) -> None:
        """Compare with these from now on, unless there are others."""
        if self._check is None:
            try:
                self._check = torch._C._dynamo.guards.TensorGuards(
                    *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
                ).check
            except (AttributeError, TypeError):
                self._check = lambda *tensors: False

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether they are."""
        return self._check is not None and self._check(*tensors)


def _overlap(inputs: Sequence[torch.Tensor]) -> bool:
    """Whether two inputs share storage."""
    return len({tensor.untyped_storage()._cdata for tensor in inputs}) < len(inputs)
