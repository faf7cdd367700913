"""What the fused operators share: a torch operator whose kernel is a region for each kind of arguments.

The operator runs its reference at once. A call that is made often enough to be worth the compiler's seconds
is compiled in the background, under the mode that `dtorch.optimize` has chosen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from dtorch.inductor import worth
from dtorch.inductor.listing import EXPANDED
from dtorch.inductor.mode import mode as present_mode
from dtorch.inductor.region import Region

MAX_REGIONS = 256

_LIBRARY = torch.library.Library("dtorch", "FRAGMENT")


class _Kind:
    """Calls of one kind: their region, and what they came to."""

    __slots__ = ("region", "calls", "nbytes")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.calls = 0
        self.nbytes = 0


class CompiledFunction:
    """A function of tensors, `torch.ops.dtorch.<name>`, that is compiled where it is used much.

    Args:
        name: of the operator.
        schema: its arguments and results, as `torch.library` writes them.
        reference: the same in torch's functions; gives a tensor or a list of tensors.
        tolerance: largest difference from the reference that "fast" admits in float32, over the largest
            value; "exact" admits none.

    Attributes:
        operator: the torch operator.
    """

    def __init__(
        self, name: str, schema: str, reference: Callable[..., Any], tolerance: float = 2e-5
    ) -> None:
        self.__name__ = name
        self.__doc__ = reference.__doc__
        self.reference = reference
        self.tolerance = tolerance
        self._kinds: OrderedDict[Any, _Kind] = OrderedDict()
        self._lock = threading.Lock()
        _LIBRARY.define(f"{name}{schema}")
        _LIBRARY.impl(name, self._run, "CompositeExplicitAutograd")
        _LIBRARY._register_fake(name, reference)
        self.operator = getattr(torch.ops.dtorch, name).default
        self._schema = self.operator._schema
        self._defaults = tuple(argument.default_value for argument in self._schema.arguments)
        self._gives_list = str(self._schema.returns[0].type) == "List[Tensor]"
        EXPANDED[self.operator] = reference

    def differentiate(self, backward: Callable[..., Any], setup: Callable[..., None]) -> None:
        """Give the operator its gradient.

        Args:
            backward: takes the context, which arguments want a gradient, and the gradient of the result (or
                the list of them); gives one gradient, or None, for each argument.
            setup: takes the context, the arguments and the result, and keeps what `backward` needs.
        """
        total = len(self._defaults)

        def run(ctx: Any, grad: Any) -> tuple:
            given = len(ctx.needs_input_grad)  # torch leaves out arguments at their defaults
            wanted = [*ctx.needs_input_grad, *[False] * (total - given)]
            return tuple(backward(ctx, wanted, grad))[:given]

        torch.library.register_autograd(f"dtorch::{self.__name__}", run, setup_context=setup, lib=_LIBRARY)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator, on plain or distributed tensors."""
        return self.operator(*args, **kwargs)

    def region(self, *args: Any) -> Region:
        """The region that calls with such arguments (plain tensors, by position) run through."""
        return self._kind(self._complete(args)).region

    def _complete(self, args: tuple) -> tuple:
        """Arguments with their defaults, which torch leaves out."""
        return (*args, *self._defaults[len(args) :])

    def _kind(self, args: tuple) -> _Kind:
        mode = present_mode()
        key = (mode, *map(_kind_of, args))
        with self._lock:
            kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = _Kind(self._make_region(args, mode))
                if len(self._kinds) > MAX_REGIONS:
                    self._kinds.popitem(last=False)
            self._kinds.move_to_end(key)
            return kind

    def _make_region(self, args: tuple, mode: str) -> Region:
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        places = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]
        rest = [None if isinstance(x, torch.Tensor) else x for x in args]
        reference = self.reference

        def function(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            given = list(rest)
            for i, tensor in zip(places, inputs, strict=True):
                given[i] = tensor
            made = reference(*given)
            return list(made) if isinstance(made, (list, tuple)) else [made]

        return Region(function, tensors, name=f"dtorch.compiled_op.{self.__name__}", mode=mode)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = (*args, *[kwargs.get(a.name, a.default_value) for a in self._arguments(len(args))])
        args = self._complete(args)
        kind = self._kind(args)
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if kind.region.state == "idle":
            kind.calls += 1
            kind.nbytes += sum(x.nbytes for x in tensors)
            if kind.calls >= worth.CALLS or kind.nbytes >= worth.BYTES:
                kind.region.start()
        made = kind.region(tensors)
        return made if self._gives_list else made[0]

    def _arguments(self, since: int) -> Any:
        return self._schema.arguments[since:]


def _kind_of(value: Any) -> Any:
    """What code for an argument depends on."""
    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype, value.device)
    return tuple(value) if isinstance(value, list) else value
