"""Comparing with plain torch: one function, the same inputs, every way to place them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

import dtorch
from dtorch import redistribute
from dtorch.graph.graph import Graph
from dtorch.op.operand import Operand
from dtorch.spec import Spec
from dtorch.tensor import layout_of, wrap
from tests.support import sample

MESHES = ((4,), (2, 2))
Places = tuple[str, ...]


def place(tensor: torch.Tensor, mesh_shape: Sequence[int], placements: Any) -> dtorch.Tensor:
    """A distributed leaf with the value of a plain tensor; pending sums have parts of mixed signs.

    Args:
        tensor: the value; not kept.
        mesh_shape: of a cpu mesh.
        placements: "R", "S0", "P", one per mesh axis, or placement objects, or a Layout.
    """
    mesh = dtorch.init_device_mesh("cpu", tuple(mesh_shape))
    full = tensor.detach()
    layout = layout_of(placements, mesh, full.shape)
    parts = redistribute.split(full, layout, mesh)
    generator = torch.Generator().manual_seed(7)
    for position in sorted(set(layout.distinct())):
        coord = mesh.coords[position]
        first = mesh.coords.index(tuple(0 if a in layout.partial else c for a, c in enumerate(coord)))
        if first != position:
            noise = torch.randint(-3, 4, parts[position].shape, generator=generator).to(full.dtype)
            parts[position].add_(noise)
            parts[layout.distinct()[first]].sub_(noise)
    operand = Operand(Spec(tuple(full.shape), full.stride(), full.dtype, layout, mesh), parts)
    made = wrap(operand, Graph.default_graph())
    return made.requires_grad_() if tensor.requires_grad else made


def ways(ndim: int, mesh_shape: Sequence[int], pending: bool = True) -> list[Places]:
    """All plain placements of a tensor."""
    one = ["R", *(f"S{d}" for d in range(ndim)), *(["P"] if pending else [])]
    return list(itertools.product(one, repeat=len(mesh_shape)))


def sampled_ways(
    tensors: Sequence[torch.Tensor], count: int, meshes: Iterable[Sequence[int]] = MESHES
) -> list[Any]:
    """A sample of (mesh shape, placements of every tensor), as pytest parameters."""
    found: list[Any] = []
    for mesh_shape in meshes:
        every = [ways(t.ndim, mesh_shape, t.dtype is not torch.bool) for t in tensors]
        total = 1
        for options in every:
            total *= len(options)
        numbers = sample(range(total), count, seed=total)
        for number in numbers:
            places = []
            for options in every:
                number, which = divmod(number, len(options))
                places.append(options[which])
            found.append(
                pytest.param(mesh_shape, tuple(places), id=f"{mesh_shape}-{'-'.join(map(''.join, places))}")
            )
    return found


def over(cases: dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]], count: int = 10) -> list[Any]:
    """Every case under a sample of placements: (function, tensors, mesh shape, placements)."""
    return [
        pytest.param(fn, tensors, *way.values, id=f"{name}-{way.id}")
        for name, (fn, tensors) in cases.items()
        for way in sampled_ways(tensors, count)
    ]


def outcome(fn: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, inputs as they are afterwards, and the inputs' gradients, all plain."""
    outputs = flat(fn(*tensors))
    results = [*outputs, *tensors]
    wanting = [o for o in outputs if o.requires_grad]
    if wanting:
        loss = sum((o * weight_like(o)).sum() for o in wanting)
        loss.backward()  # type: ignore[union-attr]
        results += [t.grad for t in tensors if t.grad is not None]
    return [plain(r) for r in results]


def weight_like(tensor: torch.Tensor) -> torch.Tensor:
    """Generic fixed weights, so that every element's gradient differs."""
    numel = tensor.numel()
    return (torch.arange(1.0, numel + 1) / (numel + 1)).cos().reshape(tensor.shape).to(tensor.dtype)


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors in nested sequences."""
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in flat(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The full value."""
    return tensor.to_torch() if isinstance(tensor, dtorch.Tensor) else tensor.detach()


def fresh(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is a leaf."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def metadata(fn: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """What torch tells of the outputs without looking at values."""
    return [(o.shape, o.dtype, o.requires_grad, o.stride()) for o in flat(fn(*tensors))]


def assert_like_torch(
    fn: Callable[..., Any], tensors: Sequence[torch.Tensor], mesh_shape: Sequence[int], places: Sequence[Any]
) -> None:
    """Placed tensors get what plain ones get: values, writes, gradients, metadata."""

    def placed() -> list[torch.Tensor]:
        return [place(t, mesh_shape, p) for t, p in zip(tensors, places, strict=True)]

    wanted = outcome(fn, [fresh(t) for t in tensors])
    got = outcome(fn, placed())
    assert metadata(fn, placed()) == metadata(fn, [fresh(t) for t in tensors])
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


def communications(
    fn: Callable[..., Any], tensors: Sequence[torch.Tensor], mesh_shape: Sequence[int], places: Sequence[Any]
) -> list[Any]:
    """What the function, forward only, sends between devices."""
    placed = [place(t, mesh_shape, p) for t, p in zip(tensors, places, strict=True)]
    with Graph.default_graph().record() as graph:
        fn(*placed)
    return graph.communications()
