"""Printing distributed tensors: global values, of large tensors the corners alone, gathered as such."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import _tensor_str
from torch.utils._python_dispatch import _disable_current_modes

from dtorch.errors import CaptureError
from dtorch.op.operand import NoValue
from dtorch.redistribute import sum_dtype

if TYPE_CHECKING:
    from dtorch.layout import Layout
    from dtorch.tensor import Tensor


def text(tensor: Tensor) -> str:
    """`Tensor([...], shape=[2, 3], dtype=float32, device_mesh=..., placements=[...])`.

    Raises:
        CaptureError: in a captured function, which has no values yet. Nothing else is raised.
    """
    head = "Parameter containing:\n" if tensor.__dict__.get("_is_param") else ""
    return head + _line(tensor)


def _line(tensor: Tensor) -> str:
    values = _values(tensor)
    spec = tensor._operand.spec
    facts = [
        f"shape={list(spec.shape)}",
        f"dtype={str(spec.dtype).removeprefix('torch.')}",
        f"device_mesh={spec.mesh!r}",
        f"placements={list(spec.placements)}",
    ]
    if tensor.grad_fn is not None:
        facts.append(f"grad_fn=<{type(tensor.grad_fn).__name__}>")
    elif tensor.requires_grad:
        facts.append("requires_grad=True")
    gap = "\n       " if "\n" in values else " "
    return f"Tensor({values},{gap}{', '.join(facts)})"


def _values(tensor: Tensor) -> str:
    if isinstance(tensor._operand.parts, NoValue):
        return "..."
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad(), _disable_current_modes():
            parts = [part.detach() for part in tensor._graph.parts(tensor._operand)]
            return _formatted(parts, tensor._operand.layout)
    except CaptureError:  # it runs once, while it is recorded: the text would stand for all replays
        raise
    except Exception as error:  # printing must not hide the error that someone is looking for
        return f"<values not to be had: {type(error).__name__}: {error}>"


def _formatted(parts: list[torch.Tensor], layout: Layout) -> str:
    options = _tensor_str.PRINT_OPTS
    numel = 1
    for size in layout.shape:
        numel *= size
    if not numel:
        return "[]"
    summarize = numel > options.threshold
    edge = options.edgeitems
    shown = [_edges(size, edge) if summarize else list(range(size)) for size in layout.shape]
    small = _gathered(parts, layout, shown)
    if not summarize:
        return _tensor_str._tensor_str(small, len("Tensor("))
    # A dim of more than 2 edge items is shortened again: the item in its middle is never shown.
    padded = small
    for dim, size in enumerate(layout.shape):
        if size > 2 * edge:
            left, right = padded.split([edge, edge], dim)
            padded = torch.cat([left, left.narrow(dim, 0, 1), right], dim)
    with _tensor_str.printoptions(threshold=0):
        return _tensor_str._tensor_str(padded, len("Tensor("))


def _edges(size: int, edge: int) -> list[int]:
    return list(range(size)) if size <= 2 * edge else [*range(edge), *range(size - edge, size)]


def _gathered(parts: list[torch.Tensor], layout: Layout, shown: list[list[int]]) -> torch.Tensor:
    """The elements whose index is in `shown`, dim by dim, from whichever device holds them."""
    dtype = parts[0].dtype
    wide = sum_dtype(dtype)
    out = torch.zeros([len(s) for s in shown], dtype=wide)
    where = [{index: place for place, index in enumerate(s)} for s in shown]
    from_position = sorted(set(layout.distinct()))
    coords = layout_coords(layout)
    for position in from_position:
        here = [_held(layout, dim, coords[position], where[dim]) for dim in range(layout.ndim)]
        if any(not local for local, _ in here):
            continue
        part = parts[position]
        if not wide.is_floating_point and wide is not dtype:
            part = part.to(wide)  # torch does not select by index from what it does not add
        for dim, (local, _) in enumerate(here):
            part = part.index_select(dim, torch.tensor(local, device=part.device))
        spots = [torch.tensor(spot) for _, spot in here]
        target: Any = tuple(torch.meshgrid(*spots, indexing="ij")) if spots else ...
        part = part.to("cpu", wide)
        out[target] = out[target] + part if layout.partial else part
    return out.to(dtype)


def layout_coords(layout: Layout) -> list[tuple[int, ...]]:
    """Coordinates of the devices, in mesh order."""
    found: list[tuple[int, ...]] = [()]
    for size in layout.mesh_shape:
        found = [(*coord, index) for coord in found for index in range(size)]
    return found


def _held(
    layout: Layout, dim: int, coord: tuple[int, ...], where: dict[int, int]
) -> tuple[list[int], list[int]]:
    """Local indices of the shown elements that a device holds, and their places among those shown."""
    local, place, start_of_run = [], [], 0
    for start, stop in layout.local_indices(dim, coord):
        for index, spot in where.items():
            if start <= index < stop:
                local.append(start_of_run + index - start)
                place.append(spot)
        start_of_run += stop - start
    return local, place
