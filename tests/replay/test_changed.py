"""Capture: whatever a function reaches may be changed in any way that Python has, and the value follows."""

from __future__ import annotations

import functools
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dtorch
from dtorch import Shard
from dtorch.replay import capture

MESH = dtorch.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
SPACE = types.ModuleType("a_program_of_its_own")
exec("def largest(x): return x * max(2, 3)", vars(SPACE))

pytestmark = pytest.mark.recorded
Case = tuple[Callable[[torch.Tensor], torch.Tensor], list[Callable[[], Any]]]


def sharded(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH, placements=[Shard(0)])


def whole(x: torch.Tensor) -> torch.Tensor:
    return dtorch.Tensor(x, device_mesh=MESH)


class Kind(type):
    factor = 2.0


class Settings(metaclass=Kind):
    shift = 0.0

    def __init__(self) -> None:
        self.scale, self.unused = 2.0, 1


class Named(dict):
    scale = 2.0

    def total(self) -> float:
        return sum(self.values())


class Listed(list):
    scale = 2.0


class Affine(torch.nn.Module):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = torch.nn.Parameter(torch.full((2,), scale))
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * whole(self.weight) + whole(self.shift)).detach() * self.scale


class Shifted(torch.nn.ReLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Own(torch.optim.Optimizer):
    def __init__(self) -> None:
        super().__init__([torch.nn.Parameter(torch.ones(1))], {"lr": 1.0})
        self.scale = 2.0


def attributes() -> Case:
    held = Settings()
    return lambda x: x * held.scale, [
        lambda: setattr(held, "__dict__", {"scale": 3.0}),
        lambda: setattr(held, "scale", 4.0),
        lambda: setattr(held, "__dict__", {"scale": 2.0}),
    ]


def of_the_class() -> Case:
    held = Settings()

    def shadow() -> None:
        del held.unused
        held.shift = 5.0

    return lambda x: x * held.scale + held.shift, [shadow]


def absent() -> Case:
    held: Any = Settings()

    def give() -> None:
        del held.unused
        held.given = 5.0

    return lambda x: x * held.scale + getattr(held, "given", 1.0), [give]


def of_a_builtin() -> Case:
    return SPACE.largest, [lambda: setattr(SPACE, "max", lambda *_: 7), lambda: delattr(SPACE, "max")]


def metaclass() -> Case:
    return lambda x: x * Settings.factor, [lambda: setattr(Kind, "factor", 3.0)]


def module() -> Case:
    held = Affine()
    return lambda x: held(x), [
        lambda: setattr(held, "__dict__", {**vars(held), "scale": 3.0}),
        lambda: setattr(held, "_parameters", {"weight": torch.nn.Parameter(torch.full((2,), 5.0))}),
        lambda: object.__setattr__(held, "_buffers", {"shift": torch.full((2,), 3.0)}),
        lambda: torch.utils.swap_tensors(held.shift, torch.full((2,), 7.0)),
    ]


def modules() -> Case:
    held = torch.nn.Sequential(Affine(2.0), Affine(3.0))
    return lambda x: held(x), [
        lambda: setattr(held, "_modules", dict(reversed(held._modules.items()))),
        lambda: held._modules.update({"1": held._modules.pop("1")}),
        lambda: held.__delitem__(0),
    ]


def of_a_library() -> Case:
    held = torch.nn.ReLU()
    return lambda x: held(x), [lambda: setattr(held, "__class__", Shifted)]


def hooks() -> Case:
    held = torch.nn.Identity()
    first = held.register_forward_hook(lambda module, given, found: found * 2)
    held.register_forward_hook(lambda module, given, found: found + 1)
    return lambda x: held(x), [
        lambda: held._forward_hooks.move_to_end(first.id),
        lambda: setattr(held, "_forward_hooks", OrderedDict({1: lambda module, given, found: found * 3})),
    ]


def order() -> Case:
    held = OrderedDict(a=2.0, b=3.0)
    return lambda x: functools.reduce(lambda y, step: y * step + 1, held.values(), x), [
        lambda: held.move_to_end("a"),
        lambda: held.move_to_end("a", last=False),
    ]


def code() -> Case:
    def used(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def other(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    return lambda x: used(x), [lambda: setattr(used, "__code__", other.__code__)]


def of_a_function() -> Case:
    def used(x: torch.Tensor) -> torch.Tensor:
        return x * vars(used)["scale"]

    used.__dict__ = {"scale": 2.0}
    return used, [lambda: setattr(used, "__dict__", {"scale": 3.0})]


def of_tensors() -> Case:
    held: list[Any] = [torch.ones(2), sharded(torch.ones(4, 2))]
    for tensor in held:
        tensor.scale = 2.0
    return lambda x: x * held[0].scale * held[1].scale, [
        lambda: setattr(held[0], "scale", 3.0),
        lambda: setattr(held[1], "scale", 5.0),
    ]


def of_containers() -> Case:
    named, listed = Named(a=1.0), Listed([1.0])
    return lambda x: x * named.scale * listed.scale + named.total(), [
        lambda: setattr(named, "scale", 3.0),
        lambda: setattr(listed, "scale", 5.0),
        lambda: setattr(named, "total", lambda: 7.0),
        lambda: setattr(Named, "scale", 4.0) or delattr(named, "scale"),
        lambda: setattr(Listed, "scale", 11.0) or delattr(listed, "scale"),
    ]


def of_an_optimizer() -> Case:
    held = Own()
    return lambda x: x * held.scale, [lambda: setattr(held, "scale", 3.0)]


def behind_a_weak_reference() -> Case:
    held = Settings()
    weak = weakref.ref(held)
    return lambda x: x * getattr(weak(), "scale", 9.0), [lambda: setattr(held, "scale", 3.0)]


def imported() -> Case:
    first, second = types.ModuleType("imported_by_it"), types.ModuleType("imported_by_it")
    first.scale, second.scale = 2.0, 3.0  # type: ignore[attr-defined]
    sys.modules["imported_by_it"] = first

    def used(x: torch.Tensor) -> torch.Tensor:
        import imported_by_it  # type: ignore[import-not-found]

        return x * imported_by_it.scale

    return used, [lambda: sys.modules.update(imported_by_it=second)]


def of_a_module() -> Case:
    def used(x: torch.Tensor) -> torch.Tensor:
        return x * (SPACE.given if hasattr(SPACE, "given") else 3.0)

    return used, [lambda: setattr(SPACE, "given", 2.0), lambda: delattr(SPACE, "given")]


def behind_views() -> Case:
    held, memory = {"a": 2.0}, bytearray(b"\x02")
    seen: list[Any] = [types.MappingProxyType(held), held.values(), held.items(), memoryview(memory)]

    def used(x: torch.Tensor) -> torch.Tensor:
        return x * seen[0]["a"] * sum(seen[1]) * sum(value for _, value in seen[2]) * seen[3][0]

    return used, [
        lambda: held.update(a=3.0),
        lambda: held.update(b=5.0),
        lambda: memory.__setitem__(0, 3),
    ]


CASES = [
    attributes, of_the_class, absent, of_a_builtin, metaclass, module, modules, of_a_library, hooks, order,
    code, of_a_function, of_tensors, of_containers, of_an_optimizer, behind_a_weak_reference, imported,
    of_a_module, behind_views,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_value_is_that_of_the_function(case: Callable[[], Case]) -> None:
    function, changes = case()
    captured, x = capture(function), sharded(torch.arange(8.0).reshape(4, 2) - 2)
    captured.capture(x)
    for change in changes:
        before = captured(x).to_torch()
        assert captured.why().startswith("replayed")
        change()
        assert not torch.equal(function(x).to_torch(), before)  # or this shows nothing
        for _ in range(4):
            assert torch.equal(captured(x).to_torch(), function(x).to_torch())


def test_each_thread_has_its_own() -> None:
    held, found = threading.local(), []
    held.scale = 2.0
    captured, x = capture(lambda x: x * held.scale), sharded(torch.ones(4, 2))
    captured.capture(x)

    def elsewhere() -> None:
        held.scale = 3.0
        found.append(captured(x).to_torch())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert torch.equal(found[0], torch.full((4, 2), 3.0))
    assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 2.0))


def test_hooks_of_all_modules_are_seen() -> None:
    module, x = torch.nn.Identity(), sharded(torch.ones(4, 2))
    captured = capture(lambda x: module(x) * 2)
    captured.capture(x)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda module, given, found: found + 1)
    try:
        assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 4.0))
    finally:
        hook.remove()
    assert torch.equal(captured(x).to_torch(), torch.full((4, 2), 2.0))


@pytest.mark.parametrize("where", ["the optimizer", "a parameter"])
def test_hooks_of_a_step_are_seen(where: str) -> None:
    def halve(held: torch.Tensor) -> None:
        held.grad.mul_(0.5)

    def trained(captured: bool) -> torch.Tensor:
        weight = sharded(torch.ones(4, 2)).requires_grad_()
        optimizer = torch.optim.SGD([weight], 0.1)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()

        call = capture(step) if captured else step
        for _ in range(5):
            call(sharded(torch.ones(4, 2)))
        if where == "a parameter":
            weight.register_post_accumulate_grad_hook(lambda held: halve(held))
        else:
            optimizer.register_step_pre_hook(lambda *_: halve(weight))
        call(sharded(torch.ones(4, 2)))
        return weight.detach().to_torch()

    assert torch.equal(trained(True), trained(False))
