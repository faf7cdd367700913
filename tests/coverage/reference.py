"""What plain torch makes of a sample, and how near to it a result must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from dtorch.testing.calls import copy
from dtorch.testing.compare import EXACT, TOLERANCES, Tolerance, difference, plain
from tests.coverage.database import Form, Ineligible, first_line, quiet

Make = Callable[[torch.Tensor, int], torch.Tensor]


class Run(NamedTuple):
    """What a call took and gave.

    Attributes:
        leaves: its tensors, in order.
        outputs: flat.
        gradients: of the leaves that require one; None where there is none.
        error: what the backward raised.
    """

    leaves: list[Any]
    outputs: list[Any]
    gradients: list[Any]
    error: Exception | None = None


def run(
    form: Form,
    sample: Any,
    make: Make,
    seed: int,
    into: Sequence[torch.Tensor] = (),
    rounded: torch.dtype | None = None,
) -> Run:
    """Call a form, forward and backward, on a sample whose tensors `make` has replaced.

    Args:
        form: what to call.
        sample: of the database.
        make: tensor, its number -> the tensor used.
        seed: of random numbers.
        into: for the form `out`, tensors like the outputs.
        rounded: dtype to which gradients of the outputs are rounded before they are used.
    """
    leaves: list[Any] = []

    def replace(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        leaves.append(make(value.detach() if form.name == "out" else value, len(leaves)))
        return leaves[-1]

    args, kwargs = tree_map(replace, (sample.input, *sample.args)), tree_map(replace, sample.kwargs)
    if form.name == "in-place":
        args = (tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, args[0]), *args[1:])
    if form.name == "out":
        targets = [replace(target) for target in into]
        kwargs = {**kwargs, "out": targets[0] if len(targets) == 1 else tuple(targets)}
    torch.manual_seed(seed)
    result = form.call(*args, **kwargs)
    if form.name == "out":
        return Run(leaves, [*targets, *tree_flatten(result)[0]], [])
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    outputs = tree_flatten(result)[0]
    return Run(leaves, outputs, *_gradients(leaves, outputs, rounded))


def _gradients(
    leaves: Sequence[Any], outputs: Sequence[Any], rounded: torch.dtype | None
) -> tuple[list[Any], Exception | None]:
    wanted = [x for x in leaves if x.requires_grad]
    used = [y for y in outputs if isinstance(y, torch.Tensor) and y.requires_grad]
    if not wanted or not used:
        return [], None
    cotangents = [generic(y, rounded or y.dtype) for y in used]
    try:
        return list(torch.autograd.grad(used, wanted, cotangents, allow_unused=True)), None
    except Exception as error:
        return [], error


def generic(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values of mixed sign for the gradient of an output, the same for equal shapes; no random numbers."""
    values = torch.arange(1, like.numel() + 1).mul(1.7).sin().to(dtype)
    return values.to(like.dtype).reshape(like.shape)


class _Unchanged(TorchDispatchMode):
    """Changes nothing; but torch takes the formulas that it keeps for tensor subclasses."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, eq=False)
class Reference:
    """What plain torch makes of a sample.

    Attributes:
        form, sample, seed: what was run.
        into: tensors like the outputs, for the form `out`.
        run: what it took and gave.
    """

    form: Form
    sample: Any
    seed: int
    into: list[torch.Tensor]
    run: Run

    @cached_property
    def as_subclass(self) -> Run:
        """By the formulas that torch takes for tensor subclasses, in few places others, of other bits."""
        with quiet(), _Unchanged():
            return run(self.form, self.sample, _plain_leaf, self.seed, self.into)

    @cached_property
    def precise(self) -> Run | None:
        """In double precision; None where torch cannot."""
        narrow = [x.dtype for x in self.run.leaves if x.dtype in _WIDE]
        into = [_wide(x) for x in self.into]
        try:
            with quiet():
                return run(self.form, self.sample, _wide_leaf, self.seed, into, next(iter(narrow), None))
        except Exception:
            return None


def reference(form: Form, sample: Any, seed: int) -> Reference:
    """The sample on plain torch.

    Raises:
        Ineligible: it is sparse, refused by torch, has no tensor, or is not the same the second time.
    """
    into: list[torch.Tensor] = []
    try:
        with quiet():
            if form.name == "out":
                plainly = tree_flatten(form.call(sample.input, *sample.args, **sample.kwargs))[0]
                if not all(isinstance(y, torch.Tensor) for y in plainly):
                    raise Ineligible("not all outputs are tensors")
                into = [torch.full_like(y.detach(), 7) for y in plainly]
            found, again = (run(form, sample, _plain_leaf, seed, into) for _ in range(2))
    except Ineligible:
        raise
    except Exception as error:
        raise Ineligible(f"plain torch refuses: {type(error).__name__}: {first_line(error)}") from None
    if not found.leaves:
        raise Ineligible("no tensor among the arguments")
    tensors = [x for x in (*found.leaves, *found.outputs) if isinstance(x, torch.Tensor)]
    if any(x.layout is not torch.strided for x in tensors):
        raise Ineligible("sparse")
    pairs = zip((*found.outputs, *found.gradients), (*again.outputs, *again.gradients), strict=True)
    if any(differ(a, b, EXACT) is not None for a, b in pairs):
        raise Ineligible("plain torch gives other bits the second time")
    return Reference(form, sample, seed, into, found)


def _plain_leaf(value: torch.Tensor, _: int) -> torch.Tensor:
    return copy(value).requires_grad_(value.requires_grad)


_WIDE = {torch.complex64: torch.complex128} | dict.fromkeys(
    (torch.float32, torch.bfloat16, torch.float16), torch.float64
)


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(_WIDE.get(value.dtype, value.dtype))


def _wide_leaf(value: torch.Tensor, _: int) -> torch.Tensor:
    return _wide(copy(value)).requires_grad_(value.requires_grad)


def as_precise(ours: Any, theirs: Any, precise: Any) -> bool:
    """Whether ours is about as near to the value in double precision as plain torch's is."""
    if not all(isinstance(x, torch.Tensor) for x in (ours, theirs, precise)):
        return False
    a, b = plain(ours).detach(), theirs.detach()
    if b.dtype not in _WIDE or _wide(b).dtype != precise.dtype or not a.shape == b.shape == precise.shape:
        return False
    if a.dtype != b.dtype or not bool((a.isfinite() == b.isfinite()).all()):
        return False
    off, usual = ((x.to(precise.dtype) - precise.detach()).abs().nan_to_num(0, 0, 0).max() for x in (a, b))
    # Where plain torch's own is far off, the two are not the same function.
    scale = max(1.0, b.abs().nan_to_num(0, 0, 0).max().item())
    same = usual <= 8 * torch.finfo(b.dtype).eps ** 0.5 * scale
    return bool(same and off <= 4 * usual + _allowed(b).atol)


def differ(ours: Any, theirs: Any, exact: Tolerance | None) -> str | None:
    """In what an output differs, None if in nothing; sums may be in another order unless `exact`."""
    if not isinstance(theirs, torch.Tensor):
        same = type(ours) is type(theirs) and (ours == theirs or (ours != ours and theirs != theirs))
        return None if same else f"{ours} is not {theirs}"
    if not isinstance(ours, torch.Tensor):
        return f"{ours} instead of a tensor"
    if tuple(ours.shape) != tuple(theirs.shape):
        return f"says shape {list(ours.shape)}, not {list(theirs.shape)}"
    theirs, ours = theirs.detach(), plain(ours).detach()
    return difference(ours, theirs, exact or _allowed(theirs))


def _allowed(value: torch.Tensor) -> Tolerance:
    """Rounding of sums in another order, by the largest value, since cancellation hits small ones."""
    usual = TOLERANCES.get(value.dtype)
    if usual is None or not value.numel():
        return EXACT
    scale = max(1.0, value.abs().nan_to_num(0, 0, 0).max().item())
    return Tolerance(20 * usual.rtol if usual.rtol < 1e-3 else 2 * usual.rtol, 2.5 * usual.atol * scale)
