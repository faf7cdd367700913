"""Assignments and writes that cannot be, refused where they are made; docs/edges.md lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import MeshMismatchError, Shard
from tests.dist import place

MESH = dtorch.init_device_mesh("cpu", (2,))
FULL = torch.arange(12.0).view(4, 3)
PLACES = pytest.mark.parametrize("places", ["R", "S0", "P"])


def test_a_plain_tensor_cannot_take_the_place_of_a_distributed_one() -> None:
    x = place(FULL, (2,), ("S0",))
    for plain in (torch.zeros(4, 3), torch.nn.Parameter(torch.zeros(4, 3))):
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            plain.data = x
        assert plain.tolist() == torch.zeros(4, 3).tolist()
        plain.data = FULL.clone()
        assert plain.tolist() == FULL.tolist()


def test_a_module_converted_to_distributed_parameters() -> None:
    module = torch.nn.Linear(3, 4)._apply(lambda p: dtorch.Tensor(p, device_mesh=MESH, placements=["S0"]))
    assert type(module.weight.data) is dtorch.Tensor
    assert module.weight.placements == [Shard(0)]
    module(place(FULL, (2,), ("R",))).sum().backward()
    assert module.weight.grad is not None


# What writes, and whether torch refuses it.
OVERLAPS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "add_": (lambda y: y[1:].add_(y[:-1]), True),
    "mul_": (lambda y: y[:-1].mul_(y[1:]), True),
    "copy_": (lambda y: y[1:].copy_(y[:-1]), True),
    "lerp_": (lambda y: y[1:].lerp_(y[:-1], 0.5), True),
    "addcmul_": (lambda y: y[1:].addcmul_(y[:-1], y[:-1].clone()), True),
    "out": (lambda y: torch.add(y[1:], y[:-1], out=y[1:]), True),
    "after a write": (lambda y: [a := y[1:], y.add_(1), a.add_(y[:-1])], True),
    "the same": (lambda y: y[1:].add_(y[1:]), False),
    "out is an input": (lambda y: torch.add(y[1:], 1, out=y[1:]), False),
    "apart": (lambda y: y[:2].add_(y[2:4]), False),
    "with gaps": (lambda y: y[::2].add_(y[:3]), False),
    "a copy": (lambda y: y[1:].add_(y[:-1].clone()), False),
}


@PLACES
@pytest.mark.parametrize("name", OVERLAPS)
def test_operands_that_partly_share_memory(name: str, places: str) -> None:
    write, refused = OVERLAPS[name]
    x, y = place(torch.arange(6.0), (2,), (places,)), torch.arange(6.0)
    if not refused:
        write(x)
        write(y)
        if name != "with gaps":  # what torch makes of it depends on its order
            assert torch.equal(x.to_torch(), y)
        return
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        write(y)
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        write(x), x.to_torch()


def test_a_gradient_on_another_mesh_is_refused_when_it_is_given() -> None:
    w = place(FULL, (2,), ("S0",)).requires_grad_()
    with pytest.raises(MeshMismatchError, match=r"bring it there first, grad.redistribute_like\(tensor\)"):
        w.grad = place(FULL, (3,), ("R",))
    assert w.grad is None
    w.grad = place(FULL, (2,), ("R",))
    (w * 2).sum().backward()
    assert w.grad.tolist() == (FULL + 2).tolist()
    w.grad = None
    assert w.grad is None
    del w.grad


def test_parts_from_a_generator() -> None:
    made = dtorch.from_local((FULL[i : i + 2] for i in (0, 2)), MESH, [Shard(0)])
    assert torch.equal(made.to_torch(), FULL)
    with pytest.raises(TypeError, match="a list of plain torch tensors, one per device"):
        dtorch.from_local(FULL, MESH)  # type: ignore[arg-type]
    with pytest.raises(dtorch.ShapeError, match="0 parts"):
        dtorch.from_local((), MESH)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float16])
@PLACES
def test_numbers_that_torch_does_not_add(dtype: torch.dtype, places: str) -> None:
    full = torch.arange(6).to(dtype)
    if places == "P" and dtype is not torch.float16:
        x = dtorch.Tensor(full, device_mesh=MESH, placements=["P"])
    else:
        x = place(full, (2,), (places,))
    assert torch.equal(x.to_torch(), full)
    assert str(full).partition("[")[2].partition("]")[0] in str(x)
    if dtype is torch.uint16:
        halves = [torch.tensor([2**16 - 1], dtype=dtype)] * 2
        assert dtorch.from_local(halves, MESH, ["P"]).to_torch().tolist() == [2**16 - 2]
